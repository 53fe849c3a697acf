"""vLLM 0.32 on a CPU takes KV dtypes that its CPU kernels cannot read: run for real, told apart from rounding."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.programs import Program

PROBE = Path(__file__).parent / "vllm_dtype_probe.py"
VERSION = "0.32.0"
#: The CPU's own refusal where quantized names get no further.
NO_AVX512 = "requires x86 with AVX-512 or AMX"


def ask(engine: Any, model: Path, compute: str, *dtypes: str) -> dict[str, dict[str, Any]]:
    program = Program(engine, PROBE, model, compute, *dtypes)
    program.told()
    answers = [json.loads(line) for line in program.log.splitlines() if line.startswith("{")]
    assert [answer["kv_dtype"] for answer in answers] == list(dtypes), program.log[-2000:]
    return {answer["kv_dtype"]: answer for answer in answers}


def apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Total variation of the next token's distributions."""
    return 0.5 * sum(abs(a - b) for a, b in zip(one["next"], other["next"], strict=True))


@pytest.mark.engine
def test_sixteen_bits_under_float32_are_misread(vllm_env: Callable[..., Any], tiny_model: Path) -> None:
    engine = vllm_env(VERSION)
    float32 = ask(engine, tiny_model, "float32", "auto", "bfloat16", "nvfp4", "int8_per_token_head", "fp8_e4m3")
    bfloat16 = ask(engine, tiny_model, "bfloat16", "auto", "bfloat16", "float16")
    assert float32["auto"]["cached_tokens"] == 384
    rounding = apart(float32["auto"], bfloat16["auto"])
    assert 0 < rounding < 0.001
    assert apart(float32["auto"], float32["bfloat16"]) > 10 * rounding
    for name in ("bfloat16", "float16"):
        assert apart(bfloat16["auto"], bfloat16[name]) == 0, "a 16-bit model's own dtype is stored under either name"
    for name in ("nvfp4", "int8_per_token_head"):
        if "error" in float32[name]:  # an old CPU refuses every quantized name, fp8 included
            assert NO_AVX512 in float32[name]["error"]
            assert NO_AVX512 in float32["fp8_e4m3"]["error"]
        else:
            assert apart(float32["auto"], float32[name]) > 5 * apart(float32["auto"], float32["fp8_e4m3"])
