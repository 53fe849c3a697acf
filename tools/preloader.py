"""Imports an engine once, then forks each process of it that is asked for. The other side is tools/preloaded.py.

    python preloader.py SOCKET_FD MODULE ...

A process made here is what a new interpreter would be that has just imported MODULE ...: no plugin is loaded, nothing
is patched, kvpolicy is not imported. It gets a session, an environment, a folder, standard streams and arguments of its
own. What it spawns with `multiprocessing`, and what it starts as `python -m MODULE` of an engine, is forked in the same
way from its twin, which has run nothing of it, and is its own child as ever. Standard library only, Linux only: it runs
inside an engine's environment.
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import importlib.util
import json
import multiprocessing.util
import os
import runpy
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

AT_START = "at_start"  # a module that is imported first wherever it is found: tests/engines/start
SPAWNED = "--multiprocessing-fork"  # the last word of the command of a spawned process
OURS = ("kvpolicy", "kvpolicy_sglang", "kvpolicy_vllm")
ENGINES = ("sglang", "vllm", "kvpolicy_sglang", "kvpolicy_vllm")  # packages whose modules import an engine
MOST_BYTES, MOST_FDS = 1 << 20, 64
FDS = 512  # descriptors below are a process's, those above are on their way to their numbers
_PR_SET_CHILD_SUBREAPER = 36

Body = Callable[[], None]


def main() -> None:
    link, modules = socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]
    del sys.path[0]  # this folder
    before = dict(os.environ)
    for module in modules:
        importlib.import_module(module)
    assert not {name.partition(".")[0] for name in sys.modules}.intersection(OURS), "imported with the engine"
    assert len(os.listdir("/proc/self/task")) == 1, "a thread would not survive a fork"
    by_imports = {name: value for name, value in os.environ.items() if before.get(name) != value}
    gc.collect()
    gc.freeze()
    link.send(b"{}")
    if (body := serve(link, by_imports)) is not None:
        body()


def serve(link: socket.socket, by_imports: dict[str, str], twin: bool = False) -> Body | None:
    """Answer requests until the other side is gone (None). In a process forked here: what it is to do.

    A `twin`'s are children of the process that asks; `by_imports` are environment variables that imports have set.
    """
    while True:
        message, fds, _, _ = socket.recv_fds(link, MOST_BYTES, MOST_FDS)
        if not message:
            return None
        asked = json.loads(message)
        if "poll" in asked:
            ended, status = os.waitpid(asked["poll"], os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if ended else None
            link.send(json.dumps({"number": asked.get("number"), "code": code}).encode())
            continue
        pid = _fork_for_grandparent(asked["session"]) if twin else _fork_with_session()
        if pid == 0:
            link.detach()  # closed among the others
            _settle(fds, asked["numbers"], {**by_imports, **asked["env"]}, asked["cwd"])
            _look_in(asked.get("path", []))
            return _beside_a_twin(by_imports) or _body(asked["command"])
        for fd in fds:
            os.close(fd)
        link.send(json.dumps({"number": asked.get("number"), "pid": pid}).encode())


def _fork_with_session() -> int:
    """Fork a process that has its own session, and so a group that can be ended, before its pid is known; 0 in it."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.setsid()
    os.close(writing)
    if pid != 0:
        os.read(reading, 1)
    os.close(reading)
    return pid


def _fork_for_grandparent(session: bool) -> int:
    """Fork a process whose parent is the nearest subreaper above this process: its pid, and 0 in it.

    It has that parent, and its own `session` if it gets one, before its pid is known.
    """
    reading, writing = os.pipe()
    if (between := os.fork()) == 0:
        parent = os.getpid()
        if os.fork() != 0:
            os._exit(0)
        while os.getppid() == parent:
            os.sched_yield()
        if session:
            os.setsid()
        os.write(writing, str(os.getpid()).encode())
        return 0
    os.close(writing)
    os.waitpid(between, 0)
    pid = int(os.read(reading, 32))
    os.close(reading)
    return pid


def _settle(fds: Sequence[int], numbers: Sequence[int], env: dict[str, str], cwd: str) -> None:
    """Make a forked process look newly started: `fds` at their `numbers` and no others, `env`, `cwd`, random seeds."""
    assert max(numbers) < FDS
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, FDS) for fd in fds]
    os.closerange(3, FDS)
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    if "numpy" in sys.modules:  # Python's own generator is seeded anew at each fork
        sys.modules["numpy"].random.seed()


