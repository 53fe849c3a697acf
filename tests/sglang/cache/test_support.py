"""The table of engine features: what each configuration gets, in words, and that the documentation says the same."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kvpolicy_sglang.cache_support import FEATURES, NO_WATERMARK, Needs, supported, watermark_supported

from kvpolicy.runtime.support import refusal
from tests.inside.activation import activate
from tests.tables import features_table, printed

DOCS = Path(__file__).resolve().parents[3] / "docs/sglang.md"

PLAIN: dict[str, Any] = {
    "disable_radix_cache": False,
    "radix_cache_backend": None,
    "enable_hierarchical_cache": False,
    "enable_session_radix_cache": False,
    "enable_streaming_session": False,
    "disaggregation_mode": "null",
    "enable_lmcache": False,
    "enable_flexkv": False,
    "dllm_algorithm": None,
    "tokenizer_worker_num": 1,
    "enable_lora": None,
    "speculative_algorithm": None,
    "dp_size": 1,
    "tp_size": 1,
    "pp_size": 1,
}


class _Full(Enum):
    """Stands for the engine's ComponentType, whose members are told by name."""

    FULL = 1


class PageInterleavePoolAllocator:
    """Stands for the engine's class of that name, which is how it is recognised."""


def context(**facts: Any) -> SimpleNamespace:
    plain = {
        "is_hybrid_swa": False,
        "is_hybrid_ssm": False,
        "enable_hierarchical_cache": False,
        "disable_radix_cache": False,
        "params": SimpleNamespace(token_to_kv_pool_allocator=object()),
    }
    return SimpleNamespace(**{**plain, **facts})


CASES = [
    ("several tokenizer workers", {"tokenizer_worker_num": 4}, {}, "refused"),
    ("prefix cache off", {"disable_radix_cache": True}, {}, "stock"),
    ("prefix cache off", {}, {"disable_radix_cache": True}, "stock"),
    ("another prefix cache", {"radix_cache_backend": "flexkv"}, {}, "stock"),
    ("hierarchical cache", {"enable_hierarchical_cache": True}, {}, "stock"),
    ("sliding-window attention", {}, {"is_hybrid_swa": True}, "stock"),
    ("Mamba and linear attention", {}, {"is_hybrid_ssm": True}, "stock"),
    ("session-aware cache with rules, a score or tenants", {"enable_session_radix_cache": True}, {}, "stock"),
    ("streaming sessions", {"enable_streaming_session": True}, {}, "stock"),
    ("prefill/decode disaggregation", {"disaggregation_mode": "prefill"}, {}, "stock"),
    ("prefill/decode disaggregation", {"disaggregation_mode": "decode"}, {}, "stock"),
    ("external KV stores", {"enable_lmcache": True}, {}, "stock"),
    ("external KV stores", {"enable_flexkv": True}, {}, "stock"),
    ("diffusion language models", {"dllm_algorithm": "LowConfidence"}, {}, "stock"),
    (
        "pages sharded over GPUs",
        {},
        {"params": SimpleNamespace(token_to_kv_pool_allocator=PageInterleavePoolAllocator())},
        "stock",
    ),
    (
        "another plugin's cache component",
        {},
        {"params": SimpleNamespace(component_registry_override={_Full.FULL: object})},
        "stock",
    ),
    ("session-aware cache with a built-in order", {}, {}, "supported"),
    ("LoRA", {"enable_lora": True}, {}, "supported"),
    ("speculative decoding", {"speculative_algorithm": "EAGLE"}, {}, "supported"),
    ("data parallelism, DP attention", {"dp_size": 2}, {}, "supported"),
    ("tensor parallelism", {"tp_size": 2}, {}, "supported"),
    ("pipeline parallelism", {"pp_size": 2}, {}, "supported"),
    ("sessions", {}, {}, "supported"),
    ("chunked prefill and overlap scheduling", {}, {}, "supported"),
]
ONLY_BY_ENVIRONMENT = {"the C++ tree", "the embedded Rust server"}


@pytest.mark.parametrize(("name", "flags", "facts", "kind"), CASES)
def test_each_feature_gets_its_verdict(name: str, flags: dict[str, Any], facts: dict[str, Any], kind: str) -> None:
    verdict = supported(SimpleNamespace(**{**PLAIN, **flags}), context(**facts), Needs(time=True, metadata=True))
    assert verdict.kind == kind
    feature = next(feature for feature in FEATURES if feature.name == name)
    assert feature.kind == kind
    if kind != "supported":
        assert name in verdict.message
        assert feature.flag in verdict.message


def test_every_row_has_a_case() -> None:
    assert {feature.name for feature in FEATURES} == {case[0] for case in CASES} | ONLY_BY_ENVIRONMENT


def test_the_launcher_asks_before_anything_is_built() -> None:
    assert supported(SimpleNamespace(**PLAIN)).kind == "supported"
    assert supported(SimpleNamespace(**{**PLAIN, "enable_hierarchical_cache": True})).kind == "stock"


