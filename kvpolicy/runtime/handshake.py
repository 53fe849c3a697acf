"""Proof that every scheduler process runs the policy, asked for before the server answers or the engine object returns.

Engines swallow plugin failures, so a child could serve without its policy and look healthy. Each scheduler therefore
writes one report into a directory private to this start (named in the carried policy) when it is fully built, and the
launcher compares the reports with the processes it started, whatever their arrangement (tensor, pipeline or data
parallel).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["Mismatch", "discard", "failure", "new_directory", "report", "report_failure", "verify"]


class Mismatch(Exception):
    """A scheduler process did not prove that it runs the policy."""


def new_directory() -> str:
    """A directory only this user can read."""
    return tempfile.mkdtemp(prefix="kvpolicy-")


def discard(directory: str) -> None:
    """Remove the directory; missing is fine."""
    shutil.rmtree(directory, ignore_errors=True)


def _write(directory: str, name: str, data: Any) -> None:
    path = Path(directory) / name
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(data), encoding="utf-8")
    os.replace(partial, path)


def report(directory: str, facts: dict[str, Any]) -> None:
    """A scheduler says what it runs. One that joins a server that already serves has nobody left to tell."""
    if not os.path.isdir(directory):
        return
    _write(directory, f"ready-{os.getpid()}.json", {**facts, "pid": os.getpid(), "parent_pid": os.getppid()})


def report_failure(directory: str, message: str) -> None:
    """A scheduler says why it ends, so that the launcher can say it last. Best effort: it is printed anyway."""
    with contextlib.suppress(OSError):
        _write(directory, f"failed-{os.getpid()}.json", message)


def failure(directory: str) -> str | None:
    """The first failure a scheduler reported."""
    for path in sorted(Path(directory).glob("failed-*.json")):
        return str(json.loads(path.read_text(encoding="utf-8")))
    return None


def verify(
    directory: str,
    digest: str,
    pids: list[int],
    *,
    what: str = "scheduler",
    allowlist: str = "the plugin allowlist",
) -> list[dict[str, Any]]:
    """The reports of all `pids`, or :class:`Mismatch` naming the first process without one or with another digest.

    `what` the engine calls such a process, and `allowlist`, its variable that selects plugins, are for the message.
    """
    reports: dict[int, dict[str, Any]] = {}
    for path in Path(directory).glob("ready-*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        reports[found["pid"]] = found
        reports.setdefault(found["parent_pid"], found)  # a NUMA wrapper may stand between
    if not pids:
        raise Mismatch("the engine named no scheduler process to ask")
    missing = [pid for pid in pids if pid not in reports]
    if missing:
        raise Mismatch(
            f"{len(missing)} of {len(pids)} {what} processes started without the policy (pid "
            f"{', '.join(map(str, missing))}). Either the plugin failed to load there (look for 'Failed to load plugin "
            f"kvpolicy' above) or {allowlist} leaves it out"
        )
    for pid in pids:
        if reports[pid]["digest"] != digest:
            raise Mismatch(f"{what} {pid} runs policy {reports[pid]['digest'][:12]}, the launcher {digest[:12]}")
    return [reports[pid] for pid in pids]
