"""Our tables against the real thing: every outcome on the matrix, and every pool cell size, per SGLang version.

The engine runs in a child process on this machine's CPU with the device's answers stood in for (see `sglang_probe.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvpolicy.facts import GPUS, Settings, kv_bytes_per_token, model_from_config, resolve_sglang
from kvpolicy.facts.capacity import mem_fraction_static
from kvpolicy.facts.dtypes import canonical
from kvpolicy.facts.engines import parse_version
from kvpolicy.facts.sglang_rules import ARGUMENT_RULES
from tests.conftest import SGLANG_VERSIONS
from tests.facts import probing
from tests.facts.matrix import MODELS, cases

pytestmark = pytest.mark.engine
PROBE = Path(__file__).parent / "sglang_probe.py"


def ask(engine: Any, asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The real engine's answers, in order."""
    given = [{**case, "config": MODELS[case["model"]]} for case in asked]
    return probing.ask(engine, PROBE, given)


@pytest.mark.parametrize("version", SGLANG_VERSIONS)
def test_outcomes_are_the_engines(sglang_env: Callable[..., Any], version: str) -> None:
    release = parse_version(version)
    asked = cases(release)
    wrong = []
    refused = 0
    for case, real in zip(asked, ask(sglang_env(version), asked), strict=True):
        outcome = resolve_sglang(
            Settings(case.get("page_size"), case.get("kv_dtype", "auto"), case.get("attention")),
            version=release,
            gpu=GPUS[case["gpu"]],
            model=model_from_config(MODELS[case["model"]], name=case["model"]),
            rules=ARGUMENT_RULES,
        )
        if "error" in real:
            refused += 1
            if not outcome.refusals:
                wrong.append((case, "we start it", real["error"]))
            continue
        if outcome.refusals:
            wrong.append((case, f"we refuse it: {outcome.refusals[0].rule.name}", real))
            continue
        ours = (
            outcome.page_size,
            "auto" if outcome.kv_dtype_why else outcome.kv_dtype,
            outcome.prefill_attention,
            outcome.decode_attention,
        )
        common = real["attention_backend"]
        theirs = (
            real["page_size"],
            canonical(real["kv_cache_dtype"]),
            real["prefill_attention_backend"] or common,
            real["decode_attention_backend"] or common,
        )
        if ours != theirs:
            wrong.append((case, ours, theirs))
    assert not wrong, "\n".join(map(str, wrong[:20]))
    assert refused > 20, "the matrix holds no deployment that the engine refuses"


@pytest.mark.parametrize("version", SGLANG_VERSIONS)
def test_cell_sizes_are_the_engines(sglang_env: Callable[..., Any], version: str) -> None:
    release = parse_version(version)
    asked = [
        {"model": model, "gpu": gpu, "tp": tp, "cell_dtype": dtype, "kv_dtype": dtype}
        for model in MODELS
        for gpu, tp, dtype in (("h200", 1, "bf16"), ("h200", 2, "fp8_e4m3"), ("b200", 4, "fp8_e4m3"))
    ]
    asked += [
        {"model": model, "gpu": "b200", "tp": 1, "cell_dtype": dtype, "kv_dtype": dtype, "attention": attention}
        for model, dtype, attention in (
            ("llama-3.1-8b", "mxfp8", None),
            ("llama-3.1-8b", "nvfp4", "trtllm_mha"),
            ("llama-3.1-8b", "fp4_mx_block16", "triton"),
            ("gpt-oss-20b", "nvfp4", "trtllm_mha"),
            ("gpt-oss-20b", "mxfp8", None),
            ("deepseek-v2-lite", "fp4_mx_block16", "flashinfer"),
        )
    ]
    asked.sort(key=lambda case: str(case["gpu"]))
    wrong = []
    compared = 0
    for case, real in zip(asked, ask(sglang_env(version), asked), strict=True):
        if "error" in real:
            wrong.append((case, real))
            continue
        ours = kv_bytes_per_token(
            model_from_config(MODELS[case["model"]]),
            case["cell_dtype"],
            version=release,
            tp=case["tp"],
            dsa_raw_layout=case["gpu"] == "b200",
        )
        compared += 1
        if ours.total != pytest.approx(real["cell_size"]):
            wrong.append((case, ours.total, real["cell_size"]))
    assert not wrong, "\n".join(map(str, wrong))
    assert compared == len(asked)


@pytest.mark.parametrize("version", SGLANG_VERSIONS)
def test_memory_share_is_close_to_the_engines(sglang_env: Callable[..., Any], version: str) -> None:
    models = ("llama-3.1-8b", "deepseek-v3")
    asked = [{"model": model, "gpu": gpu} for gpu in ("a100", "h200", "b200") for model in models]
    for case, real in zip(asked, ask(sglang_env(version), asked), strict=True):
        model = model_from_config(MODELS[case["model"]])
        ours = mem_fraction_static(GPUS[case["gpu"]], model, tp=1, chunk_tokens=real["chunked_prefill_size"])
        assert ours == pytest.approx(real["mem_fraction_static"], abs=0.005), case
