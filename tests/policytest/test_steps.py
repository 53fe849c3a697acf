"""The event notation, and every mistake in it at its place."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpolicy.language import load_text
from kvpolicy.language.steps import EVENT_PATTERN, Event, Segment, StepError, parse_event

from .conftest import HEADER, LRU, one_test


def test_an_event_with_everything() -> None:
    text = "+10s sys:128/ana -> answer:1Ki x3 every 500ms for 2s tenant=gold priority=-1 session=s lora=l hit sys"
    assert parse_event(text) == Event(
        text,
        10_000,
        (Segment("sys", 128), Segment("ana")),
        Segment("answer", 1024),
        None,
        3,
        500,
        2000,
        "gold",
        -1,
        "s",
        "l",
        "sys",
        text.index("hit"),
    )


def test_the_hints_of_an_event() -> None:
    event = parse_event("sys:128 retain=5m,64 demote expire class=agent hit none")
    assert (event.retain_ms, event.retain_tokens, event.demote, event.expire) == (300_000, 64, True, True)
    assert (event.hint_class, event.hit) == ("agent", "none")
    assert parse_event("sys:128 retain=250ms").retain_tokens is None


def test_a_flood() -> None:
    event = parse_event("flood 40x2k every 1s tenant=t")
    assert (event.repeat, event.flood_tokens, event.every_ms, event.tenant, event.path) == (40, 2000, 1000, "t", ())


#: step, column of the mistake in it, part of the message
BAD = [
    ("+10s", 1, "no request"),
    ("sys:4 retain=soon", 14, "duration"),
    ("sys:4 retain=5m,x", 17, "token count"),
    ("sys:4 demote demote", 14, "said twice"),
    ("+10 sys:4", 2, "needs a unit"),
    ("sys:4//ana:4", 7, "empty segment"),
    ("sys:4/9a:4", 7, "'9a:4' is no segment"),
    ("sys:0", 5, "no tokens"),
    ("sys:4x", 5, "'x'"),
    ("flood", 1, "how many prompts"),
    ("flood 0x4", 7, "0 requests"),
    ("flood 4x4 hit 3", 11, "means nothing"),
    ("sys:4 x99999", 8, "99999 requests"),
    ("sys:4 hti 3", 7, "'hti'"),
    ("sys:4 hit", 7, "needs tokens"),
    ("sys:4 hit ana", 7, "'ana' is not what"),
    ("sys:4 for", 7, "needs a duration"),
    ("sys:4 priority=high", 16, "whole number"),
    ("sys:4 tenant=a tenant=b", 16, "said twice"),
    ("sys:4 -> a:4/b:4", 7, "one segment"),
]


@pytest.mark.parametrize(("step", "column", "message"), BAD, ids=[case[0] for case in BAD])
def test_a_mistake_is_found_at_its_place(step: str, column: int, message: str) -> None:
    text = one_test(step, policy=LRU)
    (d, *_) = load_text(text.encode(), "p.yaml").diagnostics
    assert (d.code, d.severity) == ("KVP320", "error")
    assert (d.line, d.col) == (8, 8 + column)
    assert message in d.message
    assert d.help


@given(st.text(max_size=40) | st.from_regex(r"(\+[0-9]+s )?(flood|[a-c:/0-9]+)( [a-zx0-9=>-]+){0,4}", fullmatch=True))
def test_any_text_parses_or_is_refused_with_a_place(text: str) -> None:
    refused: StepError | None = None
    event = Event("")
    try:
        event = parse_event(text)
    except StepError as error:
        refused = error
    if refused is not None:
        assert 0 <= refused.offset <= len(text)
        assert refused.message
    else:
        assert re.match(EVENT_PATTERN, text.strip()), "the editor's schema is never stricter than the parser"
        assert event.path or event.flood_tokens


#: step list, line (from the first step), column, code
MEANINGS = [
    (["sys"], 0, 9, "KVP321"),
    (["sys:4", "sys:5 hit 4"], 1, 9, "KVP321"),
    (["sys:4", "resident: [sys, ssy]"], 1, 25, "KVP322"),
    (["resident: [sys]", "sys:4"], 0, 20, "KVP322"),
    (["sys:4 tenant=a", "tenant_tokens: {b: 4}"], 1, 25, "KVP322"),
    (["sys:4", "protected: {sys: hut}"], 1, 26, "KVP323"),
    (["sys:4", "evicted_tokens: {hut: 0}"], 1, 26, "KVP323"),
    (["sys:4"], -3, 11, "KVP324"),
    (["sys:4 hit 0", "flood 10000x1M"], -3, 11, "KVP326"),
]


@pytest.mark.parametrize(("steps", "line", "column", "code"), MEANINGS)
def test_what_a_test_cannot_mean_is_found_at_its_place(steps: list[str], line: int, column: int, code: str) -> None:
    result = load_text(one_test(*steps).encode(), "p.yaml")
    found = [(d.line, d.col, d.code) for d in result.diagnostics if d.code != "KVP324" or code == "KVP324"]
    assert found == [(12 + line, column, code)]


def test_tests_do_not_change_the_digest_and_are_not_in_what_processes_carry() -> None:
    with_tests = load_text(one_test("sys:4 hit none").encode())
    without = load_text(one_test("sys:4 hit none").partition("tests:")[0].encode())
    assert with_tests.policy is not None
    assert len(with_tests.policy.tests) == 1
    assert "tests" not in with_tests.flat
    assert with_tests.digest == without.digest


def test_a_mistake_in_a_test_is_an_error_of_the_policy() -> None:
    text = f"{HEADER}{LRU}tests:\n  - {{name: a, pool: 64, steps: [sys:4], granulrity: node}}\n"
    (d,) = load_text(text.encode()).diagnostics
    assert (d.code, d.help) == ("KVP201", "did you mean 'granularity'?")
