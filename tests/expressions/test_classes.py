"""Is a score's class true? Every combination of shapes near the edge of what a static key can stand for, on units whose
order is contested, at several later moments; then the hints at touches, on the same shapes."""

from __future__ import annotations

import copy
import itertools
import math
import random

import pytest

from kvpolicy.eviction.base import KeyChange, PolicyClock, UnitMeta
from kvpolicy.language.expressions import CompiledScore, compile_score

CLOCKED = ["idle_requests", "age_requests", "idle_s", "age_s"]
FACTORS = [
    "1",
    "hits",
    "(hits + 1)",
    "-hits",
    "(hits - 3)",
    "size_tokens",
    "-5",
    "request.priority",
    "reuse_gap_s",
    "(8 if is_output else 1)",
    "idle_s",
    "1 / (1 + hits)",
]
CORES = [
    "exp(-{c} / 600)",
    "0.5 ** ({c} / 600)",
    "(1 / {c})",
    "{c}",
    "1 / (1 + {c})",
    "0.99 ** {c}",
    "exp({c} / 900)",
    "exp(hits - {c} / 100)",
    "0.5 ** ({c} / 600 - hits)",
    "(hits - 0.01 * {c})",
]
OUTER = [
    "{x}",
    "log({x})",
    "log1p({x})",
    "sqrt({x})",
    "1 / ({x})",
    "3 - {x}",
    "2 * ({x})",
    "{x} / size_tokens",
    "{x} + hits",
    "{x} - 0.1 * idle_s",
    "abs({x})",
    "({x}) ** 2",
    "({x}) ** -0.5",
    "exp(({x}) / 500)",
    "hits / ({x})",
    "-({x})",
    "({x}) * exp({x})",
    "({x}) / hits",
    "{x} if is_output else 2 * ({x})",
    "{x} if is_output else 5 + {x}",
    "{x} if hits > 4 else {x}",
    "hits - {x}",
    "max({x}, 1)",
    "floor({x})",
    "({x}) * ({x})",
]
SHAPES = [
    outer.format(x=f"{factor} * {core.format(c=clock)}")
    for outer, factor, core, clock in itertools.product(OUTER, FACTORS, CORES, CLOCKED)
]


def unit(rng: random.Random) -> UnitMeta:
    birth_seq, birth_ms = rng.randrange(300), rng.randrange(600_000)
    return UnitMeta(
        size_tokens=rng.choice([1, 16, 17, 64]),
        depth_tokens=rng.randrange(1, 5000),
        birth_seq=birth_seq,
        birth_ms=birth_ms,
        touch_seq=birth_seq + rng.randrange(300),
        touch_ms=birth_ms + rng.randrange(600_000),
        order=0,
        hits=rng.randrange(9),
        reuse_gap_s=rng.choice([0.0, rng.random() * 9]),
        is_output=rng.random() < 0.5,
        priority=rng.choice([None, -2, 0, 3]),
    )


def surely_less(a: float, b: float) -> bool:
    """By more than the rounding of a few operations."""
    return b - a > 1e-9 * max(abs(a), abs(b)) and b - a > 1e-12


def contradictions(score: CompiledScore, one: UnitMeta, other: UnitMeta, clocks: list[PolicyClock]) -> int:
    """Moments at which the keys do not sort as the scores do, or have changed; -1: a key that is not finite."""
    keys = score.key(one, clocks[0]), score.key(other, clocks[0])
    if not all(map(math.isfinite, keys)):
        return -1
    slack = 1e-9 * (1.0 + max(k if (k := abs(x)) < 1e300 else 0.0 for x in keys))
    wrong = 0
    for clock in clocks:
        a, b = score.evaluate(one, clock), score.evaluate(other, clock)
        wrong += (score.key(one, clock), score.key(other, clock)) != keys
        wrong += surely_less(a, b) and not keys[0] < keys[1] + slack
        wrong += surely_less(b, a) and not keys[1] < keys[0] + slack
    return wrong


def touched(before: UnitMeta, clock: PolicyClock, rng: random.Random) -> UnitMeta:
    after = copy.copy(before)
    after.hits += 1
    after.touch_seq, after.touch_ms = clock.request_seq, clock.now_ms
    after.reuse_gap_s = rng.random() * 9
    after.priority = rng.choice([None, -2, 5])
    after.cache_salt = after.session_id = rng.choice([None, "a", "b"])
    return after


