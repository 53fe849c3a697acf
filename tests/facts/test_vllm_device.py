"""What vLLM cannot run on a device whatever the model: asked by the adapter at start, and by `check` alike."""

from __future__ import annotations

import pytest

from kvpolicy.facts.gpus import device_traits
from kvpolicy.facts.report import report
from kvpolicy.facts.rules import Field, Value
from kvpolicy.facts.vllm_device import refused_by_device
from tests.facts.test_report import found, policy

CPU, HOPPER, AMPERE = device_traits("cpu"), *(device_traits("cuda", capability_major=major) for major in (9, 8))
OLD, NEW = (0, 28, 0), (0, 32, 0)


@pytest.mark.parametrize(
    ("name", "value", "traits", "version", "reason"),
    [
        ("page_size", 16, CPU, OLD, None),
        ("page_size", 16, CPU, NEW, "no attention backend reads blocks of 16 on this device"),
        ("page_size", 32, CPU, NEW, None),
        ("page_size", 8, HOPPER, NEW, "no attention backend reads blocks of 8 on this device"),
        ("page_size", 16, HOPPER, NEW, None),
        ("kv_dtype", "fp8", CPU, NEW, None),
        ("kv_dtype", "int8_per_token_head", CPU, NEW, "no attention backend stores int8_per_token_head on this device"),
        ("kv_dtype", "nvfp4", HOPPER, OLD, "no attention backend stores nvfp4 on this device"),
        ("kv_dtype", "nvfp4", HOPPER, NEW, None),
        ("kv_dtype", "nvfp4_ds_mla", HOPPER, OLD, "not before vLLM 0.30.0"),
        ("kv_dtype", "fp32", AMPERE, NEW, None),
        ("kv_dtype", "bfloat16", CPU, NEW, None),
        ("attention", "cpu_attn", HOPPER, NEW, "cpu_attn does not run on this device"),
        ("attention", "flashmla", AMPERE, NEW, "flashmla does not run on this device"),
        ("attention", "cpu_mla", CPU, NEW, None),
        ("attention", "no_such", CPU, NEW, "vLLM has no attention backend no_such"),
        ("attention", "auto", CPU, NEW, None),
        ("attention", "flash_attn", device_traits("tpu"), NEW, None),
    ],
)
def test_what_no_backend_takes_is_refused(
    name: Field, value: Value, traits: frozenset[str], version: tuple[int, int, int], reason: str | None
) -> None:
    rule = refused_by_device(name, value, version=version, traits=traits)
    assert (rule and rule.reason) == reason


def test_check_falls_back_as_the_adapter_does() -> None:
    text = "cache: {page_size: {prefer: 16, accept: [16, 32]}}"
    message = found(report(policy(text), engine="vllm==0.32.0", gpu="cpu"), "KVP501").message
    assert message == "page size 32 (asked 16): no attention backend reads blocks of 16 on this device"


def test_check_does_not_fall_back_where_the_adapter_asks_and_the_engine_refuses() -> None:
    """The adapter asks for the first choice that the device can run; what does not fit together ends the start."""
    text = (
        "cache: {kv_dtype: {prefer: fp8_e4m3, accept: [fp8_e4m3, bf16]}}\n"
        "backend: {attention: {prefer: flex_attention, accept: [flex_attention]}}"
    )
    refused = found(report(policy(text), engine="vllm==0.32.0", gpu="h200"), "KVP512")
    assert "does not start with KV dtype fp8_e4m3" in refused.message
    assert refused.help == "bf16 would start"
