"""Every code is explained, its bad example raises it through the real command, and its good one does not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvpolicy.cli.main import main
from kvpolicy.language.codes import CODES, Code
from kvpolicy.language.topics import TOPICS
from kvpolicy.live.symptoms import SYMPTOMS

PACKAGE = Path(__file__).parents[2] / "kvpolicy"


def findings(code: Code, which: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(folder)
    (folder / "policy.yaml").write_bytes(code.example(which))
    for name, text in code.files.items():
        (folder / name).write_text(text)
    args = code.good_args if which == "good" and code.good_args is not None else code.args
    if code.code != "KVP101" or which == "good":  # its bad example is the argument itself, not a file's text
        args = ("policy.yaml", *(args if code.code != "KVP101" else ()))
    main(["check", *args, "--format", "json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
def test_the_bad_example_raises_the_code(code, tmp_path, monkeypatch, capsys) -> None:
    found = findings(code, "bad", tmp_path, monkeypatch, capsys)
    assert code.code in [item["code"] for item in found]


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
def test_the_good_example_is_a_usable_policy(code, tmp_path, monkeypatch, capsys) -> None:
    found = findings(code, "good", tmp_path, monkeypatch, capsys)
    assert code.code not in [item["code"] for item in found]
    assert [item for item in found if item["severity"] == "error"] == []


def test_every_code_in_the_sources_is_registered_and_every_registered_one_is_used() -> None:
    sources = [p for p in PACKAGE.rglob("*.py") if p.parent.name != "codes" and p.name != "symptoms.py"]
    used = {code for path in sources for code in re.findall(r"KVP[1-9]\d\d", path.read_text())}
    assert used == {*CODES, *SYMPTOMS}


@pytest.mark.parametrize("code", SYMPTOMS.values(), ids=SYMPTOMS)
def test_explain_of_what_a_server_may_have(code, capsys) -> None:
    assert main(["explain", code.code]) == 0
    out = capsys.readouterr().out
    assert f"{code.code}: {code.title}" in out
    assert "kvpolicy doctor" in out
    assert main(["explain", code.code, "--format", "json"]) == 0


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
def test_explain_prints_text_and_both_examples(code, capsys) -> None:
    assert main(["explain", code.code]) == 0
    out = capsys.readouterr().out
    assert code.code in out
    assert code.title in out
    assert code.code == "KVP101" or ("\nbad (kvpolicy check policy.yaml" in out and "\ngood" in out)
    assert out.isascii() or code.code == "KVP104"
    assert len(out) < 20_000


def test_explain_takes_a_bare_number_and_lists_without_one(capsys) -> None:
    assert main(["explain", "301"]) == 0
    assert capsys.readouterr().out.startswith("KVP301: ")
    assert main(["explain"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [*CODES, *SYMPTOMS, *TOPICS]


def test_explain_of_an_unknown_code_is_bad_usage(capsys) -> None:
    assert main(["explain", "KVP999"]) == 2
    assert "KVP999" in capsys.readouterr().err


def test_explain_as_json(capsys) -> None:
    assert main(["explain", "KVP301", "--format", "json"]) == 0
    (item,) = json.loads(capsys.readouterr().out)
    assert item["code"] == "KVP301"
    assert {"title", "text", "bad", "good"} <= set(item)
