"""The documentation's tables of fields, functions, bounds and classes are true."""

from __future__ import annotations

import re
from pathlib import Path

from kvpolicy.language.expressions import ADMIT_FIELDS, FUNCTIONS, MATCH_FIELDS, SCORE_FIELDS, compile_score
from kvpolicy.language.expressions.check import MAX_DEPTH, MAX_EXPONENT, MAX_NODES
from kvpolicy.language.expressions.scan import MAX_BRACKETS, MAX_CHARS, MAX_TOKENS

PAGE = (Path(__file__).parents[2] / "docs" / "expressions.md").read_text()


def test_fields() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| ([^|]*) \| (yes|) ?\| ?(yes|) ?\| ?(yes|) ?\|", PAGE, re.MULTILINE)
    assert {row[0] for row in rows} == set(SCORE_FIELDS)
    for name, unit, score, match, admit in rows:
        assert (bool(score), bool(match), bool(admit)) == (True, name in MATCH_FIELDS, name in ADMIT_FIELDS), name
        field = SCORE_FIELDS[name]
        assert unit == {"a plain number": "a count"}.get(str(field.dim), str(field.dim)) or unit == field.kind.value


def test_functions_and_bounds() -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith("| functions"))
    assert re.findall(r"`([^`]+)`", row) == [function.usage for function in FUNCTIONS.values()]
    bounds = " ".join(PAGE[PAGE.index("Bounds:") :].split())
    assert bounds.startswith(
        f"Bounds: {MAX_CHARS} characters, {MAX_TOKENS} tokens, {MAX_NODES} operations, brackets {MAX_BRACKETS} and "
        f"operations {MAX_DEPTH} deep, whole numbers up to 2**53, constant exponents up to {MAX_EXPONENT:g}."
    )


def test_classes() -> None:
    rows = re.findall(r"^\| `(.+)` \| (stable|decay|dynamic) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 9
    for text, expected in rows:
        assert compile_score(text).score_class == expected, text