@pytest.mark.parametrize("part", range(8))
def test_keys_sort_as_scores_do_and_hints_hold(part: int) -> None:
    rng = random.Random(part)
    classes = {"stable": 0, "decay": 0, "dynamic": 0}
    for text in SHAPES[part::16]:  # every other shape: the parts together take a few seconds
        score = compile_score(text)
        classes[score.score_class] += 1
        if score.score_class == "dynamic":
            continue
        for _ in range(12):
            one, other = unit(rng), unit(rng)
            start = max(one.touch_seq, other.touch_seq), max(one.touch_ms, other.touch_ms)
            clocks = [
                PolicyClock(start[0] + n, start[1] + ms) for n, ms in ((0, 0), (30, 100), (300, 70_000), (900, 900_000))
            ]
            assert contradictions(score, one, other, clocks) == 0, (text, one, other)
            before, after = score.key(one, clocks[2]), score.key(touched(one, clocks[2], rng), clocks[2])
            if score.change == "static":
                assert after == before, text
            elif score.change == "grows":
                assert after >= before - 1e-12 * abs(before), text
    assert classes["decay"] > 100


def test_the_check_finds_a_false_key() -> None:
    """The check above, on a score whose order does change."""
    false = compile_score("hits * exp(-idle_s / 600)")
    true = compile_score("hits / (1 + idle_s)")
    liar = copy.copy(false)
    object.__setattr__(liar, "evaluate", true.evaluate)
    rng = random.Random(0)
    found = 0
    for _ in range(200):
        one, other = unit(rng), unit(rng)
        now = max(one.touch_ms, other.touch_ms)
        found += contradictions(liar, one, other, [PolicyClock(900, now + ms) for ms in (0, 100, 70_000)]) > 0
    assert found > 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hits", "stable grows"),
        ("depth_tokens", "stable static"),
        ("7", "stable static"),
        ("-hits", "stable shrinks"),
        ("reuse_gap_s", "stable shrinks"),
        ("request.priority", "stable shrinks"),
        ("hits * size_tokens", "stable grows"),
        ("log1p(hits) * sqrt(depth_tokens) / size_tokens", "stable grows"),
        ("1 / (1 + hits)", "stable shrinks"),
        ("hits ** 2 - hits", "stable shrinks"),
        ("hits if is_output else 2 * hits", "stable grows"),
        ("3 if hits > 2 else 1", "stable shrinks"),
        ("min(hits, 5) + max(hits, 1)", "stable grows"),
        ("(hits - 9) * hits", "stable shrinks"),
        ("-idle_requests", "decay grows"),
        ("-idle_s", "decay grows"),
        ("-age_s", "decay static"),
        ("idle_s", "decay shrinks"),
        ("log1p(hits) - 0.01 * idle_requests", "decay grows"),
        ("hits * 0.5 ** (idle_s / 600)", "decay grows"),
        ("hits * exp(-idle_s / 600) / size_tokens", "decay grows"),
        ("1 / (1 + idle_s)", "decay grows"),
        ("-size_tokens * exp(-age_s / 60)", "decay static"),
        ("idle_s - idle_s", "decay static"),
        ("exp(log1p(hits) - idle_s / 600)", "decay grows"),
        ("sqrt(age_requests)", "decay static"),
        ("-log1p(idle_s)", "decay grows"),
        ("(8 if is_output else 1) * exp(-idle_s / 600)", "decay grows"),
        ("hits / 2 ** (idle_s / 600)", "decay grows"),
        ("hits - idle_s if is_output else -idle_s", "decay grows"),
        ("log1p(hits) / (1 + idle_requests)", "dynamic dynamic"),
        ("hits / age_requests", "dynamic dynamic"),
        ("(hits - 3) * exp(-idle_s)", "dynamic dynamic"),
        ("hits * idle_s", "dynamic dynamic"),
        ("hits + exp(-idle_s)", "dynamic dynamic"),
        ("log(hits - idle_s)", "dynamic dynamic"),
        ("max(idle_s, 5)", "dynamic dynamic"),
        ("idle_s % 60", "dynamic dynamic"),
        ("1 if idle_s > 60 else 2", "dynamic dynamic"),
        ("exp(-idle_s * hits)", "dynamic dynamic"),
        ("2 ** (hits * idle_s)", "dynamic dynamic"),
        ("hits - idle_s if is_output else -2 * idle_s", "dynamic dynamic"),
        ("1 / (5 - idle_s)", "dynamic dynamic"),
    ],
)
def test_classes_of_well_known_shapes(text: str, expected: str) -> None:
    score = compile_score(text)
    assert f"{score.score_class} {score.change}" == expected
    assert KeyChange(score.change)


def test_a_zero_factor_sorts_below_every_positive_score() -> None:
    score = compile_score("hits * 0.5 ** (idle_s / 600)")
    clock = PolicyClock(10, 10**9)
    never = UnitMeta(1, 1, 0, 0, 10, 10**9, 0, hits=0)
    old = UnitMeta(1, 1, 0, 0, 0, 0, 1, hits=1)
    assert score.evaluate(never, clock) == 0.0
    assert score.key(never, clock) < score.key(old, clock)


def test_a_dynamic_score_has_no_key() -> None:
    score = compile_score("hits / (1 + idle_s)")
    with pytest.raises(ValueError, match="no static key"):
        score.key(UnitMeta(1, 1, 0, 0, 0, 0, 0), PolicyClock())
