"""docs/testing.md names every word of the notation, and its example is a test that passes."""

from __future__ import annotations

import re
from pathlib import Path

from kvpolicy.language import load_text
from kvpolicy.language.policy_tests import Expectation, PolicyTest
from kvpolicy.language.steps import EVENT_WORDS
from kvpolicy.policytest.load import prepare
from kvpolicy.policytest.run import run_tests

PAGE = (Path(__file__).resolve().parents[2] / "docs/testing.md").read_text()


def test_every_expectation_is_in_the_table() -> None:
    table = PAGE.partition("## Expectations")[2].partition("\n\n`--coverage`")[0]
    listed = set(re.findall(r"`(\w+): [^`]*`", table))
    assert listed == set(Expectation.model_fields)


def test_every_word_of_an_event_is_in_the_table() -> None:
    table = PAGE.partition("## Events")[2].partition("## Expectations")[0]
    words = {"xN" if word == "x3" else word for word in EVENT_WORDS}
    assert [word for word in words if f"`{word}" not in table and f" {word}" not in table] == []


def test_the_example_names_every_key_of_a_test_and_passes() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
    assert [key for key in PolicyTest.model_fields if f"{key}:" not in text] == []
    result = load_text(text.encode(), "docs.yaml")
    assert result.diagnostics == []
    outcomes = list(run_tests(result, prepare(result, "sglang")[0]))
    assert len(outcomes) == 2, "by node and by page"
    assert [outcome.failures for outcome in outcomes] == [[], []]
