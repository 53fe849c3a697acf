"""Each row of docs/demand.md has an answer that works: a policy whose tests pass, or a code or topic that explains."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvpolicy.cli.main import main
from kvpolicy.eviction.rules import RuleBook
from kvpolicy.language.codes import CODES
from kvpolicy.language.topics import TOPICS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples/demand"
POLICIES = sorted(FOLDER.glob("*.yaml"))
THREAD = re.compile(r"[\w./-]+#\d+")
#: (threads, question, answer, where) of every row
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split("|"))
    for line in (ROOT / "docs/demand.md").read_text().splitlines()
    if line.startswith("|") and THREAD.match(line.strip("| "))
]
HEADER = "apiVersion: kvpolicy/v1\nkind: KVPolicy\n"


def policies_in(where: str) -> set[str]:
    return {Path(target).name for target in re.findall(r"\]\((\.\./(?:examples|policies)/[^)]+\.yaml)\)", where)}


def explained(where: str) -> list[str]:
    return re.findall(r"`explain ([\w-]+)`", where)


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@pytest.mark.parametrize("row", ROWS, ids=[row[0].partition(",")[0] for row in ROWS])
def test_a_row_has_a_policy_or_an_explanation(row: tuple[str, ...]) -> None:
    assert len(row) == 4
    _, question, answer, where = row
    assert question
    assert answer
    assert policies_in(where) or explained(where)
    assert set(explained(where)) <= {*CODES, *TOPICS}


def test_a_thread_stands_in_one_row_only() -> None:
    threads = [thread for row in ROWS for thread in THREAD.findall(row[0])]
    assert len(threads) == len(set(threads)) > 60


@pytest.mark.parametrize("policy", POLICIES, ids=lambda path: path.stem)
def test_a_policy_names_the_threads_it_answers_and_is_linked_from_their_rows(policy: Path) -> None:
    named = set(THREAD.findall(policy.read_text().partition("\napiVersion")[0]))
    linked = {t for row in ROWS if policy.name in policies_in(row[3]) for t in THREAD.findall(row[0])}
    assert linked, "no row links to this policy"
    assert linked <= named
    assert named <= {thread for row in ROWS for thread in THREAD.findall(row[0])}


def test_their_tests_pass_and_reach_everything(capsys) -> None:
    code, out = run("test", str(FOLDER), "--coverage", "--strict", "--format", "json", capsys=capsys)
    assert code == 0, out
    reports = json.loads(out)
    assert len(reports) == len(POLICIES)
    assert all(len(report["tests"]) >= 1 and report["coverage"]["gaps"] == [] for report in reports)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda path: path.stem)
def test_their_tests_fail_under_plain_lru(policy: Path, tmp_path: Path, capsys) -> None:
    """A test that also passes without the policy would show nothing."""
    text = policy.read_text()
    section = re.search(r"^eviction:\n(?:  .*\n|\n(?=  ))+", text, re.MULTILINE)
    assert section is not None
    plain = tmp_path / "plain.yaml"
    names = re.findall(r"name: ([\w-]+)(?=\n      match|, match)", section[0])
    never = "".join(f"    - {{name: {n}, match: request.lora == 'nobody', retain: {{weight: 1}}}}\n" for n in names)
    plain.write_text(text.replace(section[0], "eviction:\n  policy: lru\n" + ("  rules:\n" + never if never else "")))
    code, out = run("test", str(plain), capsys=capsys)
    assert code == 1, out
    assert "FAIL" in out


def test_they_are_clean_for_the_checker(capsys) -> None:
    code, out = run("check", "--strict", *map(str, POLICIES), "--engine", "sglang", capsys=capsys)
    assert code == 0, out


def test_the_retention_test_sees_a_ttl_that_ends_too_late(capsys) -> None:
    """sglang#27970, with a fault put in: the clock's 299 and 301 s are told apart."""
    set_expiry = RuleBook._set_expiry
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            RuleBook,
            "_set_expiry",
            lambda self, handle, meta, expiry_ms: set_expiry(self, handle, meta, expiry_ms and expiry_ms + 2000),
        )
        code, out = run("test", str(FOLDER / "decaying_priority.yaml"), capsys=capsys)
    assert code == 1
    assert "agent is in the cache and unprotected" in out


@pytest.mark.parametrize(("budget", "code", "found"), [("42%", 1, "KVP308"), ("33%", 0, None)])
def test_pinned_sessions_that_exceed_the_pool_fail_the_check(tmp_path: Path, capsys, budget, code, found) -> None:
    """Three sessions of 5 pages in a pool of 12 (sglang#27024, vllm#49439): 3 * 5 / 12 is 125 %."""
    rules = "".join(
        f"    - {{name: {name}, match: request.session_id == '{name}', retain: {{weight: 8, budget: {budget}}}}}\n"
        for name in ("ana", "ben", "cem")
    )
    path = tmp_path / "pins.yaml"
    path.write_text(f"{HEADER}eviction:\n  policy: lru\n  rules:\n{rules}")
    exit_code, out = run("check", str(path), "--format", "json", capsys=capsys)
    assert exit_code == code
    assert {item["code"] for item in json.loads(out)} == ({found} if found else set())


def test_pins_that_leave_less_than_one_request_fail_the_strict_check(tmp_path: Path, capsys) -> None:
    path = tmp_path / "pins.yaml"
    path.write_text(
        f"{HEADER}eviction:\n  rules:\n    - {{name: pin, match: hits >= 1, retain: {{weight: 8, budget: 99%}}}}\n"
    )
    deployment = ("--model", str(ROOT / "tests/facts/models/llama-3.1-8b.json"), "--gpu", "h200")
    for strict, code in ((), 0), (("--strict",), 1):
        exit_code, out = run("check", str(path), "--engine", "sglang==0.5.20", *deployment, *strict, capsys=capsys)
        assert exit_code == code
        assert "KVP523" in out
