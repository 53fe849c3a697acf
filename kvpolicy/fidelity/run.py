"""The parent's half: start the child with the engine, twice, one after the other, and gather what it answers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import IO, Any

from kvpolicy.fidelity.base import PASSES, FidelityError, Job, Settings
from kvpolicy.fidelity.comparison import Run

__all__ = ["Tell", "run_child"]

#: Called with (tokens scored so far, tokens to score in all), after each answer.
Tell = Callable[[int, int], None]

#: At the start of a line, or behind what a logger puts there (`... [core.py:1510] ValueError: `).
_EXCEPTION = re.compile(r"(?:^|\] )((?:\w+\.)*\w*(?:Error|Exception): .*)")


def run_child(engine: str, job: Job, tell: Tell) -> Run:
    """Score the job's text on a fresh engine. FidelityError where that fails, with the place of the engine's log."""
    with tempfile.NamedTemporaryFile("w+", prefix="kvpolicy-fidelity-", suffix=".log", delete=False) as log:
        try:
            with _child(engine, job, log) as (process, answers):
                run = _gather(answers, tell)
                code = process.wait()
            if run is None or code != 0 or set(run.rows) != set(PASSES):
                raise FidelityError(f"{engine} ended with exit code {code}: {_cause(log.name)} (its log: {log.name})")
        except FidelityError as error:
            if log.name not in str(error):  # told by the child itself: the log adds nothing
                os.unlink(log.name)
            raise
        except BaseException:
            os.unlink(log.name)
            raise
        os.unlink(log.name)
        return run


def _cause(log: str) -> str:
    """The first exception that a log shows: later ones only say that an engine process has failed."""
    with open(log, encoding="utf-8", errors="replace") as file:
        found = next(filter(None, map(_EXCEPTION.search, file)), None)
    return found[1].strip()[:300] if found else "it said nothing of an error"


@contextmanager
def _child(engine: str, job: Job, log: IO[str]) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """The child in a session of its own: whatever happens, nothing of it is left when the block ends."""
    read, write = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", f"kvpolicy_{engine}.score", str(write)],
            stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, pass_fds=(write,), start_new_session=True,
        )  # fmt: skip
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    with os.fdopen(read, encoding="utf-8") as answers:
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin:
                json.dump(asdict(job), process.stdin)
            yield process, answers
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """Kill the child and its engine's processes, and wait: the next engine needs their memory."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for _ in range(200):  # 10 s; one that nobody reaps stays for ever, and holds nothing
            os.killpg(process.pid, 0)
            time.sleep(0.05)
    process.wait()


def _gather(answers: IO[str], tell: Tell) -> Run | None:
    """None where the child said nothing at all."""
    run: Run | None = None
    done = total = 0
    for line in answers:
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise FidelityError(answer["error"])
        if run is None:
            run = Run(Settings(**answer["settings"]), answer["windows"], answer["stride_tokens"])
            total = len(PASSES) * sum(map(len, run.windows))
        else:
            run.add(answer["pass"], answer["window"], answer["start"], answer["rows"])
            done += len(answer["rows"]) + 1
        tell(done, total)
    return run
