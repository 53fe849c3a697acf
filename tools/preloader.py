"""Imports an engine once, then forks each process of it that is asked for. The other side is tools/preloaded.py.

    python preloader.py SOCKET_FD MODULE ...

A process made here is what a new interpreter would be that has just imported MODULE ...: no plugin is loaded, nothing
is patched, kvpolicy is not imported. It gets a session, an environment, a folder, standard streams and arguments of its
own. What it spawns with `multiprocessing` is forked in the same way from its twin, which has run nothing of it, and is
its own child as ever. Standard library only, Linux only: it runs inside an engine's environment.
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
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

AT_START = "at_start"  # a module that is imported first wherever it is found: tests/engines/start
SPAWNED = "--multiprocessing-fork"  # the last word of the command of a spawned process
OURS = ("kvpolicy", "kvpolicy_sglang", "kvpolicy_vllm")
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
        pid = _fork_for_grandparent() if twin else _fork_with_session()
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


def _fork_for_grandparent() -> int:
    """Fork a process whose parent is the nearest subreaper above this process: its pid, and 0 in it."""
    reading, writing = os.pipe()
    if (between := os.fork()) == 0:
        parent = os.getpid()
        if (pid := os.fork()) != 0:
            os.write(writing, str(pid).encode())
            os._exit(0)
        while os.getppid() == parent:
            time.sleep(0.001)
        return 0
    os.close(writing)
    pid = int(os.read(reading, 32))
    os.close(reading)
    os.waitpid(between, 0)
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
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
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
    """From now on `multiprocessing` spawns from there; its resource tracker stays a new interpreter."""
    stock, lock = multiprocessing.util.spawnv_passfds, threading.Lock()

    def spawn(path: Any, args: Sequence[Any], passfds: Sequence[int]) -> int:
        command = [os.fsdecode(word) for word in args]
        if command[-1] != SPAWNED:
            return stock(path, args, passfds)
        numbers = [0, 1, 2, *sorted(set(passfds))]
        asked = {"command": command, "env": dict(os.environ), "cwd": os.getcwd(), "numbers": numbers}
        with lock:
            socket.send_fds(twin, [json.dumps(asked).encode()], numbers)
            pid: int = json.loads(twin.recv(MOST_BYTES))["pid"]
        return pid

    multiprocessing.util.spawnv_passfds = spawn


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