def _beside_a_twin(by_imports: dict[str, str]) -> Body | None:
    """Fork the twin of this process, and spawn from it: None. What the twin returns is for a process forked there."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if (twin := os.fork()) == 0:
        ours.close()
        return serve(theirs, by_imports, twin=True) or _end
    theirs.close()
    _spawn_from_twin(ours)
    if "psutil" in sys.modules:
        _hide(twin, sys.modules["psutil"].Process)
    return None


def _end() -> None:
    """What a twin does that is not needed any more."""
    os._exit(0)


def _hide(twin: int, process: Any) -> None:
    """An engine that ends all children of its process (SGLang's `Engine.shutdown`) is not to see the twin."""
    stock = process.children
    process.children = lambda *args, **more: [child for child in stock(*args, **more) if child.pid != twin]


def _spawn_from_twin(twin: socket.socket) -> None:
    """From now on `multiprocessing` spawns from there, its resource tracker apart, and `subprocess` starts engines."""
    stock_spawn, stock_start, lock = multiprocessing.util.spawnv_passfds, subprocess._fork_exec, threading.Lock()

    def forked(command: list[str], env: dict[str, str], cwd: str, ends: dict[int, int], session: bool) -> int:
        """`ends`: a descriptor here for each of the new process's numbers."""
        asked = {"command": command, "env": env, "cwd": cwd, "numbers": [*ends], "session": session}
        with lock, _adopting():
            socket.send_fds(twin, [json.dumps(asked).encode()], list(ends.values()))
            pid: int = json.loads(twin.recv(MOST_BYTES))["pid"]
        return pid

    def spawn(path: Any, args: Sequence[Any], passfds: Sequence[int]) -> int:
        command = [os.fsdecode(word) for word in args]
        if command[-1] != SPAWNED:
            return stock_spawn(path, args, passfds)
        ends = {fd: fd for fd in (0, 1, 2, *passfds)}
        return forked(command, dict(os.environ), os.getcwd(), ends, session=False)

    def start(args: Sequence[Any], executables: Any, *rest: Any) -> int:
        _, kept, cwd, env, stdin, _, _, stdout, _, stderr, _, until_exec, _, session, *_ = rest
        command = [os.fsdecode(word) for word in args]
        is_engine = command[:2] == [sys.executable, "-m"] and command[2].partition(".")[0] in ENGINES
        given = dict(os.environ if env is None else (os.fsdecode(each).split("=", 1) for each in env))
        if not is_engine or given.get("PYTHONPATH") != os.environ.get("PYTHONPATH"):
            return stock_start(args, executables, *rest)
        ends = {number: number if fd == -1 else fd for number, fd in enumerate((stdin, stdout, stderr))}
        ends |= {fd: fd for fd in kept if fd != until_exec}
        return forked(command[1:], given, os.fsdecode(cwd or os.getcwd()), ends, session=session)

    multiprocessing.util.spawnv_passfds = spawn
    subprocess._fork_exec = start


@contextmanager
def _adopting() -> Iterator[None]:
    """What the twin forks is this process's child; orphans of its children, before and after, are not."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _look_in(folders: Sequence[str]) -> None:
    """For modules, before anywhere else."""
    for entry in (entry for folder in folders for entry in os.listdir(folder)):
        assert Path(entry).stem not in sys.modules, f"{entry} is asked for, and the engine's own is imported"
    sys.path[:0] = folders
    importlib.invalidate_caches()


def _body(command: list[str]) -> Body:
    """What `python COMMAND` does: a spawned process, `-m MODULE ARGUMENT ...` or `PROGRAM ARGUMENT ...`."""

    def run() -> None:
        if importlib.util.find_spec(AT_START):
            importlib.import_module(AT_START)
        if spawned:
            exec(command[command.index("-c") + 1], {"__name__": "__main__"})
        elif as_module:
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(command[0], run_name="__main__")

    spawned, as_module = command[-1] == SPAWNED, command[0] == "-m"
    if not spawned:
        sys.path.insert(0, os.getcwd() if as_module else str(Path(command[0]).parent))
    sys.argv[:] = ["-c", SPAWNED] if spawned else command[as_module:]
    return run


if __name__ == "__main__":
    main()
