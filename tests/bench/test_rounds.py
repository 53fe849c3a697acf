"""The schedule, the report and the errors, over sides that answer at once."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from kvpolicy.bench import servers
from kvpolicy.bench.base import BenchError, Failed, Target, Traffic, Window
from kvpolicy.bench.report import Setting, render, report_of
from kvpolicy.bench.run import run_rounds
from kvpolicy.cli.main import main
from kvpolicy.live.client import LiveError

TRAFFIC = Traffic(requests=40, shared_tokens=2048, groups=4)


@dataclass
class FakeSide:
    label: str
    log: list[str] = field(default_factory=list)

    @contextmanager
    def serving(self) -> Iterator[Target]:
        yield Target("sglang", f"http://{self.label}", "m", "m")


class Machine:
    """Makes windows; B is faster by ``gain``."""

    def __init__(self, gain: float) -> None:
        self.gain, self.rng, self.asked = gain, random.Random(1), list[tuple[str, int, int]]()

    def measure(self, target: Target, traffic: Traffic, seed: int) -> Window:
        side = target.url[-1]
        self.asked.append((side, traffic.requests, seed))
        speed = 1000 * (self.gain if side == "B" else 1) * self.rng.uniform(0.98, 1.02)
        return Window(traffic.requests, 1.0, speed, 5e5 / speed, 9e5 / speed, 2e4 / speed, 0.5)


def ran(gain: float, rounds: int = 6, **setting: object) -> tuple[Machine, str, dict[str, object]]:
    machine = Machine(gain)
    outcomes = run_rounds(FakeSide("A"), FakeSide("B"), TRAFFIC, rounds, 10, lambda _: None, machine.measure)
    chosen = Setting(("lru", "rag"), "sglang", "m", TRAFFIC, "hot", 10, str(setting.get("judged_by", "throughput")))
    report = report_of(*outcomes, chosen)
    return machine, render(report), report.to_json()


def test_the_schedule() -> None:
    """A warm-up of a quarter for each server, then each round's requests on both sides, in alternating order."""
    machine, _, _ = ran(1.0, rounds=3)
    assert machine.asked == [
        ("A", 12, 9), ("A", 40, 10), ("B", 12, 9), ("B", 40, 10), ("B", 40, 11), ("A", 40, 11), ("A", 40, 12),
        ("B", 40, 12),
    ]  # fmt: skip


@pytest.mark.parametrize("judged_by", ["throughput", "ttft", "ttft_p99", "tpot"])
def test_a_faster_side_is_named_by_every_figure(judged_by: str) -> None:
    _, text, data = ran(1.2, judged_by=judged_by)
    assert text.splitlines()[-1].startswith("B is faster: 1.")
    assert data["winner"] == "B"
    _, text, data = ran(1 / 1.2, judged_by=judged_by)
    assert text.splitlines()[-1].startswith("A is faster: 1.")
    assert data["winner"] == "A"


def test_equal_sides_are_noise() -> None:
    _, text, data = ran(1.0)
    assert "No difference larger than noise" in text
    assert data["winner"] is None


def test_the_report() -> None:
    _, text, data = ran(1.2)
    assert "6 rounds of 40 requests of 2,048 shared in 4 groups + 512 own + 64 output tokens, all at once" in text
    assert "prefix hit rate          50.0%        50.0%" in text
    assert json.loads(json.dumps(data)).keys() == data.keys()
    sides = data["sides"]
    assert isinstance(sides, dict)
    assert [len(sides[label]["windows"]) for label in "AB"] == [6, 6]
    means = sides["B"]["throughput"] / sides["A"]["throughput"]
    ratios = data["ratios"]
    assert isinstance(ratios, dict)
    assert ratios["throughput"]["value"] == pytest.approx(means), "the means have the ratio that is shown"


def test_failed_requests_end_it_and_name_the_side() -> None:
    machine = Machine(1.0)

    def fails_late(target: Target, traffic: Traffic, seed: int) -> Window:
        if (target.url[-1], seed) == ("B", 11):
            raise Failed("3 of 40 requests failed")
        return machine.measure(target, traffic, seed)

    with pytest.raises(Failed, match=r"^B, round 2: 3 of 40 requests failed$"):
        run_rounds(FakeSide("A"), FakeSide("B"), TRAFFIC, 6, 10, lambda _: None, fails_late)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"data": [{"id": "m", "owned_by": "sglang", "root": "/models/m"}]}, ("sglang", "m", "/models/m")),
        ({"data": [{"id": "m", "owned_by": "vllm", "root": None}]}, ("vllm", "m", "m")),
        ({"data": [{"id": "m", "owned_by": "ollama"}]}, "a server of ollama, neither sglang nor vllm"),
        ({"data": []}, "names no model"),
        ({"models": []}, "names no model"),
    ],
)
def test_what_serves_at_a_url(monkeypatch: pytest.MonkeyPatch, answer: dict[str, object], expected: object) -> None:
    """`owned_by` and `root` as SGLang and vLLM answer them."""
    monkeypatch.setattr(servers, "request_json", lambda *_, **__: answer)
    if isinstance(expected, str):
        with pytest.raises((BenchError, LiveError), match=expected):
            servers.target_at("host:1", None, None)
        return
    target = servers.target_at("host:1/", None, None)
    assert (target.engine, target.model, target.tokenizer) == expected
    assert (target.url, target.is_ours) == ("http://host:1", False)
    assert servers.target_at("host:1", "/other", None).tokenizer == "/other"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["m"], 2, "give --policy twice or --url twice"),
        (["--policy", "off", "m"], 2, "give --policy twice or --url twice"),
        (["--policy", "off", "--policy", "lru", "--url", "x", "m"], 2, "give --policy twice or --url twice"),
        (["--policy", "off", "--policy", "stock_lru"], 2, "MODEL is missing"),
        (["--policy", "off", "--policy", "stock_lru", "m", "--rounds", "1"], 2, "at least 2"),
        (["--policy", "off", "--policy", "stock_lru", "m", "--groups", "3"], 2, "no multiple of --groups 3"),
        (["--policy", "off", "--policy", "stock_lru", "m", "-o", "no/where"], 2, "there is no folder 'no'"),
        (["--policy", "off", "--policy", "absent.yaml", "m"], 2, "KVP101"),
        (["--policy", "off", "--policy", "stock_lru", "m", "--engine", "vllm"], 2, "vllm is not installed beside"),
        (["--policy", "off", "--policy", "stock_lru", "m", "--change", "hot"], 1, "`off` is a server without a policy"),
        (["--policy", "rag", "--policy", "stock_lru", "m", "--change", "hot"], 1, "cache.page_size cannot change"),
        (["--url", "127.0.0.1:9", "--url", "127.0.0.1:9"], 2, "nothing listens at http://127.0.0.1:9"),
    ],
)
def test_bad_input_is_one_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: object() if name == "sglang" else None)
    assert main(["bench", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err
