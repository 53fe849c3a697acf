"""The table of what a cascade works with: what each configuration gets, and that it is printed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kvpolicy_sglang import attention_cascade_hooks
from kvpolicy_sglang.attention_cascade_support import FEATURES, SECTION, supported
from kvpolicy_sglang.hooks import HookSet

from tests.inside.activation import activate
from tests.tables import features_table, printed

DOCS = Path(__file__).resolve().parents[3] / "docs/sglang.md"
PLAIN: dict[str, Any] = {"attention_backend": "flashinfer", "kv_cache_dtype": "auto", "dcp_size": 1}


class FlashInferAttnBackend(SimpleNamespace):
    pass


class OtherBackend(SimpleNamespace):
    pass


CASES: list[tuple[str, dict[str, Any], Any]] = [
    ("another attention backend", {"attention_backend": "fa3"}, None),
    ("another attention backend", {"attention_backend": None}, None),
    ("another attention backend", {"decode_attention_backend": "triton"}, None),
    ("latent attention, sliding windows and cross attention", {}, FlashInferAttnBackend(num_wrappers=2)),
    ("latent attention, sliding windows and cross attention", {}, OtherBackend()),
    ("int8 and int4 KV", {"kv_cache_dtype": "int8_per_token_head"}, None),
    ("4-bit KV", {"kv_cache_dtype": "nvfp4"}, None),
    ("speculative decoding and diffusion language models", {"speculative_algorithm": "EAGLE"}, None),
    ("speculative decoding and diffusion language models", {"dllm_algorithm": "LowConfidence"}, None),
    ("LoRA", {"enable_lora": True}, None),
    ("deterministic inference", {"enable_deterministic_inference": True}, None),
    ("two-batch overlap and PD multiplexing", {"enable_pdmux": True}, None),
    ("data-parallel attention and decode context parallelism", {"enable_dp_attention": True}, None),
    ("data-parallel attention and decode context parallelism", {"dcp_size": 2}, None),
    ("HiSparse", {"enable_hisparse": True}, None),
    (
        "a pool behind virtual slots",
        {},
        FlashInferAttnBackend(kv_index_translator=SimpleNamespace(reads_are_translated=True)),
    ),
    ("prefix cache off", {"disable_radix_cache": True}, None),
]


@pytest.mark.parametrize(("feature", "arguments", "backend"), CASES, ids=lambda value: str(value)[:40])
def test_what_keeps_every_prefix_to_itself(feature: str, arguments: dict[str, Any], backend: Any) -> None:
    verdict = supported(SimpleNamespace(**{**PLAIN, **arguments}), backend)
    assert (verdict.kind, verdict.section) == ("stock", SECTION)
    assert f"the policy's {SECTION} does not work with {feature} (" in verdict.message


def test_what_can_cascade() -> None:
    arguments = {**PLAIN, "kv_cache_dtype": "fp8_e4m3", "tp_size": 2, "prefill_attention_backend": "fa3"}
    assert supported(SimpleNamespace(**arguments), FlashInferAttnBackend(num_wrappers=1)).kind == "supported"
    split = {"attention_backend": "fa3", "decode_attention_backend": "flashinfer"}
    assert supported(SimpleNamespace(**{**PLAIN, **split})).kind == "supported"


def test_every_row_has_a_case_here() -> None:
    tried = {name for name, _, _ in CASES}
    assert {feature.name for feature in FEATURES if feature.kind == "stock"} == tried


def test_the_documentation_prints_this_table() -> None:
    assert printed(DOCS, "cascades") == features_table(FEATURES)


def policy(on_conflict: str = "error", cascade: Any = "auto") -> Any:
    return activate("sglang", None, on_conflict, backend={"attention": "flashinfer", "cascade": cascade})


def test_a_launcher_refuses_what_its_arguments_rule_out() -> None:
    other = SimpleNamespace(**{**PLAIN, "attention_backend": "triton"})
    said = attention_cascade_hooks.refused(policy(), other)
    assert said is not None
    assert f"conflict: {SECTION}: the policy's {SECTION} does not work with another attention backend" in said
    assert attention_cascade_hooks.refused(policy(), SimpleNamespace(**PLAIN)) is None
    assert attention_cascade_hooks.refused(policy("warn"), other) is None
    assert attention_cascade_hooks.refused(policy(cascade="off"), other) is None


def test_what_wins_is_said_and_stands_in_the_status() -> None:
    active, hooks = policy("warn"), HookSet()
    assert attention_cascade_hooks.install(active, hooks, SimpleNamespace(**PLAIN, enable_lora=True), dict) is None
    assert hooks.targets == []
    (conflict,) = active.conflicts
    assert conflict.winner == "--enable-lora"
    assert "every request's prefix is read for itself" in conflict.message
    assert active.cascade is not None
    assert (active.cascade.core, active.cascade.cascade_steps) == ("engine", 0)
    with pytest.raises(SystemExit, match="LoRA"):
        attention_cascade_hooks.install(policy(), hooks, SimpleNamespace(**PLAIN, enable_lora=True), dict)


@pytest.mark.parametrize("word", ["off", None])
def test_without_the_word_nothing_is_hooked(word: str | None) -> None:
    active, hooks = policy(cascade=word), HookSet()
    assert attention_cascade_hooks.install(active, hooks, SimpleNamespace(**PLAIN), dict) is None
    assert (hooks.targets, active.cascade) == ([], None)


@pytest.mark.parametrize(("word", "warns"), [("auto", True), ({"min_shared_tokens": 64, "min_batch": 2}, False)])
def test_a_gpu_that_was_not_measured_is_said(word: Any, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    cascade = attention_cascade_hooks.Cascade(policy(cascade=word), dict)
    updater = SimpleNamespace(num_qo_heads=8, num_kv_heads=2, head_dim=64, data_type=torch.bfloat16)
    table = SimpleNamespace(req_to_token=torch.zeros((2, 64), dtype=torch.int32))
    backend = FlashInferAttnBackend(indices_updater_decode=updater, req_to_token_pool=table, num_wrappers=1)
    arguments, pool = SimpleNamespace(**PLAIN), SimpleNamespace(layer_num=4)
    cascade.settle(SimpleNamespace(attn_backend=backend, server_args=arguments, token_to_kv_pool=pool))
    assert cascade.state.core == "kvpolicy"
    assert ("decides by what an H200 was measured to take, and this is a CPU" in caplog.text) == warns
