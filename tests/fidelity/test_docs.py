"""docs/fidelity.md says the limits that judge, and its pasted report is of the evidence that lies in examples/."""

from __future__ import annotations

import json

import pytest

from kvpolicy.facts.measured import load_measured
from kvpolicy.fidelity.child import MIN_STRIDE_TOKENS
from kvpolicy.fidelity.verdict import LIMITS
from tools.environment import CHECKOUT

PAGE = (CHECKOUT / "docs/fidelity.md").read_text()
EVIDENCE = CHECKOUT / "examples/fidelity/smollm2-135m-fp8_e4m3.json"


@pytest.mark.parametrize("level", LIMITS)
def test_the_limits_are_stated(level: str) -> None:
    limits = LIMITS[level]
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{level}`")]
    kl, agreement, perplexity = f"{limits.kl_mean:g}", f"{limits.top1_agreement:.0%}", f"{limits.perplexity_change:.1%}"
    said = row.replace(" %", "%").replace("+5%", "+5.0%")
    assert f"above {kl} | below {agreement} | above +{perplexity} |" in said


def test_the_report_is_of_the_shipped_evidence() -> None:
    evidence = json.loads(EVIDENCE.read_text())
    for each in evidence["passes"].values():
        found = each["all"]
        line = f"  all {found['tokens']:>25}  {found['kl_mean_nats']:>8.5f}  {found['kl_p99_nats']:>8.5f}"
        assert line in PAGE
    assert f"verdict: {evidence['verdict']['level']}\n" in PAGE
    for reason in evidence["verdict"]["reasons"]:
        assert reason in PAGE
    assert load_measured(str(EVIDENCE)).level == evidence["verdict"]["level"]


def test_the_step_is_stated() -> None:
    assert f"{MIN_STRIDE_TOKENS} tokens, or a page if that is more" in PAGE
