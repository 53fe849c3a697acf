"""The check command: exit codes, several files, formats, strictness, streams."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kvpolicy.cli.main import COMMANDS, main
from kvpolicy.cli.render import render
from kvpolicy.language import Diagnostic
from kvpolicy.language.source import Source

ROOT = Path(__file__).parents[2]
HEADER = "apiVersion: kvpolicy/v1\nkind: KVPolicy\n"
GOOD = HEADER + "eviction: {policy: lru}\n"
BAD = HEADER + "eviction: {policy: lri}\n"
WARNS = HEADER + "eviction: {tenants: {cap: 40%, max_floors: 4}}\n"


def kvpolicy(*args: str, stdin: bytes = b"", cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[bytes]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "kvpolicy.cli", *args],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, **env},
        timeout=60,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "good": GOOD,
        "bad": BAD,
        "warns": WARNS,
        "empty": "",
        "orphan": HEADER + "extends: no.yaml\n",
    }.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "binary.yaml").write_bytes(b"\x00\x01")
    (tmp_path / "broken.yaml").write_text("a: {\n")
    return tmp_path


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["good.yaml"], 0),
        (["warns.yaml"], 0),
        (["--strict", "warns.yaml"], 1),
        (["--strict", "good.yaml"], 0),
        (["bad.yaml"], 1),
        (["empty.yaml"], 1),
        (["binary.yaml"], 1),
        (["broken.yaml"], 1),
        (["orphan.yaml"], 1),
        (["good.yaml", "bad.yaml"], 1),
        (["missing.yaml"], 2),
        (["."], 2),
        (["missing.yaml", "bad.yaml"], 2),
        (["bad.yaml", "missing.yaml", "good.yaml"], 2),
        (["chat"], 0),
        (["chta"], 2),
        (["good.yaml", "--engine", "tgi"], 2),
        (["good.yaml", "--engine", "vllm"], 0),
    ],
)
def test_exit_codes(folder, capsys, args, code) -> None:
    assert main(["check", *args]) == code


@pytest.mark.parametrize(
    "args", [[], ["check"], ["check", "--format", "xml", "good.yaml"], ["chekc"], ["check", "x", "--no"]]
)
def test_bad_usage_is_two(folder, args) -> None:
    run = kvpolicy(*args, cwd=folder)
    assert run.returncode == 2
    assert run.stderr
    assert b"Traceback" not in run.stderr


def test_an_unreadable_file_is_bad_usage(folder) -> None:
    secret = folder / "secret.yaml"
    secret.write_text(GOOD)
    secret.chmod(0)
    if os.access(secret, os.R_OK):
        pytest.skip("runs as a user who may read everything")
    assert main(["check", "secret.yaml"]) == 2


def test_what_cannot_be_opened_is_bad_usage_for_root_too(folder, capsys) -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind("socket.yaml")
        assert main(["check", "socket.yaml"]) == 2
    assert "socket.yaml:1:1: KVP101 error: cannot open the file" in capsys.readouterr().out


def test_the_others_are_still_reported_beside_a_missing_one(folder, capsys) -> None:
    assert main(["check", "missing.yaml", "bad.yaml", "--format", "json"]) == 2
    assert [(d["file"], d["code"]) for d in json.loads(capsys.readouterr().out)] == [
        ("missing.yaml", "KVP101"),
        ("bad.yaml", "KVP302"),
    ]


def test_text_shows_the_place_the_line_and_what_to_do(folder, capsys) -> None:
    main(["check", "bad.yaml"])
    assert capsys.readouterr().out == (
        "bad.yaml:3:20: KVP302 error: there is no eviction policy 'lri'\n"
        "    3 | eviction: {policy: lri}\n"
        "      |                    ^\n"
        "        help: did you mean 'lru'?\n"
        "1 policy checked: 1 error\n"
    )
    main(["check", "good.yaml", "warns.yaml"])
    assert capsys.readouterr().out.endswith("2 policies checked: 1 warning\n")
    main(["check", "good.yaml"])
    assert capsys.readouterr().out == "1 policy checked: no problems\n"


def test_json_is_one_list_with_the_agreed_keys(folder, capsys) -> None:
    (folder / "score.yaml").write_text(HEADER + "eviction: {score: hits}\n")
    main(["check", "bad.yaml", "score.yaml", "--format", "json"])
    error, info = json.loads(capsys.readouterr().out)
    assert set(error) == {"file", "line", "col", "code", "severity", "message", "help"}
    assert (error["line"], error["col"], error["severity"]) == (3, 20, "error")
    assert set(info) == {*error, "data"}
    assert info["severity"] == "info"
    main(["check", "good.yaml", "--format", "json"])
    assert json.loads(capsys.readouterr().out) == []


def test_github_annotations_escape_what_a_policy_says(folder, capsys) -> None:
    (folder / "odd,name:1.yaml").write_text(HEADER + 'eviction: {policy: "100%\\n::error::x"}\n')
    main(["check", "odd,name:1.yaml", "--format", "github"])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("::error file=odd%2Cname%3A1.yaml,line=3,col=20,title=KVP302::")
    assert "100%25%0A" in line


def test_sarif(folder, capsys) -> None:
    main(["check", "bad.yaml", "warns.yaml", "--format", "sarif"])
    log = json.loads(capsys.readouterr().out)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["KVP302", "KVP317"]
    first, second = run["results"]
    assert (first["ruleId"], first["level"], second["level"]) == ("KVP302", "error", "warning")
    assert run["tool"]["driver"]["rules"][second["ruleIndex"]]["id"] == second["ruleId"]
    place = first["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "bad.yaml"}, "region": {"startLine": 3, "startColumn": 20}}


def test_strict_is_seen_in_every_format(folder, capsys) -> None:
    main(["check", "--strict", "warns.yaml", "--format", "json"])
    assert [d["severity"] for d in json.loads(capsys.readouterr().out)] == ["error"]


def test_stdin(folder) -> None:
    assert kvpolicy("check", "-", stdin=GOOD.encode()).returncode == 0
    run = kvpolicy("check", "-", stdin=BAD.encode())
    assert run.returncode == 1
    assert run.stdout.startswith(b"<stdin>:3:20: KVP302")
    assert kvpolicy("check", "-", stdin=b"x" * 10_000_000).stdout.startswith(b"<stdin>:1:1: KVP105")


def test_a_reader_that_leaves_early_is_no_error(folder) -> None:
    (folder / "long.yaml").write_text(HEADER + "".join(f"key{i}: 1\n" for i in range(3000)))
    command = f"{sys.executable} -m kvpolicy.cli check long.yaml; echo code $? >&2"
    run = subprocess.run(
        ["bash", "-c", f"({command}) | head -1"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    assert run.stdout.count("\n") == 1
    assert "Traceback" not in run.stderr
    assert "BrokenPipe" not in run.stderr


def test_a_terminal_without_utf_8_still_gets_a_report(folder) -> None:
    (folder / "wide.yaml").write_text(HEADER + "日本: é\n", encoding="utf-8")
    run = kvpolicy("check", "wide.yaml", cwd=folder, PYTHONIOENCODING="ascii")
    assert run.returncode == 1
    assert b"KVP201" in run.stdout
    assert b"Traceback" not in run.stderr


def test_colour_only_on_a_terminal_and_not_with_no_color(folder) -> None:
    pty = pytest.importorskip("pty")

    def output(**env: str) -> bytes:
        leader, follower = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "kvpolicy.cli", "check", "bad.yaml"],
            stdout=follower,
            stderr=follower,
            cwd=folder,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TERM": "xterm", **env},
        )
        os.close(follower)
        text = b""
        try:
            while chunk := os.read(leader, 4096):
                text += chunk
        except OSError:
            pass  # how a pseudo-terminal says that its other end is closed
        os.close(leader)
        process.wait(timeout=60)
        return text

    assert b"\x1b[1;31mKVP302 error:" in output()
    assert b"\x1b" not in output(NO_COLOR="1")
    assert b"\x1b" not in output(TERM="dumb")
    assert b"\x1b" not in kvpolicy("check", "bad.yaml", cwd=folder).stdout


def caret(text: str, col: int) -> tuple[str, str]:
    source = Source("p.yaml", text)
    d = Diagnostic("p.yaml", 1, col, "KVP201", "error", "m")
    _, line, mark, _ = render([d], "text", {"p.yaml": source}, checked=1, colour=False).split("\n", 3)
    return line.removeprefix("    1 | "), mark.removeprefix("      | ")


def test_the_caret_stands_under_the_character() -> None:
    assert caret("a: bad", 4) == ("a: bad", "   ^")
    assert caret("a:\tbad", 4) == ("a:    bad", "      ^")
    assert caret("日本: bad", 5) == ("日本: bad", "      ^")
    assert caret("e\u0301: bad", 5) == ("e\u0301: bad", "   ^")
    assert caret("a: b", 5) == ("a: b", "    ^")


def test_long_lines_are_cut_around_the_caret() -> None:
    line, mark = caret("x" * 5000 + "BAD" + "y" * 5000, 5001)
    assert len(line) < 140
    assert line.startswith("...")
    assert line.endswith("...")
    assert line[len(mark) - 1 :].startswith("BAD")


def test_a_policy_cannot_send_escapes_to_the_terminal() -> None:
    line, _ = caret("a: \x1b[31mred", 4)
    assert "\x1b" not in line
    d = Diagnostic("evil\x1b[2J.yaml", 1, 1, "KVP201", "error", "says \x1b]0;x\x07 and\nmore", "help \x1b")
    assert "\x1b" not in render([d], "text", {}, checked=1, colour=False)


def test_version_imports_little() -> None:
    assert kvpolicy("--version").stdout.startswith(b"kvpolicy ")
    code = "import atexit, sys; atexit.register(lambda: print(sorted(sys.modules)))\n"
    code += "from kvpolicy.cli.main import main; main(['--version'])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    assert not {"pydantic", "yaml", "torch", "numpy", "kvpolicy.language"} & set(eval(run.stdout.splitlines()[-1]))


def test_check_imports_no_engine_and_no_torch() -> None:
    code = "import sys; from kvpolicy.cli.main import main; main(['check', 'chat']); print(sorted(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    assert not {"torch", "sglang", "vllm", "numpy", "transformers"} & set(eval(run.stdout.splitlines()[-1]))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"kvpolicy {command}" in capsys.readouterr().out


def test_a_mistyped_command_is_suggested(capsys) -> None:
    assert main(["chekc"]) == 2
    assert "did you mean 'check'?" in capsys.readouterr().err


def test_a_gpu_alone_says_nothing(capsys) -> None:
    assert main(["check", "chat", "--gpu", "h200"]) == 2
    assert capsys.readouterr().err == ("kvpolicy check: --gpu says nothing by itself (add --engine, --model or both)\n")
