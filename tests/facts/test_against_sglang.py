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


Case = dict[str, Any]
Answers = list[tuple[Case, dict[str, Any]]]
CELLS: list[Case] = [
    {"model": model, "gpu": gpu, "tp": tp, "cell_dtype": dtype, "kv_dtype": dtype}
    for model in MODELS
    for gpu, tp, dtype in (("h200", 1, "bf16"), ("h200", 2, "fp8_e4m3"), ("b200", 4, "fp8_e4m3"))
]
CELLS += [
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
SHARES: list[Case] = [
    {"model": model, "gpu": gpu} for gpu in ("a100", "h200", "b200") for model in ("llama-3.1-8b", "deepseek-v3")
]


@pytest.fixture(scope="module", params=SGLANG_VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def answers(sglang_env: Callable[..., Any], version: str) -> dict[str, Answers]:
    """The real engine's answers to all cases, asked in one process: it takes longer to start than to answer."""
    groups = {"outcomes": cases(parse_version(version)), "cells": CELLS, "shares": SHARES}
    asked = [(name, case) for name, group in groups.items() for case in group]
    asked.sort(key=lambda each: str(each[1]["gpu"]))  # the probe becomes each device once
    given = [{**case, "config": MODELS[case["model"]]} for _, case in asked]
    found: dict[str, Answers] = {name: [] for name in groups}
    for (name, case), real in zip(asked, probing.ask(sglang_env(version), PROBE, given), strict=True):
        found[name].append((case, real))
    return found


def test_outcomes_are_the_engines(answers: dict[str, Answers], version: str) -> None:
    release = parse_version(version)
    wrong = []
    refused = 0
    for case, real in answers["outcomes"]:
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


def test_cell_sizes_are_the_engines(answers: dict[str, Answers], version: str) -> None:
    release = parse_version(version)
    wrong = []
    compared = 0
    for case, real in answers["cells"]:
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
    assert compared == len(CELLS)


def test_memory_share_is_close_to_the_engines(answers: dict[str, Answers]) -> None:
    for case, real in answers["shares"]:
        model = model_from_config(MODELS[case["model"]])
        ours = mem_fraction_static(GPUS[case["gpu"]], model, tp=1, chunk_tokens=real["chunked_prefill_size"])
        assert ours == pytest.approx(real["mem_fraction_static"], abs=0.005), case
