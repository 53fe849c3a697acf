"""Every shipped policy has tests, they pass, and together they reach every rule and both sides of every condition."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvpolicy.cli.init import scaffold
from kvpolicy.cli.main import main
from kvpolicy.language.shipped_policies import shipped

from .conftest import HEADER, HOT, one_test

POLICIES = Path(__file__).resolve().parents[2] / "policies"


@pytest.fixture(scope="module")
def reports() -> dict[str, dict]:
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["test", str(POLICIES), "--coverage", "--strict", "--format", "json"]) == 0
    return {Path(item["file"]).stem: item for item in json.loads(out.getvalue())}


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_policy_is_covered_by_its_own_tests(reports, name: str) -> None:
    report = reports[name]
    assert len(report["tests"]) >= 2
    assert all(test["passed"] for test in report["tests"])
    assert report["coverage"]["gaps"] == []
    for rule in report["coverage"]["rules"]:
        assert rule["matched"] > 0
        assert rule["passed"] > 0


@pytest.mark.parametrize("name", shipped())
def test_its_tests_notice_when_a_rule_or_the_order_is_gone(tmp_path: Path, name: str, capsys) -> None:
    """A test that cannot fail proves nothing: each rule's match is turned into one that never holds."""
    text = (POLICIES / f"{name}.yaml").read_text()
    lines = [line for line in text.splitlines() if line.lstrip().startswith("match:")]
    for line in lines:
        never = line[: line.index("match:")] + 'match: request.lora == "nobody"'
        (tmp_path / "p.yaml").write_text(text.replace(line, never))
        assert main(["test", str(tmp_path / "p.yaml")]) == 1
        assert "FAIL" in capsys.readouterr().out
    if not lines:  # only an order: another one must fail
        order = re.search(r"^  policy: (\w+)$", text, re.MULTILINE)
        assert order is not None
        (tmp_path / "p.yaml").write_text(text.replace(order[0], f"  policy: {'fifo' if order[1] == 'lru' else 'lru'}"))
        assert main(["test", str(tmp_path / "p.yaml")]) == 1
        assert "FAIL" in capsys.readouterr().out


def test_random_workloads_keep_the_invariants_of_all(capsys) -> None:
    assert main(["test", str(POLICIES), "--fuzz", "6", "--seed", "11"]) == 0
    assert capsys.readouterr().out.count("kept the invariants (seed 11)") == len(shipped())


def test_the_scaffold_passes_its_tests_with_full_coverage(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine.yaml", "--test"]) == 0
    assert main(["test", "--coverage", "--strict"]) == 0
    assert "mine.yaml: 3 passed" in capsys.readouterr().out
    assert "tests:" not in scaffold("mine", "mine.yaml")


def test_a_gap_is_named_and_fails_only_when_strict(tmp_path: Path, capsys) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(one_test("a:8 hit none", policy=HOT.replace("hits >= 1", "hits >= 1 and depth_tokens < 32")))
    assert main(["test", str(path), "--coverage"]) == 0
    out = capsys.readouterr().out
    assert "not covered: rule hot never matched" in out
    assert "not covered: rule out never matched" in out
    assert main(["test", str(path), "--coverage", "--strict"]) == 1
    path.write_text(one_test("a:8 x2 hit 8", policy=HOT.replace("hits >= 1", "hits >= 1 and depth_tokens < 32")))
    capsys.readouterr()
    main(["test", str(path), "--coverage"])
    assert "rule hot: `depth_tokens < 32` was never false" in capsys.readouterr().out
    path.write_text(
        HEADER + "eviction: {score: 2 if is_output else 1}\ntests: [{name: a, pool: 8, steps: [a:4 hit 0]}]\n"
    )
    main(["test", str(path), "--coverage"])
    assert "score: `is_output` was never true" in capsys.readouterr().out


def test_a_failure_says_where_and_why_in_text_and_json(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.yaml").write_text(one_test("a:16", "b:64", "+1s a hit all"))
    assert main(["test", "p.yaml"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "p.yaml:14:15: FAIL one (by node)"
    assert lines[1:3] == ["   14 |       - +1s a hit all", "      |               ^"]
    assert lines[3:6] == [
        "        after:    +1s a hit all",
        "        expected: hit 16 tokens (all)",
        "        got:      hit 0 tokens; a was evicted, unprotected, by `b:64` (line 13)",
    ]
    assert main(["test", "p.yaml", "--format", "json"]) == 1
    ((test,),) = [item["tests"] for item in json.loads(capsys.readouterr().out)]
    assert (test["passed"], test["failures"][0]["line"], test["failures"][0]["col"]) == (False, 14, 15)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nowhere.yaml"], 2),
        (["empty"], 2),
        (["bad.yaml"], 1),
        (["chat"], 0),
        (["none.yaml"], 0),
        (["chat", "--strict"], 2),
        (["chat", "--fuzz", "0"], 2),
        (["chat", "--fuzz", "1", "--coverage"], 2),
    ],
)
def test_exit_codes(tmp_path: Path, monkeypatch, arguments: list[str], code: int) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("empty/other.yaml").write_text("a: b\n")
    Path("bad.yaml").write_text(HEADER + "tests: [1]\n")
    Path("none.yaml").write_text(HEADER)
    assert main(["test", *arguments]) == code
