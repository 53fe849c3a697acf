"""`kvpolicy recommend`: finds what helps, admits when nothing does, is deterministic, and survives an interrupt."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvpolicy.cli import recommend as command
from kvpolicy.cli.main import main
from kvpolicy.language import load_policy
from kvpolicy.replay.recommend import Candidate, Floor, Trial, candidates, judge, objective_of, trial
from kvpolicy.replay.search import evictions_of


def row(at: int, blocks: list[int]) -> dict[str, object]:
    return {"timestamp": at * 1000, "input_length": 512 * len(blocks), "output_length": 1, "hash_ids": blocks}


def hot_and_flood() -> list[dict[str, object]]:
    """A prefix of four blocks asked for twice in six requests, and one-off prompts that flush the pool between."""
    rows = []
    for at in range(240):
        rows.append(row(at, [1, 2, 3, 4] if at % 6 < 2 else [1000 + 4 * at + i for i in range(4)]))
    return rows


def recency() -> list[dict[str, object]]:
    """Every prompt is asked for twice in a row and never again: nothing beats LRU."""
    return [row(at, [10 * (at // 2) + i for i in range(4)]) for at in range(200)]


ARGUMENTS = ["--capacity", "8192", "--candidates", "12"]


def test_it_finds_what_keeps_a_hot_prefix(trace_file, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = trace_file(*hot_and_flood()), tmp_path / "found.yaml"
    assert main(["recommend", path, *ARGUMENTS, "-o", str(out)]) == 0
    text = out.read_text()
    assert text.startswith("# kvpolicy recommend, objective hit")
    assert "last 40 %" in text
    result = load_policy(str(out))
    assert result.policy is not None, result.diagnostics
    capsys.readouterr()
    assert main(["recommend", path, *ARGUMENTS, "-o", str(out)]) == 2, "tests that were added to it would be lost"
    assert main(["recommend", path, *ARGUMENTS, "-o", str(out), "--force"]) == 0
    assert main(["recommend", path, *ARGUMENTS, "-o", str(tmp_path / "again.yaml")]) == 0
    assert (tmp_path / "again.yaml").read_text() == text


def test_it_says_when_lru_is_best(trace_file, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", trace_file(*recency()), *ARGUMENTS]) == 0
    out = capsys.readouterr().out
    assert "Stock LRU is best here" in out
    assert "apiVersion" not in out


@pytest.mark.parametrize("objective", ["hit", "prefill", "ttft_tail"])
def test_every_objective_is_higher_where_more_hits(objective: str) -> None:
    measure = objective_of(objective)
    assert measure([100, 200], [0, 0]) < measure([100, 200], [50, 100]) < measure([100, 200], [100, 200])


def test_what_was_best_by_luck_is_not_recommended() -> None:
    lru = Trial(Candidate("lru", {}), 1, 0.10, 0.10, (0.10, 0.10))
    lucky = Trial(Candidate("x", {}), 1, 0.30, 0.12, (0.20, 0.04))
    assert judge([lru, lucky], 1).chosen is None
    solid = Trial(Candidate("y", {}), 1, 0.31, 0.12, (0.12, 0.12))
    assert judge([lru, lucky, solid], 1).chosen is solid


def test_the_split_is_by_place() -> None:
    hits = [1] * 60 + [2] * 20 + [4] * 20
    made = trial(Candidate("x", {}), 1, [10] * 100, hits, objective_of("hit"))
    assert (made.fit, made.halves) == (0.1, (0.2, 0.4))


def test_every_candidate_is_a_valid_policy() -> None:
    every = candidates(7, 1000)
    assert len({candidate.name for candidate in every}) == len(every)
    assert len(evictions_of(every)) == len(every)
    assert candidates(7, 9) == candidates(7, 9)
    assert candidates(7, 30) != candidates(8, 30)


def test_an_interrupt_prints_the_best_so_far(
    trace_file, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, real, calls = trace_file(*hot_and_flood()), command.replay, []

    def interrupted(*args: object, **more: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(command, "replay", interrupted)
    assert main(["recommend", path, *ARGUMENTS]) == 0
    captured = capsys.readouterr()
    assert "interrupted after 6 of 12 candidates" in captured.err
    assert "apiVersion" in captured.out


def test_bad_usage(trace_file, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "-", *ARGUMENTS]) == 2
    assert main(["recommend", "missing", *ARGUMENTS]) == 2
    assert main(["recommend", trace_file(row(0, [1]), {"x": 1}), *ARGUMENTS]) == 1
    assert ":2: error:" in capsys.readouterr().err


def tenants_rows() -> list[dict[str, object]]:
    """gold asks for one prompt every tenth request; noisy asks for each of its own twice and fills the pool with it."""
    rows: list[dict[str, object]] = []
    for at in range(300):
        is_gold = at % 10 == 0
        first = 1 if is_gold else 1000 + 100 * (at // 2)
        row = {"input_ids": list(range(first, first + 64)), "timestamp": at * 1000}
        rows.append({**row, "cache_salt": "gold" if is_gold else "noisy"})
    return rows


FLOOR_ARGUMENTS = ["--capacity", "384", "--page-size", "16", "--candidates", "19"]


def test_a_floor_is_kept_though_it_costs_hits(trace_file, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = trace_file(*tenants_rows()), tmp_path / "floor.yaml"
    arguments = ["recommend", path, *FLOOR_ARGUMENTS, "--floor", "gold=60%"]
    assert main([*arguments, "-o", str(out)]) == 0
    text = out.read_text()
    assert "floor: gold at 60 %" in text
    assert "the best that keeps gold at 60 %, which LRU does not" in text
    result = load_policy(str(out))
    assert result.policy is not None, result.diagnostics
    capsys.readouterr()
    assert main([*arguments, "-o", str(tmp_path / "again.yaml")]) == 0
    assert (tmp_path / "again.yaml").read_text() == text
    capsys.readouterr()
    assert (
        main(["replay", path, "--policy", str(out), "--policy", "lru", "--capacity", "384", "--page-size", "16"]) == 0
    )


def test_a_floor_out_of_reach_is_said(trace_file, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace_file(*tenants_rows())
    assert main(["recommend", path, *FLOOR_ARGUMENTS, "--floor", "gold=70%", "--floor", "noisy=99%"]) == 1
    out = capsys.readouterr().out
    assert "no candidate keeps gold at 70 % and noisy at 99 % where it was fitted" in out
    assert "No policy is recommended" in out
    assert "apiVersion" not in out


def test_a_floor_that_nobody_can_mean_is_bad_usage(trace_file, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace_file(*tenants_rows())
    assert main(["recommend", path, *FLOOR_ARGUMENTS, "--floor", "gald=70%"]) == 2
    assert "did you mean 'gold'?" in capsys.readouterr().err
    for wrong in ("gold", "gold=70", "=70%", "gold=700%"):
        with pytest.raises(SystemExit) as stop:
            main(["recommend", path, *FLOOR_ARGUMENTS, "--floor", wrong])
        assert stop.value.code == 2


def test_floors_decide_before_hits() -> None:
    def made(name: str, fit: float, gold: tuple[float | None, float | None, float | None]) -> Trial:
        return Trial(Candidate(name, {}), 1, fit, fit, (fit, fit), {"gold": gold})

    floors = [Floor("gold", 0.5)]
    lru = made("lru", 0.30, (0.1, 0.1, 0.1))
    greedy = made("greedy", 0.50, (0.4, 0.6, 0.6))
    fair = made("fair", 0.20, (0.6, 0.5, None))  # None: it asked nothing there
    assert judge([lru, greedy, fair], 1).chosen is greedy
    assert judge([lru, greedy, fair], 1, floors).chosen is fair
    lucky = made("lucky", 0.25, (0.6, 0.6, 0.4))
    refused = judge([lru, greedy, fair, lucky], 1, floors)
    assert refused.chosen is None
    assert refused.is_floor_broken
    kind = made("lru", 0.30, (0.6, 0.6, 0.6))
    assert judge([kind, made("better", 0.4, (0.6, 0.6, 0.6)), greedy], 1, floors).chosen is not None
    assert judge([kind, fair], 1, floors).chosen is None
    assert not judge([kind, fair], 1, floors).is_floor_broken


def test_rates_of_tenants_are_by_part() -> None:
    owners = ["gold", "free"] * 50
    hits = [5, 0] * 30 + [10, 0] * 10 + [0, 0] * 10
    made = trial(Candidate("x", {}), 1, [10] * 100, hits, objective_of("hit"), owners, [Floor("gold", 0.5)])
    assert made.tenants == {"gold": (0.5, 1.0, 0.0)}
