"""A program forked from a process that has its imports already is what it would be in a new interpreter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import Program, with_path
from tools import preloaded
from tools.environment import START, EngineEnv

PROGRAM = """\
import json, multiprocessing, os, psutil, subprocess, sys
import tell

def child(sender):
    sender.send([os.getppid(), os.getcwd(), os.environ["ADDED"], "hook" in vars(sys)])
    sys.exit(3)

if __name__ == "__main__":
    os.environ["ADDED"], sys.hook = "by the program", True
    children = []
    for method in ("spawn", "spawn", "fork"):
        context = multiprocessing.get_context(method)
        receiver, sender = context.Pipe(False)
        process = context.Process(target=child, args=(sender,))
        process.start()
        children.append(receiver.recv())
        process.join()
        assert process.exitcode == 3
        for left in psutil.Process().children(recursive=True):  # as SGLang's Engine.shutdown does
            left.kill()
    reading, writing = os.pipe()
    started = subprocess.Popen(
        [sys.executable, "-m", "vllm", str(writing)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        pass_fds=[writing], start_new_session=True, cwd="/usr", env={**os.environ, "ADDED": "for it"},
    )
    os.close(writing)
    said, _ = started.communicate("asked")
    tell.tell({
        "engine": [*json.loads(said.splitlines()[-1]), *(os.read(reading, 99).decode() for _ in "12"), started.wait()],
        "argv": sys.argv, "pid": os.getpid(), "ids": [os.getsid(0), os.getpgid(0)], "cwd": os.getcwd(),
        "main": __name__, "variable": os.environ.get("GIVEN"), "children": children,
        "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:3],
    })
    sys.exit(int(sys.argv[1]))
"""
TELL = """\
import json
def tell(value): print("TOLD " + json.dumps(value))
"""
#: What a program starts as an engine of its own.
ENGINE = """\
import json, os, sys
os.write(int(sys.argv[1]), b"through the pipe")
is_preloaded = "colorsys" in sys.modules
seen = [os.getppid(), os.getcwd(), os.environ["ADDED"], "hook" in vars(sys), os.getsid(0) == os.getpid()]
print(json.dumps([*seen, sys.stdin.read(), is_preloaded]))
sys.exit(5)
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineEnv]:
    """Python and one package are all that is imported here."""
    monkeypatch.setattr(preloaded, "MODULES", {"none": ("psutil", "colorsys")})
    monkeypatch.setattr(preloaded, "_kept", kept := {})
    monkeypatch.delenv(preloaded.COLD, raising=False)
    (tmp_path / "path").mkdir()
    (tmp_path / "path/tell.py").write_text(TELL)
    (tmp_path / "path/vllm.py").write_text(ENGINE)
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(START)}
    yield with_path(EngineEnv("0", Path(sys.executable), env, "none"), tmp_path / "path", KVPOLICY_GIVEN="1")
    for preloader in kept.values():
        preloader.close()


@pytest.mark.parametrize("cold", [False, True])
def test_a_program_and_what_it_spawns(
    engine: EngineEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    """The same in a new interpreter: this is what that is."""
    if cold:
        monkeypatch.setenv(preloaded.COLD, "1")
    for _ in range(2):
        program = Program(engine, tmp_path / "program.py", "0", "two words")
        assert isinstance(program._process, subprocess.Popen) == cold
        (told,) = program.told()
        assert told["argv"] == [str(tmp_path / "program.py"), "0", "two words"]
        assert told["ids"] == [told["pid"], told["pid"]] == [program._process.pid] * 2
        assert (told["cwd"], told["main"], told["variable"]) == (os.path.sep, "__main__", None)
        # What is spawned has this process for its parent, its environment, and nothing of what it did; a fork has all.
        spawned = [told["pid"], os.path.sep, "by the program", False]
        assert told["children"] == [spawned, spawned, [*spawned[:3], True]]
        started = [told["pid"], "/usr", "for it", False, True, "asked", not cold, "through the pipe", "", 5]
        assert told["engine"] == started, "in a session of its own, with the ends that it was given and no others"


def test_how_a_program_ends(engine: EngineEnv, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="exit code 7"):
        Program(engine, tmp_path / "program.py", "7").told()
    (tmp_path / "sleep.py").write_text("import time\ntime.sleep(600)\n")
    program = Program(engine, tmp_path / "sleep.py")
    assert program._process.poll() is None
    program.stop()
    assert program._process.returncode == -signal.SIGKILL
    (tmp_path / "raise.py").write_text("raise ValueError('because')\n")
    with pytest.raises(AssertionError, match="ValueError: because"):
        Program(engine, tmp_path / "raise.py").told()


def test_an_answer_that_a_timeout_left_unread_is_not_taken_for_another(engine: EngineEnv, tmp_path: Path) -> None:
    (tmp_path / "sleep.py").write_text("import time\ntime.sleep(600)\n")
    program = Program(engine, tmp_path / "sleep.py")
    (preloader,) = preloaded._kept.values()
    preloader.link.send(json.dumps({"poll": program._process.pid, "number": preloader.asked}).encode())
    preloader.asked += 1
    assert Program(engine, tmp_path / "program.py", "0").told()
    program.stop()


def test_another_module_of_an_imported_name_is_refused(engine: EngineEnv, tmp_path: Path) -> None:
    (tmp_path / "path/colorsys.py").write_text("")
    with pytest.raises(AssertionError, match=r"colorsys\.py is asked for"):
        Program(engine, tmp_path / "program.py", "0").told()


def test_code_for_the_start_of_an_interpreter_gets_a_new_one(engine: EngineEnv, tmp_path: Path) -> None:
    (tmp_path / "path/sitecustomize.py").write_text("print('at the start')\n")
    program = Program(engine, tmp_path / "program.py", "0")
    program.told()
    assert program.log.startswith("at the start\n")


def test_modules_that_cannot_be_imported_are_said(engine: EngineEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preloaded, "MODULES", {"none": ("no_such_module",)})
    with pytest.raises(RuntimeError, match="No module named 'no_such_module'"):
        Program(engine, "program.py")


def test_one_process_serves_all_programs_of_an_environment(engine: EngineEnv, tmp_path: Path) -> None:
    other = with_path(engine, OTHER="1")
    for each in (engine, engine, other, with_path(engine, KVPOLICY_MORE="1")):
        Program(each, tmp_path / "program.py", "0").told()
    assert len(preloaded._kept) == 2
    for number in range(4):
        Program(with_path(engine, NUMBER=str(number)), tmp_path / "program.py", "0").told()
    assert len(preloaded._kept) == preloaded.MOST_KEPT
