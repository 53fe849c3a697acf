"""The `hints:` section: what it says, and what is said of what it says wrongly or in vain, with its place."""

from __future__ import annotations

import pytest

from kvpolicy.language.models import Hints

#: body -> (line, column, code) of each finding, and words of the first message.
FINDINGS: list[tuple[str, list[tuple[int, int, str]], str]] = [
    ("hints: {allow: [keep]}\n", [(1, 17, "KVP204")], "keep"),
    ("hints: {allow: retain}\n", [(1, 16, "KVP203")], "a list"),
    ("hints: {allow: [retain], max_ttl: 900}\n", [(1, 35, "KVP205")], "needs a unit"),
    ("hints: {allow: [retain], budget: 120%}\n", [(1, 34, "KVP206")], "120%"),
    ("hints: {allow: [retain], budgets: 20%}\n", [(1, 26, "KVP201")], "budgets"),
    ("hints: {allow: [retain], weight: 0}\n", [(1, 34, "KVP206")], "greater than 0"),
    ("hints: {allow: [class], classes: [a b]}\n", [(1, 35, "KVP208")], "a b"),
    ("hints: {allow: [demote], budget: 20%}\n", [(1, 26, "KVP330")], "`hints.budget` has no effect"),
    ("hints: {max_ttl: 5m}\n", [(1, 9, "KVP330")], "while `retain` is not allowed"),
    ("hints: {allow: [retain], classes: [a]}\n", [(1, 26, "KVP330")], "while `class` is not allowed"),
    ("hints: {allow: [class]}\n", [(1, 9, "KVP330")], "every class hint is refused"),
    (
        "eviction:\n  rules:\n    - {name: a, match: request.hint_class == 'a', priority: 1}\n",
        [(3, 24, "KVP330")],
        "always None",
    ),
    ("hints: {allow: [demote]}\neviction: {core: engine}\n", [(1, 9, "KVP316")], "kvpolicy's index"),
    (
        "hints: {allow: [retain], budget: 30%}\neviction: {tenants: {floor: 10%}}\n",
        [(1, 34, "KVP308")],
        "the hints' budget 30%",
    ),
    ("hints: {allow: [retain]}\neviction: {tenants: {floor: 12%}}\n", [(2, 29, "KVP308")], "the hints' budget 10%"),
]


@pytest.mark.parametrize(("body", "places", "words"), FINDINGS, ids=[body[:50] for body, _, _ in FINDINGS])
def test_what_is_wrong_is_said_at_its_place(load, found, body, places, words) -> None:
    assert found(body) == places
    assert words in load(body).diagnostics[0].message


def test_what_is_left_out() -> None:
    hints = Hints()
    assert (hints.allow, hints.budget, hints.weight, hints.max_ttl_ms, hints.classes) == ((), 0.1, 1.0, 3_600_000, ())
