"""What expressions mean, by example: numbers, absence, text, parameters."""

from __future__ import annotations

import math
import sys

import pytest

from kvpolicy.eviction.base import PolicyClock, RequestInfo, UnitMeta
from kvpolicy.language.expressions import compile_admit, compile_match, compile_score

MAX = sys.float_info.max


def unit(**changes: object) -> UnitMeta:
    meta = UnitMeta(
        size_tokens=16, depth_tokens=4000, birth_seq=3, birth_ms=5_000, touch_seq=7, touch_ms=9_000, order=0
    )
    for name, value in changes.items():
        setattr(meta, name, value)
    return meta


CLOCK = PolicyClock(request_seq=20, now_ms=69_500)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("hits", 0.0),
        ("size_tokens", 16.0),
        ("depth_tokens", 4000.0),
        ("idle_requests", 13.0),
        ("age_requests", 17.0),
        ("idle_s", 60.5),
        ("age_s", 64.5),
        ("reuse_gap_s", 0.0),
        ("request.priority", 0.0),
        ("1 if is_output else 2", 2.0),
        ("2 ** 10", 1024.0),
        ("-2 ** 2", -4.0),
        ("7 // 2", 3.0),
        ("-7 // 2", -4.0),
        ("-7 % 3", 2.0),
        ("+3", 3.0),
        ("1_000", 1000.0),
        ("floor(-2.5)", -3.0),
        ("ceil(-2.5)", -2.0),
        ("abs(1 - 3)", 2.0),
        ("sqrt(16)", 4.0),
        ("exp(0)", 1.0),
        ("log(1)", 0.0),
        ("log1p(0)", 0.0),
        ("min(3, 1, 2)", 1.0),
        ("max(3, 1, 2)", 3.0),
        ("clamp(5, 1, 3)", 3.0),
        ("clamp(0, 1, 3)", 1.0),
        ("clamp(2, 3, 1)", 1.0),
        ("1 if 1 < 2 < 3 else 0", 1.0),
        ("1 if 1 < 3 < 2 else 0", 0.0),
        ("1 if hits in (0, 5) else 2", 1.0),
        ("1 if hits in [-1] else 2", 2.0),
        ("1 if hits not in (1,) else 2", 1.0),
        ("1 if (is_output == False) else 2", 1.0),
        ("log1p(hits) / (1 + idle_requests)", 0.0),
        ("depth_tokens - 0.1 * idle_s", 4000 - 0.1 * 60.5),
    ],
)
def test_values(text: str, value: float) -> None:
    assert compile_score(text).evaluate(unit(), CLOCK) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # Division: the limit from above; 0/0 is 0.
        ("1 / hits", MAX),
        ("-1 / hits", -MAX),
        ("hits / hits", 0.0),
        ("1 // hits", MAX),
        ("5 % hits", 0.0),
        ("depth_tokens / reuse_gap_s", MAX),
        ("1 / (1 / hits)", 1 / MAX),
        # Logarithms at and below the pole; roots of negative numbers.
        ("log(hits)", -745.0),
        ("log(hits - 5)", -745.0),
        ("log1p(hits - 1)", -745.0),
        ("log1p(hits - 9)", -745.0),
        ("sqrt(hits - 4)", 0.0),
        # Powers.
        ("hits ** hits", 1.0),
        ("hits ** (hits - 1)", MAX),
        ("(hits - 8) ** 0.5", 0.0),
        ("(hits - 2) ** 3", -8.0),
        ("10.0 ** depth_tokens", MAX),
        ("(hits - 10) ** (depth_tokens + 1)", -MAX),
        ("(hits - 10) ** depth_tokens", MAX),
        ("0.5 ** depth_tokens", 0.0),
        # Overflow stays finite, in between as at the end: not inf - inf.
        ("exp(depth_tokens)", MAX),
        ("-exp(depth_tokens)", -MAX),
        ("exp(depth_tokens) - exp(depth_tokens)", 0.0),
        ("exp(depth_tokens) + exp(depth_tokens)", MAX),
        ("exp(depth_tokens) * exp(depth_tokens)", MAX),
        ("1e300 * depth_tokens * 1e300 * 1e-300", MAX * 1e-300),
        ("floor(exp(depth_tokens))", MAX),
        ("1 / (1 + 1e300 * depth_tokens * depth_tokens * 1e300)", 1 / MAX),
    ],
)
def test_every_operation_has_a_finite_result(text: str, value: float) -> None:
    got = compile_score(text).evaluate(unit(), CLOCK)
    assert got == value
    assert math.isfinite(got)


@pytest.mark.parametrize(
    ("text", "absent", "low", "high"),  # request.priority None, -1, 5
    [
        ("request.priority < 0", False, True, False),
        ("request.priority >= 0", False, False, True),
        ("request.priority != 5", False, True, False),
        ("not (request.priority == 5)", True, True, False),
        ("request.priority == request.priority", False, True, True),
        ("-9 < request.priority < 9", False, True, True),
        ("request.priority in (5, 6)", False, False, True),
        ("request.priority not in (5, 6)", False, True, False),
        ("request.priority is None", True, False, False),
        ("request.priority is not None", False, True, True),
        # In arithmetic an absent priority counts as 0.
        ("request.priority + 0 >= 0", True, False, True),
        ("-request.priority > 0", False, True, False),
        ("max(request.priority, -3) == 0", True, False, False),
    ],
)
def test_absent_priority(text: str, absent: bool, low: bool, high: bool) -> None:
    for priority, expected in ((None, absent), (-1, low), (5, high)):
        assert compile_match(text).evaluate(unit(priority=priority), CLOCK) is expected
        assert compile_admit(text).evaluate(RequestInfo(priority=priority), 1, 1) is expected


