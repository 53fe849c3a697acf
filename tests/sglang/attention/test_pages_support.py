"""The table of what FlashInfer's plans by pages work with: what each configuration gets, and that it is printed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kvpolicy_sglang import attention_pages, attention_pages_hooks
from kvpolicy_sglang.attention_pages_support import FEATURES, SECTION, phases, supported
from kvpolicy_sglang.hooks import HookSet

from tests.inside.activation import activate
from tests.tables import features_table, printed

DOCS = Path(__file__).resolve().parents[3] / "docs/sglang.md"
PLAIN: dict[str, Any] = {"attention_backend": "flashinfer", "kv_cache_dtype": "auto", "dcp_size": 1, "page_size": 16}


class MHATokenToKVPool:
    start_layer = 0

    def __init__(self, slots: int = 64, use_hnd: bool = False) -> None:
        self.use_hnd = use_hnd
        self.side = torch.zeros(slots, 2, 4)

    def get_kv_buffer(self, _layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.side, self.side


class NoOpMHATokenToKVPool(MHATokenToKVPool):
    pass


class FlashInferAttnBackend(SimpleNamespace):
    pass


class OtherBackend(FlashInferAttnBackend):
    pass


class Decode:
    def call_begin_forward(self, wrapper: Any, something_new: Any) -> None: ...


def backend(kind: type = FlashInferAttnBackend, **facts: Any) -> Any:
    table = SimpleNamespace(req_to_token=torch.zeros((2, 64), dtype=torch.int32))
    plain = {"token_to_kv_pool": MHATokenToKVPool(), "page_size": 16, "num_wrappers": 1, "req_to_token_pool": table}
    return kind(**{**plain, **facts})


CASES: list[tuple[str, dict[str, Any], Any]] = [
    ("another attention backend", {"attention_backend": "fa3"}, None),
    ("another attention backend", {"attention_backend": None}, None),
    ("another attention backend", {"decode_attention_backend": "triton"}, None),
    ("speculative decoding", {"speculative_algorithm": "EAGLE"}, None),
    ("deterministic inference", {"enable_deterministic_inference": True}, None),
    ("a KV dtype with scales of its own", {"kv_cache_dtype": "nvfp4"}, None),
    ("multi-item scoring", {"enable_mis": True}, None),
    ("diffusion language models", {"dllm_algorithm": "LowConfidence"}, None),
    ("torch.compile", {"enable_torch_compile": True}, None),
    ("page-major layout", {"enable_page_major_kv_layout": True}, None),
    ("sharded pages and decode context parallelism", {"dcp_size": 2}, None),
    ("a unified memory pool", {"enable_unified_memory": True}, None),
    ("a unified memory pool", {}, {"kv_index_translator": SimpleNamespace(is_translating=True)}),
    ("sliding windows and cross attention", {}, {"num_wrappers": 2}),
    ("another pool", {}, {"token_to_kv_pool": NoOpMHATokenToKVPool()}),
    ("another pool", {}, {"token_to_kv_pool": MHATokenToKVPool(use_hnd=True)}),
    ("another pool", {}, {"token_to_kv_pool": MHATokenToKVPool(slots=65)}),
    ("a FlashInfer backend of its own", {}, {"kind": OtherBackend}),
    ("another SGLang", {}, {"indices_updater_decode": Decode()}),
]


@pytest.mark.parametrize(("feature", "arguments", "facts"), CASES, ids=lambda value: str(value)[:40])
def test_what_keeps_plans_by_tokens(feature: str, arguments: dict[str, Any], facts: dict[str, Any] | None) -> None:
    made = None if facts is None else backend(**facts)
    verdict = supported(SimpleNamespace(**{**PLAIN, **arguments}), made)
    assert (verdict.kind, verdict.section) == ("stock", SECTION)
    assert f"the policy's {SECTION} does not work with {feature} (" in verdict.message


def test_what_is_planned_by_pages() -> None:
    arguments = {**PLAIN, "kv_cache_dtype": "fp8_e4m3", "tp_size": 2, "enable_hierarchical_cache": True}
    assert supported(SimpleNamespace(**arguments), backend()).kind == "supported"
    both = {"attention_backend": "fa3", "prefill_attention_backend": "flashinfer"}
    assert phases(SimpleNamespace(**both)) == {"fa3", "flashinfer"}
    both["decode_attention_backend"] = "flashinfer"
    assert supported(SimpleNamespace(**{**PLAIN, **both})).kind == "supported"


@pytest.mark.parametrize("fault", [RuntimeError("no compiler"), None])
def test_a_kernel_that_is_wrong_does_not_serve(monkeypatch: pytest.MonkeyPatch, fault: Exception | None) -> None:
    def write(*_args: Any, indices: torch.Tensor, **_kwargs: Any) -> None:
        if fault is not None:
            raise fault
        indices.fill_(3)

    monkeypatch.setattr(attention_pages, "write_page_plan", write)
    verdict = supported(SimpleNamespace(**PLAIN), backend())
    assert "does not work with this machine's Triton" in verdict.message


def test_every_row_has_a_case_here() -> None:
    tried = {name for name, _, _ in CASES} | {"this machine's Triton"}
    assert {feature.name for feature in FEATURES if feature.kind == "stock"} == tried


def test_the_documentation_prints_this_table() -> None:
    assert printed(DOCS, "page plans") == features_table(FEATURES)


def pages(on_conflict: str = "error", is_native: bool = True) -> attention_pages_hooks.Pages:
    section = {"attention": "flashinfer", "page_native": is_native}
    return attention_pages_hooks.Pages(activate("sglang", None, on_conflict, backend=section), HookSet())


def scheduler(page_tokens: int) -> Any:
    runner = SimpleNamespace(attn_backend=OtherBackend())
    allocator = SimpleNamespace(page_size=page_tokens)
    return SimpleNamespace(token_to_kv_pool_allocator=allocator, tp_worker=SimpleNamespace(model_runner=runner))


def test_a_launcher_refuses_what_its_arguments_rule_out() -> None:
    said = attention_pages_hooks.refused(pages().active, SimpleNamespace(**{**PLAIN, "attention_backend": "triton"}))
    assert said is not None
    assert f"conflict: {SECTION}: the policy's {SECTION} does not work with another attention backend" in said
    assert attention_pages_hooks.refused(pages().active, SimpleNamespace(**PLAIN)) is None
    other = SimpleNamespace(attention_backend="triton")
    assert attention_pages_hooks.refused(pages("warn").active, other) is None
    assert attention_pages_hooks.refused(pages(is_native=False).active, other) is None


def test_what_wins_is_said_and_stands_in_the_status() -> None:
    found = pages("warn")
    found.install(SimpleNamespace(**{**PLAIN, "enable_mis": True}))
    found.require_built(scheduler(16))
    (conflict,) = found.active.conflicts
    assert conflict.winner == "--enable-mis"
    assert "attention is planned by tokens" in conflict.message
    setting = found.active.settings[SECTION]
    assert (setting.requested, setting.effective, setting.decided_by) == (True, False, "--enable-mis")
    with pytest.raises(SystemExit, match="multi-item scoring"):
        pages().install(SimpleNamespace(**{**PLAIN, "enable_mis": True}))


def test_at_a_page_size_of_one_there_is_nothing_to_do() -> None:
    found = pages()
    found.install(SimpleNamespace(**{**PLAIN, "page_size": 1}))
    assert found.hooks.targets == []
    found.require_built(scheduler(1))
    setting = found.active.settings[SECTION]
    assert (setting.effective, setting.decided_by) == (True, "page size 1: a page is a token")


def test_without_the_word_nothing_is_hooked_or_said() -> None:
    found = pages(is_native=False)
    found.install(SimpleNamespace(**PLAIN))
    found.require_built(scheduler(16))
    assert (found.hooks.targets, found.active.settings, found.active.conflicts) == ([], {}, [])
