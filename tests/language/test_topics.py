"""Every topic is explained, its example is a policy without errors, and the example's tests pass."""

from __future__ import annotations

import json
import re

import pytest

from kvpolicy.cli.main import COMMANDS, main
from kvpolicy.language import load_text
from kvpolicy.language.codes import CODES
from kvpolicy.language.codes.base import HEADER
from kvpolicy.language.topics import TOPICS, Topic
from kvpolicy.policytest.load import prepare
from kvpolicy.policytest.run import run_tests


@pytest.mark.parametrize("topic", TOPICS.values(), ids=TOPICS)
def test_explain_prints_the_whole_answer_and_example(topic: Topic, capsys) -> None:
    assert main(["explain", topic.name]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{topic.name}: {topic.title}\n\n")
    assert " ".join(topic.text.split()) in " ".join(out.split())
    assert "more lines" not in out
    assert all(line in out for line in topic.example.splitlines())
    assert out.isascii()


@pytest.mark.parametrize("topic", [t for t in TOPICS.values() if t.example], ids=lambda t: t.name)
def test_an_example_has_no_error_and_its_tests_pass(topic: Topic) -> None:
    result = load_text((HEADER + topic.example).encode(), f"{topic.name}.yaml")
    assert [d for d in result.diagnostics if d.severity == "error"] == []
    assert [outcome.failures for outcome in run_tests(result, prepare(result, "sglang")[0]) if outcome.failures] == []


@pytest.mark.parametrize("topic", TOPICS.values(), ids=TOPICS)
def test_what_a_topic_refers_to_exists(topic: Topic) -> None:
    assert set(re.findall(r"KVP\d+", topic.text)) <= set(CODES)
    assert set(re.findall(r"`kvpolicy explain\s+([\w-]+)`", topic.text)) <= {*TOPICS, *CODES}
    denied = set(re.findall(r"no `kvpolicy (\w+)`", topic.title + topic.text))
    named = set(re.findall(r"`kvpolicy (\w+)", topic.title + topic.text))
    assert named - denied <= set(COMMANDS)
    assert not denied & set(COMMANDS), "the topic says that a command is missing that exists now"


def test_an_unknown_topic_is_bad_usage_with_a_guess(capsys) -> None:
    assert main(["explain", "pin"]) == 2
    assert "did you mean 'pins'?" in capsys.readouterr().err
    assert main(["explain", "zebra"]) == 2
    assert "known: pins, hints" in capsys.readouterr().err


def test_a_topic_as_json(capsys) -> None:
    assert main(["explain", "pins", "--format", "json"]) == 0
    (item,) = json.loads(capsys.readouterr().out)
    assert (item["topic"], set(item)) == ("pins", {"topic", "title", "text", "example"})
    assert load_text(item["example"].encode()).policy is not None