@pytest.mark.parametrize(
    ("text", "none", "a", "c"),  # request.cache_salt None, "a", "c"; request.lora is "a"
    [
        ('request.cache_salt == "a"', False, True, False),
        ('request.cache_salt != "a"', False, False, True),
        ('"a" == request.cache_salt', False, True, False),
        ('request.cache_salt in ("a", "b")', False, True, False),
        ('request.cache_salt not in ("a", "b")', False, False, True),
        ("request.cache_salt is None", True, False, False),
        ("request.cache_salt == request.lora", False, True, False),
        ("request.cache_salt != request.lora", False, False, True),
        ("request.session_id == request.session_id", False, False, False),
        ('request.cache_salt is None or request.cache_salt == "c"', True, False, True),
    ],
)
def test_text(text: str, none: bool, a: bool, c: bool) -> None:
    for salt, expected in ((None, none), ("a", a), ("c", c)):
        assert compile_match(text).evaluate(unit(cache_salt=salt, lora="a"), CLOCK) is expected
        assert compile_admit(text).evaluate(RequestInfo(cache_salt=salt, lora="a"), 1, 1) is expected


def test_text_is_compared_as_written() -> None:
    odd = "né'{__import__}%s🎈"
    match = compile_match(f'request.cache_salt == "{odd}"')
    assert match.evaluate(unit(cache_salt=odd), CLOCK)
    assert not match.evaluate(unit(cache_salt=odd + " "), CLOCK)


def test_the_policy_of_the_documentation() -> None:
    match = compile_match("depth_tokens <= 4096 and hits >= 3\n")
    assert match.fields == {"depth_tokens", "hits"}
    assert match.evaluate(unit(hits=3), CLOCK)
    assert not match.evaluate(unit(hits=2), CLOCK)
    assert not match.needs_time
    assert compile_match("reuse_gap_s < 60").needs_time
    admit = compile_admit("request.priority < 0 or depth_tokens - size_tokens < 64")
    assert admit.evaluate(RequestInfo(), 100, 50)
    assert not admit.evaluate(RequestInfo(), 100, 20)


def test_params_are_numbers_by_name() -> None:
    score = compile_score(
        "weight * hits - idle_s / half_life_s", params={"weight": 8, "half_life_s": 600.0, "unused": "x"}
    )
    assert score.evaluate(unit(hits=2), CLOCK) == 16 - 60.5 / 600
    assert score.score_class == "decay"
    assert score.fields == {"hits", "idle_s"}


def test_constants_are_folded() -> None:
    assert compile_score("hits * (2 + 3) * 1").cost == compile_score("hits * 5 * 1").cost
    assert compile_score("idle_s if 1 > 2 else hits").score_class == "stable"
    assert compile_match("True or hits > 3").fields == frozenset()


def test_one_code_object_without_calls_where_none_are_needed() -> None:
    score = compile_score("hits / (1 + idle_requests)")
    names = set(score.evaluate.__code__.co_names)
    assert names == {"hits", "request_seq", "touch_seq", "slow", "ArithmeticError", "TypeError", "ValueError"}


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("hits >= 1", ()),
        ("depth_tokens <= 64 and hits >= 2", (64, 65)),
        ("32 < depth_tokens <= 96 or hits == 0", (32, 33, 96, 97)),
        ("depth_tokens == 48 or not depth_tokens < 100.5", (48, 49, 101)),
        ("depth_tokens > 2 * hits", None),
        ("depth_tokens % 32 == 0", None),
        ("min(depth_tokens, 64) > 32", None),
    ],
)
def test_where_depth_matters_to_a_match(text: str, steps: tuple[int, ...] | None) -> None:
    match = compile_match(text)
    assert match.depth_steps == steps
    for hits in (0, 1, 3):
        outcomes = [match.evaluate(unit(depth_tokens=depth, hits=hits), CLOCK) for depth in range(200)]
        changes = {depth for depth in range(1, 200) if outcomes[depth] is not outcomes[depth - 1]}
        assert steps is None or changes <= set(steps)


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("hits >= 1", True),
        ("hits > 0 and depth_tokens <= 64", True),
        ("depth_tokens <= 64 and (hits == 2 or 3 < hits)", True),
        ("1 <= hits < 9", True),
        ("hits != 0", True),
        ("hits >= 1 or depth_tokens <= 64", False),
        ("hits >= 0", False),
        ("hits < 5", False),
        ("hits == 0", False),
        ("not hits > 0", False),
        ("hits > depth_tokens", False),
        ("2 * hits >= 1", False),  # it does, which its form does not tell
        ("depth_tokens >= 1", False),
    ],
)
def test_matches_that_need_a_hit(text: str, needs: bool) -> None:
    match = compile_match(text)
    assert match.needs_hits is needs
    assert not (needs and match.evaluate(unit(depth_tokens=50, hits=0), CLOCK))
