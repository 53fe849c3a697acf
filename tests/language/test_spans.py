"""Errors inside expressions are shown at their exact place in the file, whatever the style of the YAML scalar."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpolicy.language.source import Source
from kvpolicy.language.spans import source_index
from kvpolicy.language.tree import Scalar, parse

STYLES = {
    "plain": ("score: hits + oops\n", 1, 15),
    "plain with gaps": ("score:   hits   +   oops   # a comment\n", 1, 21),
    "plain over lines": ("score: hits +\n    size_tokens +\n\n      oops\n", 4, 7),
    "plain on the next line": ("score:\n      hits + oops\n", 2, 14),
    "single quoted": ("score: 'hits + oops'\n", 1, 16),
    "single quoted with a doubled quote": ("score: '(1 if request.lora == ''x'' else 0) + oops'\n", 1, 47),
    "single quoted over lines": ("score: 'hits +\n\n    oops'\n", 3, 5),
    "double quoted": ('score: "hits + oops"\n', 1, 16),
    "double quoted with escapes": ('score: "\\x68its \\u002b \\"oops"\n', 1, 24),
    "double quoted with an escaped line break": ('score: "hits \\\n     + oops"\n', 2, 8),
    "double quoted with a tab": ('score: "hits\\t+\\toops"\n', 1, 18),
    "literal": ("score: |\n    hits\n    + oops\n", 3, 7),
    "literal with an indicator": ("score: |2-  # comment\n      hits\n    + oops\n", 3, 7),
    "literal with blank lines": ("score: |\n\n    hits\n\n\n    + oops\n\n", 6, 7),
    "folded": ("score: >\n    hits\n    + oops\n", 3, 7),
    "folded, stripped": ("score: >-\n    hits\n      + 1\n\n    + oops\n", 5, 7),
    "anchored": ("score: &s hits + oops\n", 1, 18),
    "anchored literal": ("score: &s |\n    hits + oops\n", 2, 12),
    "wide characters before": ("score: '(1 if request.lora == \"日本\" else 0) + oops'\n", 1, 46),
}


@pytest.mark.parametrize(("text", "line", "col"), STYLES.values(), ids=STYLES)
def test_an_error_is_placed_inside_the_scalar(load, text, line, col) -> None:
    body = "eviction:\n  " + text.replace("\n", "\n  ").rstrip(" ")
    errors = [d for d in load(body).diagnostics if d.severity == "error"]
    assert errors
    d = errors[0]
    assert (d.line - 3, d.col - 2) == (line, col)
    assert d.code == "KVP401"


def test_an_error_at_the_end_is_placed_behind_the_last_character(load) -> None:
    for text, col in (("score: hits +\n", 16), ('score: "hits +"\n', 17), ("score: |\n    hits +\n", 13)):
        (d,) = load("eviction:\n  " + text.replace("\n", "\n  ").rstrip(" ")).diagnostics
        assert d.col == col


@pytest.mark.parametrize("style", ["plain", "'", '"', "|", ">"])
@settings(max_examples=150, deadline=None)
@given(words=st.lists(st.text("abc'\"\\+é日", min_size=1, max_size=5), min_size=1, max_size=8), data=st.data())
def test_every_character_is_found_again(style, words, data) -> None:
    """Written in each style with arbitrary line breaks, each decoded character maps to itself (or to its escape)."""
    gaps = [data.draw(st.sampled_from([" ", "  ", "\n", "\n\n", "\n   "])) for _ in words]
    if style == "plain":
        words = ["x" + word for word in words]
    if style == "'":
        words = [word.replace("'", "''") for word in words]
    if style == '"':
        words = [word.replace("\\", "\\\\").replace('"', '\\"').replace("é", "\\xe9") for word in words]
    body = "".join(word + gap for word, gap in zip(words, gaps, strict=True)).rstrip()
    body = "\n".join("    " + line if line.strip() else "" for line in body.split("\n"))
    head, foot = {"plain": ("", ""), "'": ("'", "'"), '"': ('"', '"'), "|": ("|\n", ""), ">": (">-\n", "")}[style]
    source = Source("p", f"key: {head}{body if style in '|>' else body.strip()}{foot}\nlast: 1\n")
    node = parse(source)[0].child("key")
    assert isinstance(node, Scalar)
    for offset, char in enumerate(node.text):
        if not char.isspace():
            at = source_index(node, offset)
            assert source.text[at] in (char, "\\", "'")
            assert at < node.end


def test_an_alias_points_to_where_the_text_is_written(load) -> None:
    first, second = "{name: a, match: &m hits > oops, priority: 1}", "{name: b, match: *m, priority: 2}"
    body = f"eviction:\n  rules:\n    - {first}\n    - {second}\n"
    assert [(d.line, d.col) for d in load(body).diagnostics] == [(5, 34)]


def test_class_and_cost_of_a_score_are_data(load) -> None:
    result = load("eviction: {score: log1p(hits) / (1 + idle_requests)}\n")
    (d,) = result.diagnostics
    assert (d.code, d.severity) == ("KVP402", "info")
    assert d.data["score_class"] == "dynamic"
    assert d.data["cost"] > 0
    assert d.data["fields"] == ["hits", "idle_requests"]
    assert result.policy is not None


def test_admission_sees_the_request_only(found) -> None:
    rule = "eviction:\n  rules: [{name: a, match: %s, admit: never}]\n"
    assert found(rule % "depth_tokens > 8 and request.priority < 0") == []
    ((line, col, code),) = found(rule % "hits > 3")
    assert (line, col, code) == (2, 28, "KVP401")


def test_a_score_is_a_number_and_a_match_is_true_or_false(found) -> None:
    assert found("eviction: {score: hits > 1}\n") == [(1, 19, "KVP401")]
    assert found("eviction: {rules: [{name: a, match: hits + 1, priority: 1}]}\n") == [(1, 37, "KVP401")]


@pytest.mark.parametrize(
    "text",
    [
        "hits.real",
        "open('x')",
        "[h for h in hits]",
        "(x := 1)",
        "f'{hits}'",
        "9 ** 9 ** 9 ** 9",
        "lambda: 1",
        "__import__('os')",
        "hits" + " + hits" * 2000,
        "(" * 500 + "hits" + ")" * 500,
        "",
        "depth_tokens < idle_s",
    ],
)
def test_what_is_outside_the_subset_is_one_diagnostic(load, text) -> None:
    quoted = text.replace("'", "''")
    result = load(f"eviction:\n  score: '{quoted}'\n")
    (d,) = [d for d in result.diagnostics if d.severity == "error"]
    assert d.code == "KVP401"
    assert d.line == 4
    assert 10 <= d.col <= 11 + len(quoted)
