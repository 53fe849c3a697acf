"""Plan FlashInfer by pages where the policy says `page_native: true`.

One hook after the construction of SGLang's backend, registered only where the arguments name that backend, whose module
is then imported anyway. A scheduler that made another one all the same does not start, or says so, as `on_conflict`
decides.
"""

from __future__ import annotations

import importlib
from typing import Any

from kvpolicy.runtime.active import ActivePolicy, Setting
from kvpolicy.runtime.support import Verdict, refusal, yield_to_engine

from . import probe
from .attention_pages_support import SECTION, supported
from .hooks import HookSet

__all__ = ["CONSTRUCTION", "Pages", "is_asked_for", "refused"]

_MODULE = "sglang.srt.layers.attention.flashinfer_backend"
CONSTRUCTION = f"{_MODULE}.FlashInferAttnBackend.__init__"


def is_asked_for(active: ActivePolicy) -> bool:
    """Whether the policy wants plans by pages, and nothing has won over it already."""
    return bool(active.compiled.backend.page_native) and all(one.setting != SECTION for one in active.conflicts)


def refused(active: ActivePolicy, server_args: Any) -> str | None:
    """Why the server must not start with these arguments, in words."""
    return refusal(active, supported(server_args)) if is_asked_for(active) else None


class Pages:
    """Of one scheduler: which of its backends plan by pages."""

    def __init__(self, active: ActivePolicy, hooks: HookSet) -> None:
        self.active, self.hooks = active, hooks
        self.seats: list[Any] = []  # kvpolicy_sglang.attention_pages.PagePlans
        self._is_on = False
        self._server_args: Any = None
        self._verdict: Verdict | None = None

    def install(self, server_args: Any) -> None:
        """Before the scheduler is built. SystemExit where pages are impossible and `on_conflict` is `error`."""
        if not is_asked_for(self.active):
            return
        self._is_on, self._server_args = True, server_args
        if self._yields(supported(server_args)):
            return
        if int(probe.resolved(server_args, "page_size") or 1) > 1:
            from sglang.srt.plugins.hook_registry import HookType

            self.hooks.register(CONSTRUCTION, self._built, HookType.AFTER)
            self.hooks.apply_now()

    def _built(self, _result: None, backend: Any, model_runner: Any, *_args: Any, **_kwargs: Any) -> None:
        """After `FlashInferAttnBackend.__init__`."""
        if getattr(model_runner, "is_draft_worker", False) or self._yields(supported(self._server_args, backend)):
            return
        from .attention_pages import PagePlans

        module = importlib.import_module(_MODULE)
        backend.kvpolicy_pages = PagePlans(self.active, backend, module.fast_decode_plan)
        self.seats.append(backend.kvpolicy_pages)

    def require_built(self, scheduler: Any) -> None:
        """SystemExit where no backend plans by pages although one should; the status says what is the case."""
        if not self._is_on:
            return
        page_tokens = int(scheduler.token_to_kv_pool_allocator.page_size)
        by = "policy" if page_tokens > 1 else "page size 1: a page is a token"
        if self._verdict is None and page_tokens > 1 and not self.seats:
            made = type(getattr(scheduler.tp_worker.model_runner, "attn_backend", None)).__name__
            self._yields(Verdict("stock", made, f"SGLang made a {made}, which plans in ways of its own", SECTION))
        is_honoured = self._verdict is None
        if self._verdict is not None:
            by = self._verdict.winner
        origin = self.active.origin(SECTION)
        self.active.settings[SECTION] = Setting(SECTION, "page_native", True, is_honoured, by, origin)

    def _yields(self, verdict: Verdict) -> bool:
        """Whether SGLang's plans stay. SystemExit as above."""
        if verdict.kind == "supported":
            return False
        if words := refusal(self.active, verdict):
            raise SystemExit(words)
        if self._verdict is None:
            self._verdict = verdict
            yield_to_engine(self.active, verdict)
        return True
