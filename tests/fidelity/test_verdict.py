"""Comparison by position, and the verdict: each limit, each side of it, and what is too small to count."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kvpolicy.fidelity.base import Settings
from kvpolicy.fidelity.comparison import Difference, Run, compare, passes_apart
from kvpolicy.fidelity.verdict import judge

SETTINGS = Settings("sglang", "0.5.23", "cpu", "bf16", "bf16", {}, 1, "triton")
SAME = Difference(1000, 0.0, 0.0, 0.0, 1.0, 10.0, 10.0, 0.0, 0.001, 0.99)


def changed(perplexity_change: float, error: float = 0.0001) -> Difference:
    return replace(SAME, nll_change=math.log1p(perplexity_change), nll_change_error=error)


@pytest.mark.parametrize(
    ("found", "level", "reason"),
    [
        (SAME, "ok", ""),
        (replace(SAME, kl_mean=0.0099), "ok", ""),
        (replace(SAME, kl_mean=0.011), "noticeable", "cached: mean KL 0.0110 nats > 0.01"),
        (replace(SAME, kl_mean=0.11), "bad", "cached: mean KL 0.1100 nats > 0.1"),
        (replace(SAME, top1_agreement=0.971), "ok", ""),
        (replace(SAME, top1_agreement=0.969), "noticeable", "cached: top-1 agreement 96.9% < 97%"),
        (replace(SAME, top1_agreement=0.85), "bad", "cached: top-1 agreement 85.0% < 90%"),
        (changed(0.004), "ok", ""),
        (changed(0.006), "noticeable", "cached: perplexity +0.60% > +0.5%"),
        (changed(0.06), "bad", "cached: perplexity +6.00% > +5.0%"),
        (changed(5164.0), "bad", "cached: perplexity x5,165 > +5.0%"),
        (changed(0.06, error=0.05), "ok", ""),  # within two standard errors of no change
        (changed(-0.2), "ok", ""),  # a lower perplexity is no fault by itself
    ],
)
def test_limits(found: Difference, level: str, reason: str) -> None:
    verdict = judge({"cached": found, "cold": SAME}, SAME)
    assert verdict.level == level
    assert verdict.reasons == ((reason,) if reason else ())


def test_the_worse_pass_decides() -> None:
    verdict = judge({"cached": SAME, "cold": replace(SAME, kl_mean=0.5)}, SAME)
    assert (verdict.level, verdict.reasons) == ("bad", ("cold: mean KL 0.5000 nats > 0.1",))


def test_what_rounding_does_by_itself_is_not_counted() -> None:
    found = replace(SAME, kl_mean=0.02, top1_agreement=0.95)
    assert judge({"cached": found}, SAME).level == "noticeable"
    assert judge({"cached": found}, replace(SAME, kl_mean=0.011, top1_agreement=0.97)).level == "ok"


def run(shift: float, kinds: tuple[str, ...] = ("cold",)) -> Run:
    """One window of 200 tokens over a vocabulary of two; from position 100 on, token 0 loses ``shift`` of its mass."""
    made = Run(SETTINGS, [[0] * 200], 64)
    for kind in kinds:
        rows = []
        for position in range(1, 200):
            p = 0.8 - (shift if position >= 100 else 0)
            rows.append((math.log(p), [0, 1], [math.log(p), math.log(1 - p)]))
        made.add(kind, 0, 0, rows)
    return made


def test_differences_appear_at_their_positions() -> None:
    reference, other = run(0.0), run(0.4)
    whole, buckets = compare(reference.rows["cold"], other.rows["cold"])
    assert [(bucket.first, bucket.end) for bucket in buckets] == [(0, 64), (64, 128), (128, 256)]
    assert [bucket.difference.tokens for bucket in buckets] == [63, 64, 72]
    assert buckets[0].difference.kl_mean == 0
    assert buckets[0].difference.top1_agreement == 1
    nats = 0.8 * math.log(2) + 0.2 * math.log(0.2 / 0.6)
    assert buckets[2].difference.kl_mean == pytest.approx(nats, abs=1e-6)
    assert buckets[2].difference.top1_agreement == 0
    assert buckets[2].difference.perplexity == pytest.approx(1 / 0.4)
    assert buckets[2].difference.perplexity_change == pytest.approx(1.0)
    assert buckets[1].difference.kl_mean == pytest.approx(nats * 28 / 64, abs=1e-6)
    assert whole.tokens == 199
    assert whole.kl_max == pytest.approx(nats, abs=1e-6)
    assert whole.top1_agreement == pytest.approx(99 / 199)
    assert whole.listed_mass == pytest.approx(1)
    assert judge({"cold": whole}, SAME).level == "bad"


def test_only_places_that_both_scored_count() -> None:
    reference, other = run(0.0), run(0.0)
    del other.rows["cold"][0, 7]
    assert compare(reference.rows["cold"], other.rows["cold"])[0].tokens == 198
    with pytest.raises(ValueError, match="no position in common"):
        compare(reference.rows["cold"], {})


def test_rounding_is_what_the_two_passes_of_one_run_differ_by() -> None:
    same = run(0.0, ("cold", "cached"))
    assert passes_apart(same).kl_mean == 0
    same.rows["cached"] = run(0.1).rows["cold"]
    assert passes_apart(same).kl_mean > 0
