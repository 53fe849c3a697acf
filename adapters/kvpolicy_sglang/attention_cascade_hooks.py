"""Put the policy's cascade into SGLang's FlashInfer decode path: six hooks, beside the backend's own way.

A CUDA graph holds one way of attention. So each batch size is captured a second time, with our wrapper in the backend's
metadata, under a variant label of its own (as SGLang captures with and without LoRA); a step replays the one or the
other. Steps outside graphs choose in the same place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kvpolicy.attention.cost import Heads
from kvpolicy.attention.groups import Worth
from kvpolicy.attention.measured import CONSTANTS
from kvpolicy.runtime.active import ActivePolicy, CascadeState
from kvpolicy.runtime.support import Verdict, refusal, yield_to_engine

from .attention_cascade_support import supported
from .cache_nodes import node_finder

if TYPE_CHECKING:
    from kvpolicy.kernels.cascade_steps import CascadeTables

    from .attention_cascade import Chooser, Reads, Steps
    from .hooks import HookSet

__all__ = ["Cascade", "install", "is_asked_for", "refused"]

logger = logging.getLogger("kvpolicy")

VARIANT = "kvpolicy-cascade"
_RUNNER = "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner"
_BACKEND = "sglang.srt.layers.attention.flashinfer_backend.FlashInferAttnBackend"
_WORKER = "sglang.srt.managers.tp_worker.TpModelWorker"


def is_asked_for(active: ActivePolicy) -> bool:
    """Whether the policy has decode steps cascade."""
    return active.compiled.backend.cascade not in (None, "off")


def refused(active: ActivePolicy, server_args: Any) -> str | None:
    """Why the server must not start with these arguments, in words."""
    return refusal(active, supported(server_args)) if is_asked_for(active) else None


def install(active: ActivePolicy, hooks: HookSet, server_args: Any, cache: Callable[[], Any]) -> Cascade | None:
    """Put a cascade into a scheduler that is about to be built, if its policy asks for one and the arguments allow it.

    `cache` gives the prefix cache once it is built. SystemExit where a hook does not take.
    """
    if not is_asked_for(active):
        return None
    cascade = Cascade(active, cache)
    active.cascade = cascade.state
    if not cascade.may_start(supported(server_args)):
        return None
    from sglang.srt.plugins.hook_registry import HookType

    for target, hook in (
        (f"{_WORKER}.forward_batch_generation", cascade.forward),
        (f"{_RUNNER}.capture_one_shape", cascade.capture),
        (f"{_RUNNER}.load_batch", cascade.load),
        (f"{_RUNNER}._resolve_lora_variant", cascade.variant),
        (f"{_BACKEND}.init_forward_metadata_out_graph", cascade.plan_graph),
        (f"{_BACKEND}.init_forward_metadata", cascade.plan),
    ):
        hooks.register(target, hook, HookType.AROUND)
    hooks.apply_now()
    return cascade


class Cascade:
    """The hooks' side of one scheduler: what is decided once for the backend, and the step under way."""

    def __init__(self, active: ActivePolicy, cache: Callable[[], Any]) -> None:
        self.active, self._cache = active, cache
        self.state = CascadeState()
        self._steps: Steps | None = None
        self._worth: Callable[[Reads], Worth] | None = None
        self._chooser: Chooser | None = None
        self._captured: set[int] = set()  # batch sizes that have a graph with a cascade
        self._is_capturing = False
        self._reqs: list[Any] = []
        self._groups: list[Any] = []  # of the step that is being loaded; empty: the backend's own way

    # -- once --

    def may_start(self, verdict: Verdict) -> bool:
        """False where the engine's own way stays. SystemExit where `on_conflict` is `error`."""
        if refused := refusal(self.active, verdict):
            raise SystemExit(refused)
        if verdict.kind != "supported":
            yield_to_engine(self.active, verdict)
            self._stop(verdict.message)
        return verdict.kind == "supported"

    def settle(self, runner: Any) -> None:
        """Decide for a model runner's backend, once: at its first capture, or when the scheduler is built."""
        if self.state.core is not None:
            return
        backend = getattr(runner.attn_backend, "decode_backend", None)
        if backend is None or isinstance(backend, str):  # not one backend for prefill and one for decode
            backend = runner.attn_backend
        if self.may_start(supported(runner.server_args, backend)):
            self._start(backend, runner)

    def _start(self, backend: Any, runner: Any) -> None:
        from .attention_cascade import Steps, worth_of

        updater = backend.indices_updater_decode
        heads = Heads(
            int(updater.num_qo_heads), int(updater.num_kv_heads), int(updater.head_dim), updater.data_type.itemsize
        )
        table = backend.req_to_token_pool.req_to_token
        self._steps = Steps(heads.query, heads.kv, int(table.shape[1]), table.device)
        word = self.active.compiled.backend.cascade
        if word == "auto" and not (device := _device(table)).endswith("H200"):
            logger.warning(
                "kvpolicy: `cascade: auto` decides by what an H200 was measured to take, and this is %s: "
                "compare with `{min_shared_tokens: 2Ki, min_batch: 16}` by `kvpolicy bench`",
                device,
            )
        self._worth = worth_of(word, CONSTANTS["h200"], heads, int(runner.token_to_kv_pool.layer_num))
        self.state.core, self.state.reason = "kvpolicy", ""

    def _stop(self, reason: str) -> None:
        self.state.core, self.state.reason = "engine", reason
        self._groups = []

    # -- a step --

    def _choose(self, forward_batch: Any) -> list[Any]:
        """Groups of the step that is about to run; empty after a fault, which is counted."""
        if self.state.core != "kvpolicy" or self.active.is_off or len(self._reqs) != forward_batch.batch_size:
            return []
        if not forward_batch.forward_mode.is_decode():
            return []
        try:
            if self._chooser is None:  # the prefix cache is built after the graphs
                from .attention_cascade import Chooser

                assert self._worth is not None
                self._chooser = Chooser(node_finder(self._cache()), self._worth)
            return self._chooser.groups(self._reqs)
        except Exception:
            self._fault("choosing what to read once raised")
            return []

    def _fault(self, what: str) -> None:
        self.active.note_fallback("cascade", f"{what}: no step cascades any more")
        self._stop(what)

    def forward(self, original: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Around `TpModelWorker.forward_batch_generation`: whose step it is."""
        self._reqs = [] if batch is None else batch.reqs
        try:
            return original(worker, batch, *args, **kwargs)
        finally:
            self._reqs = []

    def load(self, original: Callable[..., Any], runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Around `DecodeCudaGraphRunner.load_batch`: a step that a graph will replay."""
        size = next((size for size in runner.capture_bs if size >= forward_batch.batch_size), 0)
        self._groups = self._choose(forward_batch) if size in self._captured else []
        try:
            result = original(runner, forward_batch, *args, **kwargs)
            self._count(self._groups)
            return result
        finally:
            self._groups = []

    def _count(self, groups: list[Any]) -> None:
        if groups:
            self.state.cascade_steps += 1
            self.state.groups = len(groups)
            self.state.saved_tokens += sum((len(one.requests) - 1) * one.tokens for one in groups)
        else:
            self.state.flat_steps += 1

    def variant(self, original: Callable[..., Any], runner: Any, forward_batch: Any) -> Any:
        """Around `_resolve_lora_variant`: which of a size's graphs is meant."""
        return VARIANT if self._groups else original(runner, forward_batch)

    # -- capture --

    def capture(
        self,
        original: Callable[..., Any],
        runner: Any,
        size: int,
        forward: Any,
        stream_idx: Any = None,
        variant_label: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Around `capture_one_shape`: once as ever, once with our wrapper."""
        result = original(runner, size, forward, stream_idx, variant_label, **kwargs)
        self.settle(runner.model_runner)
        is_plain = stream_idx is None and variant_label is None and runner.captured_req_width == 1
        if size < 2 or not is_plain or self.state.core != "kvpolicy":
            return result
        self._is_capturing = True
        try:
            original(runner, size, forward, stream_idx, VARIANT, **kwargs)
            self._captured.add(size)
        except Exception:
            logger.exception("kvpolicy: a graph with a cascade was not captured")
            self._fault("capturing a graph with a cascade raised")
            self._captured.clear()
        finally:
            self._is_capturing = False
        return result

    def plan_graph(
        self, original: Callable[..., Any], backend: Any, forward_batch: Any, in_capture: bool = False, **kwargs: Any
    ) -> Any:
        """Around `init_forward_metadata_out_graph`."""
        if self._is_capturing:
            _use(backend, self._stage_graph(backend, forward_batch, []))
            return None
        if self._groups and not in_capture:
            try:
                self._stage_graph(backend, forward_batch, self._groups)
            except Exception:
                self._fault("preparing a cascade raised")
            else:
                return None
        return original(backend, forward_batch, in_capture, **kwargs)

    def plan(self, original: Callable[..., Any], backend: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Around `init_forward_metadata`: a step outside graphs."""
        if groups := self._choose(forward_batch) if self._reqs else []:
            try:
                assert self._steps is not None
                longest = _longest(forward_batch, self._reqs)
                _use(backend, self._steps.stage_once(groups, *_inputs(backend, forward_batch), longest))
            except Exception:
                self._fault("preparing a cascade raised")
            else:
                self._count(groups)
                return None
        return original(backend, forward_batch, *args, **kwargs)

    def _stage_graph(self, backend: Any, forward_batch: Any, groups: list[Any]) -> CascadeTables:
        assert self._steps is not None
        return self._steps.stage(groups, *_inputs(backend, forward_batch), backend.cuda_graph_kv_indices[0])


def _device(tensor: Any) -> str:
    import torch

    return str(torch.cuda.get_device_name(tensor.device)) if tensor.is_cuda else "a CPU"


def _inputs(backend: Any, forward_batch: Any) -> tuple[Any, Any, Any]:
    """The request table, each request's row of it, and its tokens."""
    size = forward_batch.batch_size
    table = backend.req_to_token_pool.req_to_token
    return table, forward_batch.req_pool_indices[:size], forward_batch.seq_lens[:size]


def _longest(forward_batch: Any, reqs: Sequence[Any]) -> int:
    """Tokens of the longest context; from the requests with room for what is decoded but not counted yet."""
    if (lens := forward_batch.seq_lens_cpu) is not None:
        return int(lens.max())
    return max(len(req.origin_input_ids) + len(req.output_ids) for req in reqs) + 8


def _use(backend: Any, tables: CascadeTables) -> None:
    from sglang.srt.layers.attention.flashinfer_backend import DecodeMetadata

    from .attention_cascade import CascadeWrapper

    backend.forward_metadata = DecodeMetadata([CascadeWrapper(tables)])