def test_a_built_in_order_goes_with_session_references_where_the_engine_counts_them() -> None:
    """Told in a scheduler by the engine's own class; there is none in this process, hence the conflict."""
    sessions = SimpleNamespace(**{**PLAIN, "enable_session_radix_cache": True})
    assert supported(sessions, None, Needs()).kind == "supported"
    assert supported(sessions, context(), Needs()).kind == "stock"
    assert supported(sessions, None, Needs(metadata=True)).kind == "stock"


def test_a_policy_without_time_may_have_many_tokenizers() -> None:
    assert (
        supported(SimpleNamespace(**{**PLAIN, "tokenizer_worker_num": 4}), None, Needs(time=False)).kind == "supported"
    )


def test_a_policy_that_leaves_eviction_alone_conflicts_with_nothing() -> None:
    assert (
        supported(SimpleNamespace(**{**PLAIN, "disable_radix_cache": True}), None, Needs(index=False)).kind
        == "supported"
    )


class TokenToKVPoolAllocator:
    """Stands for the engine's class of that name and module, which is how a plain pool is recognised."""

    __module__ = "sglang.srt.mem_cache.allocator.token"


class OfAPlugin(TokenToKVPoolAllocator):
    """A subclass that another module makes of it keeps its pool."""


def of(allocator: object, **facts: Any) -> SimpleNamespace:
    return context(params=SimpleNamespace(token_to_kv_pool_allocator=allocator), **facts)


@pytest.mark.parametrize(("name", "flags", "facts", "kind"), CASES)
def test_watermarks_go_with_what_has_one_pool(
    name: str, flags: dict[str, Any], facts: dict[str, Any], kind: str
) -> None:
    ctx = context(**facts) if "params" in facts else of(TokenToKVPoolAllocator(), **facts)
    if name == "another plugin's cache component":
        ctx.params.token_to_kv_pool_allocator = TokenToKVPoolAllocator()
    verdict = watermark_supported(SimpleNamespace(**{**PLAIN, **flags}), ctx)
    assert (verdict.kind == "stock") == (name in NO_WATERMARK)
    assert verdict.kind == "supported" or (verdict.section == "allocator.watermark" and name in verdict.message)
    assert {*NO_WATERMARK} <= {feature.name for feature in FEATURES if feature.kind == "stock"}


def test_watermarks_need_an_allocator_of_one_pool() -> None:
    plain = SimpleNamespace(**PLAIN)
    assert watermark_supported(plain).kind == "supported", "a launcher knows none yet"
    assert watermark_supported(plain, of(OfAPlugin())).kind == "supported"
    other = type("SWATokenToKVPoolAllocator", (), {"__module__": "sglang.srt.mem_cache.allocator.swa"})
    verdict = watermark_supported(plain, of(other()))
    assert (verdict.kind, verdict.winner) == ("stock", "SWATokenToKVPoolAllocator")
    said = refusal(activate("sglang", None, allocator={"watermark": {"low": "1%", "high": "2%"}}), verdict)
    assert said is not None
    assert "conflict: allocator.watermark: the policy's watermarks do not work with" in said


def test_the_documentation_lists_what_watermarks_do_not_go_with() -> None:
    listed = " ".join(DOCS.read_text().split("It does not go with: ")[1].split(". There")[0].split()).split(", ")
    assert listed == [*NO_WATERMARK]


def test_the_documentation_prints_this_table() -> None:
    assert printed(DOCS, "features") == features_table(FEATURES)


def test_a_refusal_names_the_policy_and_the_ways_out() -> None:
    rules = {"rules": [{"name": "a", "retain": {"weight": 2, "ttl": "60s"}}]}
    stock = supported(SimpleNamespace(**{**PLAIN, "enable_hierarchical_cache": True}))
    refused = supported(SimpleNamespace(**{**PLAIN, "tokenizer_worker_num": 2}), None, Needs(time=True))
    said = refusal(activate("sglang", rules), stock)
    assert said is not None
    assert said.splitlines()[0] == "kvpolicy: test.yaml: the policy cannot be honoured:"
    assert "on_conflict: warn" in said
    assert refusal(activate("sglang", rules, on_conflict="warn"), stock) is None
    said = refusal(activate("sglang", rules, on_conflict="warn"), refused)
    assert said is not None
    assert "on_conflict" not in said  # would not help


@pytest.mark.engine
def test_the_rust_server_is_refused_only_where_time_is_needed(in_engine: Callable[..., list[dict[str, Any]]]) -> None:
    """It takes requests in without the tokenizer process that stamps them."""
    script = "rust_server.py"
    (on,) = in_engine("0.5.20", script, SGLANG_RUST_SERVER="1")
    assert on == {"time": "refused", "no time": "supported"}
    (off,) = in_engine("0.5.20", script)
    assert off == {"time": "supported", "no time": "supported"}
