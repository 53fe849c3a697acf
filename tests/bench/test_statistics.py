"""A slower side must be found, and equal sides must not: on windows made with known faults, noise and drift."""

from __future__ import annotations

import math
import random

import pytest

from kvpolicy.bench.report import verdict
from kvpolicy.bench.statistics import Ratio, compare

SIGMA = 0.03  # spread of one window, as an engine alone on its machine shows it


def windows(
    rng: random.Random, rounds: int, speed_b: float = 1.0, drift: float = 0.0, sigma: float = SIGMA
) -> tuple[list[float], list[float]]:
    """Tokens/s of A and B in alternating order, on a machine that changes by ``drift`` (a share) a window."""
    sides: dict[str, list[float]] = {"A": [], "B": []}
    speed, level = {"A": 1000.0, "B": 1000.0 * speed_b}, 1.0
    for number in range(rounds):
        weather = rng.gauss(0, 0.2)  # what both sides of a round share
        for side in "AB" if number % 2 == 0 else "BA":
            level *= 1 + drift
            sides[side].append(speed[side] * level * math.exp(weather + rng.gauss(0, sigma)))
    return sides["A"], sides["B"]


def found(*, trials: int = 1000, rounds: int = 6, **faults: float) -> dict[str | None, float]:
    """The share of trials in which each side won."""
    rng, won = random.Random(7), dict.fromkeys(("A", "B", None), 0)
    for _ in range(trials):
        ratio = compare(*windows(rng, rounds, **faults), higher_is_better=True)  # type: ignore[arg-type]
        assert ratio is not None
        won[ratio.winner] += 1
    return {side: count / trials for side, count in won.items()}


@pytest.mark.parametrize("rounds", [2, 3, 6, 12])
def test_equal_sides_differ_in_five_percent(rounds: int) -> None:
    won = found(rounds=rounds, trials=4000)
    assert won["A"] + won["B"] == pytest.approx(0.05, abs=0.012)


@pytest.mark.parametrize(("speed_b", "winner"), [(0.9, "A"), (1.1, "B")])
def test_a_slower_side_is_found(speed_b: float, winner: str) -> None:
    """10 % over windows of 3 %, and a common mode of 20 % that would hide it if rounds were not compared within."""
    won = found(speed_b=speed_b)
    assert won[winner] > 0.97
    assert won["B" if winner == "A" else "A"] == 0


def test_a_machine_that_slows_down_accuses_nobody() -> None:
    """2 % a window: in a fixed order the second side would lose by as much in every round."""
    won = found(drift=-0.02, sigma=0.005)
    assert won["A"] + won["B"] <= 0.05
    rng = random.Random(7)
    fixed = [windows(rng, 1, drift=-0.02, sigma=0.005) for _ in range(6)]  # always A first
    ratio = compare([a[0] for a, _ in fixed], [b[0] for _, b in fixed], higher_is_better=True)
    assert ratio is not None
    assert ratio.winner == "A", "the fault that alternating order is for"


def test_what_would_have_shown_is_about_what_shows() -> None:
    rng = random.Random(3)
    ratio = compare(*windows(rng, 6), higher_is_better=True)
    assert ratio is not None
    assert ratio.winner is None
    a, b = windows(random.Random(3), 6)
    larger = compare(a, [value / ratio.value * ratio.seen_from * 1.001 for value in b], higher_is_better=True)
    smaller = compare(a, [value / ratio.value * ratio.seen_from * 0.999 for value in b], higher_is_better=True)
    assert larger is not None
    assert smaller is not None
    assert (larger.winner, smaller.winner) == ("B", None)


def test_the_interval_by_hand() -> None:
    """Three rounds with ratios 1.1, 1.2, 1.3: mean and half width in logarithms, t = 4.3027."""
    logs = [math.log(x) for x in (1.1, 1.2, 1.3)]
    mean = sum(logs) / 3
    half = 4.3027 * math.sqrt(sum((x - mean) ** 2 for x in logs) / 2) / math.sqrt(3)
    for a, b, higher in (([10, 10, 10], [11, 12, 13], True), ([11, 12, 13], [10, 10, 10], False)):
        ratio = compare(a, b, higher_is_better=higher)
        assert ratio is not None
        assert ratio.value == pytest.approx(math.exp(mean))
        assert (ratio.low, ratio.high) == pytest.approx((math.exp(mean - half), math.exp(mean + half)))
        assert ratio.rounds == 3


def test_nothing_is_said_of_nothing() -> None:
    assert compare([1.0], [2.0], higher_is_better=True) is None, "one round shows no noise"
    assert compare([1.0, 0.0], [2.0, 2.0], higher_is_better=True) is None
    assert compare([1.0, math.nan], [2.0, 2.0], higher_is_better=True) is None
    with pytest.raises(ValueError, match="one value of each side"):
        compare([1.0], [2.0, 2.0], higher_is_better=True)


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (Ratio(1.08, 1.03, 1.13, 6), "B is faster: 1.08x [1.03, 1.13] by output tokens/s."),
        (Ratio(0.8, 0.7, 0.9, 6), "A is faster: 1.25x [1.11, 1.43] by output tokens/s."),
        (Ratio(1.02, 0.97, 1.07, 6), "No difference larger than noise: B 1.02x [0.97, 1.07] by output tokens/s. "
         "One of 1.05x would have shown; more rounds, or longer windows, show smaller ones."),
        (Ratio(1.0, 1e-9, 1e9, 2), "No difference larger than noise: B 1.00x [0.00, >100] by output tokens/s. "
         "These show next to nothing; more rounds, or longer windows, show smaller ones."),
        (None, "No verdict: output tokens/s was not measured on both sides in at least two rounds."),
    ],
)  # fmt: skip
def test_verdicts(ratio: Ratio | None, words: str) -> None:
    assert verdict(ratio, "output tokens/s") == words
