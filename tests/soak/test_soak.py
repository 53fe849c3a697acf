"""Swaps, bad policies, clients that go away and a full pool, on real servers: nothing is lost, and nothing leaks."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.soak.soak import POOL_TOKENS, PROMPTS, Checkpoint, Report, Soak, documents, leaked_bytes, under_soak
from tests.soak.witness import FAULTS, GHOSTS
from tools.environment import EngineEnv
from tools.server import run_server

PAGE = {"sglang": 16, "vllm": 32}
CI_ENGINE, OTHER_ENGINE = "sglang", "vllm"
WHAT = ("swap", "off", "rollback", "bad policy", "stale digest", "killed a swap", "left a request")

Start = Callable[..., Any]


@pytest.fixture
def soak(
    sglang_env: Callable[..., EngineEnv], vllm_env: Callable[..., EngineEnv], tiny_model: Path, tmp_path: Path
) -> Start:
    """`with soak(engine, fault="") as it:` a server under soak that has learned what it answers."""

    @contextmanager
    def start(engine: str, fault: str = "", policy: str | None = "plain") -> Iterator[Soak]:
        env = under_soak(sglang_env("0.5.20") if engine == "sglang" else vllm_env(), tmp_path / "site", fault)
        pool = (
            ("--max-total-tokens", str(POOL_TOKENS))
            if engine == "sglang"
            else ("--num-gpu-blocks-override", str(POOL_TOKENS // 32 + 1), "--max-model-len", "512")
        )
        file = None if policy is None else tmp_path / "policy.yaml"
        if file is None:
            pool += ("--page-size" if engine == "sglang" else "--block-size", str(PAGE[engine]))
        else:
            file.write_text(json.dumps(documents(PAGE[engine])[policy]))
        with run_server(env, tiny_model, *pool, policy=file, log_path=tmp_path / "log") as server:
            found = Soak(server, engine, PAGE[engine])
            found.learn()
            yield found

    return start


def soaked(soak: Start, engine: str, seconds: float, round_s: float) -> Report:
    """What a soak saw; it did everything that it can do."""
    with soak(engine) as running:
        report = running.run(seconds, round_s)
        print(f"{report.answers} answers, {dict(report.did)}, {[p.rss_bytes >> 20 for p in report.checkpoints]} MiB")
        assert all(report.did[what] for what in WHAT), report.did
        assert report.answers > PROMPTS
        assert max(point.remembered for point in report.checkpoints) > GHOSTS // 2
        assert running.server.status()["evict_calls"] > 20
    return report


@pytest.mark.server
def test_a_minute(soak: Start) -> None:
    assert soaked(soak, CI_ENGINE, 60, 5).problems() == []


@pytest.mark.server
@pytest.mark.soak
def test_a_minute_of_the_other_engine(soak: Start) -> None:
    assert soaked(soak, OTHER_ENGINE, 60, 5).problems() == []


@pytest.mark.server
@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", PAGE)
def test_half_an_hour(soak: Start, engine: str) -> None:
    seconds = float(os.environ.get("KVPOLICY_SOAK_S", 1800))
    assert soaked(soak, engine, seconds, 15).problems() == []


@pytest.mark.server
@pytest.mark.soak
@pytest.mark.parametrize("engine", PAGE)
def test_a_hundred_swaps_in_a_minute(soak: Start, engine: str) -> None:
    with soak(engine, policy=None) as stock:
        differ = len(stock.load(60).wrong)
        expected = stock.expected
    with soak(engine) as running:
        assert running.expected == expected
        took_s, each_s = running.swaps(100, 60)
        print(
            f"{took_s:.1f} s, a swap {median(each_s) * 1e3:.0f} ms, {max(each_s) * 1e3:.0f} at most; "
            f"{running.report.answers} answers, {len(running.report.wrong)} differ, of stock {differ}"
        )
        assert running.report.problems(wrong_before=differ) == []
        assert running.report.did["swap"] == 100
        assert running.server.status()["live"]["swaps"] >= 90  # to the policy that runs is none


@pytest.mark.server
@pytest.mark.soak
@pytest.mark.parametrize("engine", PAGE)
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("memory", "memory grew by"),
        ("slots", "tokens of the pool are in use while nothing runs|the server ended"),  # SGLang ends itself
        ("ghosts", "evictions are remembered, at most 64"),
        ("twins", "twins of .* units"),
        ("rules", "an index is broken"),
        ("outputs", "instead of"),
    ],
)
def test_what_is_lost_or_leaks_is_noticed(
    soak: Start, monkeypatch: pytest.MonkeyPatch, engine: str, fault: str, words: str
) -> None:
    monkeypatch.setattr("tests.soak.soak.REST_S", 5.0)
    with soak(engine, fault if fault in FAULTS else "") as running:
        running.is_ever_off = fault != "ghosts"
        if fault == "rules":  # under others what is protected is hardly ever evicted
            running.documents = {name: running.documents[name] for name in ("held", "plain", "score")}
        if fault == "outputs":  # of another prompt, as a page that is lost would give
            running.expected[0] = running.expected[1]
        problems = running.run(40, 4).problems()
    assert any(re.search(words, problem) for problem in problems), problems


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"used_tokens": 16}, "16 tokens of the pool are in use while nothing runs"),
        ({"remembered": 65}, "65 evictions are remembered, at most 64 may be"),
        ({"fallbacks": {"policy": 1}}, "calls of the policy failed: {'policy': 1}"),
        ({"violation": "a member without an entry"}, "an index is broken: a member without an entry"),
        ({"live_state": "preparing"}, "a swap was left half done"),
        ({"is_alive": False}, "the server ended"),
    ],
)
def test_a_checkpoint_says_what_is_wrong(change: dict[str, Any], words: str) -> None:
    good = Checkpoint(10 << 30, 0, POOL_TOKENS, 64, 64, {}, None, "applied")
    assert Report(checkpoints=[good]).problems() == []
    assert Report(checkpoints=[good, replace(good, **change)]).problems() == [f"round 1: {words}"]


def test_memory_is_flat_or_it_grows() -> None:
    flat = [1 << 30, *[(2 << 30) + step * (1 << 20) for step in range(11)]]  # warms up first
    assert leaked_bytes(flat) == 0
    assert leaked_bytes([(2 << 30) + step * (16 << 20) for step in range(12)]) == 64 << 20
    assert leaked_bytes([0, 1 << 40]) == 0, "too few to tell"


def test_outputs_may_differ_as_often_as_without_swaps() -> None:
    report = Report(wrong=["one", "two"])
    assert report.problems() == ["one", "two"]
    assert report.problems(wrong_before=2) == []
