"""Starts programs of an engine without importing it again each time: an import costs ten seconds of a processor, and a
SGLang server makes three.

`start` keeps a few processes that have imported an engine and do nothing else (tools/preloader.py, which says what a
process forked there is), one for each environment, and has them fork the program and all that it spawns.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from tools.environment import START, EngineEnv

PRELOADER = Path(__file__).with_name("preloader.py")
#: If set, every program starts in a new interpreter.
COLD = "KVPOLICY_TEST_COLD"
#: What the processes of an engine import. Not the plugins, and nothing of ours.
MODULES = {
    "sglang": (
        "sglang.srt.entrypoints.http_server",
        "sglang.srt.managers.scheduler",
        "sglang.srt.managers.detokenizer_manager",
        "sglang.srt.models.registry",  # imports every model
    ),
    "vllm": ("vllm.entrypoints.llm", "vllm.entrypoints.openai.api_server", "vllm.v1.worker.cpu_worker"),
}
MOST_KEPT = 4  # half a gigabyte each
#: Variables that no engine reads while it is imported, or (..._PLUGINS) for plugins of a kind that nobody has here.
_READ_LATER = (
    *("KVPOLICY_", "PYTHONPATH"),
    *("SGLANG_ENABLE_STRICT_MEM_CHECK_", "SGLANG_CHECK_KV_PAGE_INVARIANTS", "SGLANG_PLUGINS"),
    *("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_PLUGINS", "VLLM_SERVER_DEV_MODE"),
    *("PROOF_FAULTS", "WITNESS"),  # of plugins of the tests
)


class Process:
    """A running program: what `subprocess.Popen` has of the same names."""

    def __init__(self, preloader: _Preloader, pid: int, args: list[str]) -> None:
        self.pid = pid
        self.args = args
        self.returncode: int | None = None
        self._preloader = preloader

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._preloader.ask({"poll": self.pid})["code"]
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.02)
        return code


class _Preloader:
    """One process that has imported an engine, and what it has forked."""

    def __init__(self, engine: EngineEnv, env: dict[str, str]) -> None:
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.made: list[Process] = []
        self.asked = 0
        command = [str(engine.python), str(PRELOADER), str(theirs.fileno()), *MODULES[engine.name]]
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            self.process = subprocess.Popen(
                command,
                env=env,
                cwd=os.path.sep,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            theirs.close()
            if not self.link.recv(1024):
                output.seek(0)
                said = f"the modules of {engine.name} {engine.version} cannot be imported:\n{output.read()[-6000:]}"
                raise RuntimeError(said)

    def ask(self, what: dict[str, Any], fds: Sequence[int] = ()) -> dict[str, Any]:
        """`what` with a number, which the answer has too: a test's timeout may have left another one unread."""
        self.asked += 1
        socket.send_fds(self.link, [json.dumps({**what, "number": self.asked}).encode()], fds)
        while True:
            answer: dict[str, Any] = json.loads(self.link.recv(1 << 16))
            if answer["number"] == self.asked:
                return answer

    def start(
        self, args: list[str], path: list[str], env: dict[str, str], cwd: Path | str | None, *outputs: IO[Any]
    ) -> Process:
        asked = {"command": args, "path": path, "env": env, "cwd": str(cwd or os.getcwd()), "numbers": [0, 1, 2]}
        with open(os.devnull) as nothing:
            answer = self.ask(asked, [nothing.fileno(), *(output.fileno() for output in outputs)])
        self.made.append(Process(self, answer["pid"], args))
        return self.made[-1]

    def in_use(self) -> bool:
        return any(process.poll() is None for process in self.made)

    def close(self) -> None:
        self.link.close()  # the other side ends by itself
        self.process.wait()


_kept: dict[tuple[Any, ...], _Preloader] = {}  # the one used last is last


def start(
    engine: EngineEnv,
    args: Sequence[str],
    *,
    output: IO[Any],
    errors: IO[Any] | None = None,
    cwd: Path | str | None = None,
    fresh: bool = False,
) -> Process | subprocess.Popen[bytes]:
    """`python args` (`-m MODULE ...` or `PROGRAM ...`) with the environment of `engine`, in a session of its own.

    Standard output goes to `output`, a file, and standard error too unless there is one for `errors`. `fresh`: in a new
    interpreter. So it is too where code is to run at its very start (a `sitecustomize` in front of the tests' own), and
    always if KVPOLICY_TEST_COLD is set.
    """
    errors = output if errors is None else errors
    path = engine.env.get("PYTHONPATH", "").split(os.pathsep)
    added = path[: path.index(str(START))]
    if fresh or os.environ.get(COLD) or any(Path(folder, "sitecustomize.py").exists() for folder in added):
        return subprocess.Popen(
            [str(engine.python), *args],
            cwd=cwd,
            env=engine.env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
    imported_with = {name: value for name, value in engine.env.items() if not name.startswith(_READ_LATER)}
    imported_with["PYTHONPATH"] = os.pathsep.join(path[len(added) :])
    key = (engine.python, *sorted(imported_with.items()))
    if key in _kept:
        preloader = _kept.pop(key)
    else:
        _make_room()
        preloader = _Preloader(engine, imported_with)
    _kept[key] = preloader
    return preloader.start(list(args), added, engine.env, cwd, output, errors)


def _make_room() -> None:
    for key in list(_kept):
        if len(_kept) < MOST_KEPT:
            break
        if not _kept[key].in_use():
            _kept.pop(key).close()


@atexit.register
def _close() -> None:
    for preloader in _kept.values():
        preloader.close()
