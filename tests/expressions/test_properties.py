"""Generated expressions and fuzzed texts: total, equal to the reference, folded without a trace, quickly refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from kvpolicy.eviction.base import PolicyClock, RequestInfo, UnitMeta
from kvpolicy.language.expressions import (
    SCORE_FIELDS,
    CompiledScore,
    ExpressionError,
    compile_admit,
    compile_match,
    compile_score,
)
from kvpolicy.language.expressions.bounds import bounds
from kvpolicy.language.expressions.check import check
from kvpolicy.language.expressions.fields import Field
from kvpolicy.language.expressions.interpret import in_range, interpret
from tests.work import counted

NUMBERS = [name for name, f in SCORE_FIELDS.items() if f.kind.name == "NUMBER"]
QUIET = settings(
    deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large]
)

literals = st.one_of(
    st.integers(0, 9).map(str),
    st.sampled_from(["0.5", "0.001", "600", "4096", "1e6", "1e300", "1e-300", "1.7e308", "9007199254740992"]),
)


def expressions(names: list[str], literals: st.SearchStrategy[str], leaves: int) -> st.SearchStrategy[str]:
    """Numeric expressions; some mix units and do not compile."""
    atoms = st.one_of(literals, st.sampled_from(names))
    texts = st.sampled_from(
        ["is_output", 'request.cache_salt == "a"', 'request.lora in ("a", "b")', "request.priority is None",
         "request.priority < 0", "request.session_id != request.cache_salt", "not is_output"]
    )  # fmt: skip

    def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        compare = st.builds("{} {} {}".format, inner, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), inner)
        test = st.one_of(
            texts, compare, st.builds("({} and {})".format, compare, texts), st.builds("not ({})".format, compare),
            st.builds("({} or {})".format, texts, compare), st.builds("0 < {} <= 3 * {}".format, inner, inner),
        )  # fmt: skip
        return st.one_of(
            st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner),
            st.builds("({} ** {})".format, inner, inner),
            st.builds("(-{})".format, inner),
            st.builds("{}({})".format, st.sampled_from(["abs", "ceil", "exp", "floor", "log", "log1p", "sqrt"]), inner),
            st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), inner, inner),
            st.builds("clamp({}, {}, {})".format, inner, inner, inner),
            st.builds("({} if {} else {})".format, inner, test, inner),
            st.builds("(0.5 * {})".format, inner),
        )

    return st.recursive(atoms, grow, max_leaves=leaves)


any_expression = expressions(NUMBERS, literals, 12)


@st.composite
def units(draw: st.DrawFn, largest: int = 2**53) -> UnitMeta:
    whole = st.one_of(st.integers(0, 9), st.integers(0, min(largest, 900)), st.integers(0, largest))
    text = st.sampled_from([None, "a", "b"])
    birth_seq, birth_ms = draw(whole), draw(whole)
    return UnitMeta(
        size_tokens=max(1, draw(whole)),
        depth_tokens=max(1, draw(whole)),
        birth_seq=birth_seq,
        birth_ms=birth_ms,
        touch_seq=max(birth_seq, draw(whole)),
        touch_ms=max(birth_ms, draw(whole)),
        order=0,
        hits=draw(whole),
        reuse_gap_s=draw(st.one_of(st.just(0.0), st.floats(0.0, float(largest)))),
        is_output=draw(st.booleans()),
        cache_salt=draw(text),
        priority=draw(st.one_of(st.none(), st.integers(-5, 5), st.integers(-largest, largest))),
        session_id=draw(text),
        lora=draw(text),
    )


def later(unit: UnitMeta, requests: int, ms: int) -> PolicyClock:
    return PolicyClock(unit.touch_seq + requests, unit.touch_ms + ms)


def compiled(text: str) -> CompiledScore:
    try:
        return compile_score(text)
    except ExpressionError:
        assume(False)
        raise


def field_value(unit: UnitMeta, clock: PolicyClock, field: Field) -> object:
    match field.name:
        case "idle_requests":
            return clock.request_seq - unit.touch_seq
        case "age_requests":
            return clock.request_seq - unit.birth_seq
        case "idle_s":
            return (clock.now_ms - unit.touch_ms) / 1000.0
        case "age_s":
            return (clock.now_ms - unit.birth_ms) / 1000.0
    return getattr(unit, field.name.removeprefix("request."))


@QUIET
@given(any_expression, units(), st.integers(0, 2**40), st.integers(0, 2**40))
@example("hits ** hits", UnitMeta(1, 1, 0, 0, 0, 0, 0, hits=2**53), 0, 0)
@example("1 / 2 ** idle_requests", UnitMeta(1, 1, 0, 0, 0, 0, 0), 5000, 0)
@example("hits * size_tokens + depth_tokens", UnitMeta(2**53 - 1, 2**53 - 3, 0, 0, 0, 0, 0, hits=2**53 - 5), 0, 0)
def test_generated_code_is_total_and_equals_the_reference(text: str, unit: UnitMeta, requests: int, ms: int) -> None:
    score = compiled(text)
    clock = later(unit, requests, ms)
    got = score.evaluate(unit, clock)
    assert type(got) is float
    assert math.isfinite(got)
    node = check(text, SCORE_FIELDS, {})
    assert got == interpret(node, lambda f: in_range(f, field_value(unit, clock, f)))
    low, high = bounds(node)
    assert low <= got <= high


@QUIET
@given(
    any_expression,
    st.lists(st.sampled_from([0, -1, 2**63, 10**400, -(10**400), 5]), min_size=9, max_size=9),
    st.sampled_from([0.0, -1.0, math.nan, math.inf, -math.inf, 5e-324]),
)
def test_values_outside_a_fields_range_never_raise(text: str, values: list[int], gap: float) -> None:
    a, b, c, d, e, f, g, now, seq = values
    unit = UnitMeta(a, b, c, d, e, f, 0, hits=g, reuse_gap_s=gap, priority=now)
    got = compiled(text).evaluate(unit, PolicyClock(seq, now))
    assert math.isfinite(got)


_on_hits = st.builds(
    "{} {} {}".format, st.sampled_from(["hits", "depth_tokens", "0", "1", "2.5"]),
    st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), st.sampled_from(["hits", "0", "1", "3", "-1", "hits < 4"]),
)  # fmt: skip
_conditions = st.recursive(
    _on_hits,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner), st.builds("({} or {})".format, inner, inner),
        st.builds("not ({})".format, inner), st.builds("({} if is_output else {})".format, inner, inner),
    ),
)  # fmt: skip


@QUIET
@given(_conditions, units())
def test_a_match_that_needs_a_hit_never_holds_without_one(text: str, unit: UnitMeta) -> None:
    try:
        match = compile_match(text)
    except ExpressionError:
        assume(False)
        raise
    unit.hits = 0
    assert not (match.needs_hits and match.evaluate(unit, later(unit, 1, 1000)))


@QUIET
@given(any_expression, units(largest=10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_folding_a_constant_equals_reading_it_from_a_field(text: str, unit: UnitMeta, requests: int, ms: int) -> None:
    unit.priority = unit.priority or 1
    clock = later(unit, requests, ms)
    expected = compiled(text).evaluate(unit, clock)
    folded = text.replace("request.priority is None", "is_output != is_output")
    for name in sorted(NUMBERS, key=len, reverse=True):
        folded = folded.replace(name, f"({float(field_value(unit, clock, SCORE_FIELDS[name]))!r})")  # type: ignore[arg-type]
    score = compiled(folded)  # not where a constant would overflow or divide by zero: those are errors
    assert not score.fields & set(NUMBERS)
    assert score.evaluate(unit, clock) == expected


# -- texts --

_KEYWORDS = "and or not if else in is None True False lambda for await yield import log exp min clamp request __class__"
_SIGNS = "( ) [ ] , . + - * / // % ** < <= > >= == != : := = ; @ { } # 0 1 9 1e999 0x1f 600s 2% 9**9**9 f'a' b\"a\" 'a'"
_ODD = ["'", '"', '"é"', "é", "\ud800", "\u202e", "\n", "\t", "\x00", "\\", "__import__('os')", " "]
_WORDS = [*SCORE_FIELDS, *_KEYWORDS.split(), *_SIGNS.split(), *_ODD]
fuzz = st.one_of(
    st.text(max_size=80),
    st.lists(st.sampled_from(_WORDS), max_size=60).map(" ".join),
    st.lists(st.sampled_from(_WORDS), max_size=60).map("".join),
    st.builds(lambda w, n: w * n, st.sampled_from(_WORDS), st.integers(1, 3000)),
    any_expression.flatmap(lambda t: st.integers(0, len(t)).map(lambda i: t[:i] + t[i + 1 :])),
)


COMPILERS = (compile_score, compile_match, compile_admit)
#: Four times what the slowest of ADVERSARIAL takes, which is 3 ms on a machine of 2026.
MAX_CALLS = 60_000


def refusal(compiler: Callable[[str], object], text: str) -> ExpressionError | None:
    try:
        compiler(text)
    except ExpressionError as error:
        return error
    return None


def broken_promises(text: str, compilers: Sequence[Callable[[str], object]] = COMPILERS) -> list[str]:
    """What compiling `text` does that it may not: be slow, or refuse it without words or outside of it."""
    broken = []
    for compiler in compilers:
        error, calls = counted(partial(refusal, compiler, text))
        if calls > MAX_CALLS:
            broken.append("slow")
        if error is None:
            continue
        if not (error.message and error.help):
            broken.append("wordless")
        end = error.offset + error.length
        if not 0 <= error.offset <= len(text) or error.length < 1 or end > max(len(text), error.offset + 1):
            broken.append(f"refused at {error.offset}+{error.length} of {len(text)}")
    return broken


@settings(QUIET, max_examples=150)
@given(fuzz)
def test_any_text_compiles_or_is_one_located_error(text: str) -> None:
    assert broken_promises(text) == []


ADVERSARIAL = [
    "(" * 4000, "[" * 4000, "(" * 32 + "1" + ")" * 32, "-" * 4000 + "1", "not " * 1000 + "is_output", "hits." * 800,
    "hits" + " ** hits" * 250, "hits" + " < hits" * 250, "1 if is_output else " * 200 + "1", "a" * 10_000,
    "abs(" * 31 + "hits" + ")" * 31, "exp(" * 31 + "hits" + ")" * 31, "max(" * 31 + "hits" + ",1)" * 31,
    "clamp(" * 30 + "hits" + ",1,2)" * 30, "9" * 4000, "0." + "0" * 3000 + "1", "1e" + "9" * 4000, "9**9**9",
    "hits in (" + "1," * 200 + ")", "min(" + "hits," * 200 + "1)", "9**99**99**99", "'" + "a" * 4000 + "'",
    "(" * 32 + "hits**100" + ")**100" * 32, "+".join(["hits"] * 256), "+".join(["hits"] * 48), "[" + "(" * 31,
    "([" * 16,
    "(hits < " * 30 + "1" + " < 2)" * 30, "(1 if 0 < " * 20 + "hits" + " < 9 else 2)" * 20,
    "\n" * 4000 + "hits",
    "hits" + "\n" * 4000, "-" * 46 + "hits", "hits" + "/reuse_gap_s" * 40, "hits//reuse_gap_s" + "%reuse_gap_s" * 40,
    "(" * 31 + "hits" + "/idle_s) if is_output else 1" + ")" * 30, "hits" + "*hits" * 47, "2" + "**idle_s" * 47,
]  # fmt: skip


@pytest.mark.parametrize("text", ADVERSARIAL, ids=range(len(ADVERSARIAL)))
def test_adversarial_texts_are_quick(text: str) -> None:
    assert broken_promises(text) == []


@pytest.mark.parametrize(
    "error",
    [("", "?", 0, 1), ("!", "", 0, 1), ("!", "?", -1, 1), ("!", "?", 5, 1), ("!", "?", 2, 9)],
)
def test_the_examination_sees_a_wrong_error(error: tuple[str, str, int, int]) -> None:
    def refuse(text: str) -> None:
        raise ExpressionError(*error)

    assert broken_promises("hits", [refuse]) != []


def test_the_examination_sees_a_slow_compiler() -> None:
    def spin(text: str) -> None:
        for _ in range(MAX_CALLS):
            len(text)

    assert broken_promises("hits", [spin]) == ["slow"]


@QUIET
@given(units(), st.sampled_from(['request.lora != "a"', "request.priority not in (1, 2)", "0 < request.priority < 3"]))
def test_match_and_admit_agree_on_requests(unit: UnitMeta, text: str) -> None:
    request = RequestInfo(unit.cache_salt, unit.priority, unit.session_id, unit.lora)
    got = compile_match(text).evaluate(unit, PolicyClock())
    assert isinstance(got, bool)
    assert got == compile_admit(text).evaluate(request, 1, 1)
