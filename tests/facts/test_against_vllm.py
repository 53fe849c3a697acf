"""Our vLLM tables against the real thing: every outcome on the matrix, and the bytes of a token in a layer.

The engine runs in child processes on this machine's CPU, one a device, with the device's answers stood in for (see
`vllm_probe.py`). The newest releases without a CPU build are compared by their sources: `test_vllm_tables.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvpolicy.facts import GPUS, Settings, model_from_config
from kvpolicy.facts.dtypes import canonical
from kvpolicy.facts.engines import parse_version
from kvpolicy.facts.resolve import Outcome
from kvpolicy.facts.resolve_vllm import compute_dtype, resolve_vllm
from kvpolicy.facts.vllm_backends import engine_dtype_name
from kvpolicy.facts.vllm_blocks import layer_bytes_per_token
from tests.facts import probing
from tests.facts.matrix import MODELS, vllm_cases

pytestmark = pytest.mark.engine
PROBE = Path(__file__).parent / "vllm_probe.py"
VERSION = "0.32.0"
Answers = list[tuple[dict[str, Any], Outcome, dict[str, Any]]]
DEVICES = ("cpu", "t4", "a100", "l40s", "h200", "b200", "rtx5090")


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def answers(vllm_env: Callable[..., Any], device: str) -> Answers:
    """The device's cases, what we make of each, and the real engine's answer to it in its own words."""
    asked = vllm_cases((device,))
    outcomes, given = [ours(case) for case in asked], []
    for case, outcome in zip(asked, outcomes, strict=True):
        words = {**case, "config": MODELS[case["model"]], "skip": list(outcome.skip_layers) if "layers" in case else []}
        if "kv_dtype" in case:
            words["kv_dtype"] = engine_dtype_name(case["kv_dtype"], case.get("attention"))
        given.append(words)
    return list(zip(asked, outcomes, probing.ask(vllm_env(VERSION), PROBE, given), strict=True))


def ours(case: dict[str, Any], version: str = VERSION) -> Outcome:
    return resolve_vllm(
        Settings(case.get("page_size"), case.get("kv_dtype", "auto"), case.get("attention")),
        version=parse_version(version),
        gpu=GPUS[case["gpu"]],
        model=model_from_config(MODELS[case["model"]], name=case["model"]),
        tp=case.get("tp", 1),
        layers=tuple((text, dtype) for text, dtype in case.get("layers", ())),
    )


#: Refused by us and not by vLLM's resolution: what 0.32 computes wrongly on a CPU (`test_silent_dtypes.py` holds the
#: evidence), and MLA layouts asked of other models, which fail later.
SILENT = {"cpu-silent-dtype", "sparse-mla-layout"}


#: The engine's configuration keeps the name it was given: the CPU kernel, or the layer, decides what is stored.
DECIDED_LATER = {"cpu-sixteen-bits", "sparse-layout"}


def test_outcomes_are_the_engines(answers: Answers, device: str) -> None:
    wrong, refused, silent = [], 0, 0
    for case, outcome, real in answers:
        refusals = {refusal.rule.name for refusal in outcome.refusals}
        if "error" in real:
            refused += 1
            if not refusals:
                wrong.append((case, "we start it", real["error"]))
            continue
        if refusals and refusals <= SILENT:
            silent += 1
            continue
        if refusals:
            wrong.append((case, f"we refuse it: {sorted(refusals)}", real))
            continue
        mine = {
            "page_size": outcome.page_size,
            "kernel_page": outcome.kernel_page,
            "kv_dtype": outcome.kv_dtype,
            "attention": outcome.attention,
            "prefix_cache": outcome.prefix_cache,
            "skip": sorted(outcome.skip_layers),
        }
        theirs = {name: real[name] for name in mine}
        theirs["kv_dtype"] = canonical(real["model_dtype"] if real["kv_dtype"] == "auto" else real["kv_dtype"])
        if any(step.rule.name in DECIDED_LATER for step in outcome.steps):
            theirs["kv_dtype"] = mine["kv_dtype"]
        if mine != theirs:
            wrong.append((case, mine, theirs))
    assert not wrong, f"{len(wrong)} of {len(answers)}\n" + "\n".join(map(str, wrong[:20]))
    assert refused > 5, "the matrix holds no deployment that the engine refuses"
    assert silent or device != "cpu"


@pytest.mark.parametrize("device", ["h200", "b200", "cpu"], indirect=True)
def test_token_bytes_are_the_engines(answers: Answers, device: str) -> None:
    wrong, compared = [], 0
    for case, outcome, real in answers:
        others = not set(case) <= {"model", "gpu", "kv_dtype", "tp"}
        if others or "error" in real or outcome.refusals or real["token_bytes"] is None:
            continue
        model = model_from_config(MODELS[case["model"]])
        stored = outcome.kv_dtype if outcome.kv_dtype != "auto" else compute_dtype(model, GPUS[device])
        mine = layer_bytes_per_token(model, stored, tp=case.get("tp", 1))
        compared += 1
        if mine != real["token_bytes"]:
            wrong.append((case, mine, real["token_bytes"]))
    assert not wrong, "\n".join(map(str, wrong[:20]))
    assert compared > 15
