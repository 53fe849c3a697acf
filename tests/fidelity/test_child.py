"""The child's loop over an engine that behaves, and over engines that do not: each fault ends it with words."""

from __future__ import annotations

import io
import json
import os
import sys
from dataclasses import asdict, replace
from typing import Any

import pytest

from kvpolicy.fidelity.base import Job, Scored, Settings
from kvpolicy.fidelity.child import main

JOB = Job("model", "policy.yaml", "text", 200, 1000, 2, {})
SETTINGS = Settings("sglang", "1", "cpu", "bf16", "bf16", {}, 16, "triton")


class Engine:
    """Every token is 0, and both tokens are listed. `faults` replaces what one kind of answer says."""

    def __init__(self, job: Job, **faults: Any) -> None:
        self.faults, self.asked, self.closed = faults, [], False

    def settings(self) -> Settings:
        return replace(SETTINGS, **self.faults.get("settings", {}))

    def encode(self, text: str) -> list[int]:
        return [9] if text == "" else [9, *[0] * self.faults.get("tokens", 399)]

    def score(self, tokens: list[int], start: int, *, reuse: bool) -> Scored:
        self.asked.append((len(tokens), start, reuse))
        count = len(tokens) - start - 1 - self.faults.get("missing", 0)
        cached = self.faults.get("cached", start) if reuse else self.faults.get("cold", 0)
        return Scored([-0.5] * count, [[0, 1]] * count, [[-0.5, -1.0]] * count, cached)

    def close(self) -> None:
        self.closed = True


def answers_of(monkeypatch: pytest.MonkeyPatch, engine: Engine, job: Job = JOB) -> tuple[int, list[dict[str, Any]]]:
    read, write = os.pipe()
    monkeypatch.setattr(sys, "argv", ["score", str(write)])
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(asdict(job))))
    code = main(lambda given: engine)
    with os.fdopen(read) as file:
        return code, [json.loads(line) for line in file]


def test_every_window_is_scored_in_steps_after_hits_and_then_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(JOB)
    code, (first, *rows) = answers_of(monkeypatch, engine)
    assert code == 0
    assert [len(window) for window in first["windows"]] == [200, 200]
    assert (first["stride_tokens"], first["settings"]["page_size"]) == (64, 16)
    steps = [(64, 0, True), (128, 64, True), (192, 128, True), (200, 192, True)]
    assert engine.asked == [*steps, *steps, (200, 0, False), (200, 0, False)]
    assert [(row["pass"], row["window"], row["start"], len(row["rows"])) for row in rows[:4]] == [
        ("cached", 0, 0, 63), ("cached", 0, 64, 63), ("cached", 0, 128, 63), ("cached", 0, 192, 7),
    ]  # fmt: skip
    assert [row["pass"] for row in rows[-2:]] == ["cold", "cold"]
    assert engine.closed


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ({"cached": 0}, "took 0 of 64 prefix tokens from its cache"),  # caching is off
        ({"cold": 16}, "took 16 tokens from its cache in the cold pass"),
        ({"missing": 1}, "gave 62 logprobs where 63 were due"),
        ({"tokens": 20}, "the text is too short"),
        ({"settings": {"page_size": 544}}, "pages of 544 tokens leave no prefix in a window of 200: give --window"),
    ],
)
def test_an_engine_that_does_otherwise_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, faults: dict[str, Any], says: str
) -> None:
    engine = Engine(JOB, **faults)
    code, answers = answers_of(monkeypatch, engine)
    assert code == 1
    assert says in answers[-1]["error"]
    assert engine.closed
