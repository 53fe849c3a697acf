"""What the conformance runs of both engines share: a run of an engine's own tests is a column, and columns compare."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.environment import CHECKOUT

#: What the plugins of tests/*/conformance import.
PLUGIN_PATH = (CHECKOUT, CHECKOUT / "adapters", CHECKOUT / "tests/inside")


@dataclass(frozen=True)
class Column:
    """One run of the tests: outcome and reason of each, and what the plugin swapped."""

    name: str
    outcomes: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    swap: dict[str, Any] = field(default_factory=dict)


def run_pytest(
    name: str,
    pytest: Sequence[str],
    tests: Sequence[Path],
    *,
    rootdir: Path,
    cwd: Path,
    env: Mapping[str, str],
    test_timeout_s: int,
) -> Column:
    """Run `tests` once; `pytest` is the command that loads the engine's plugin, `cwd` an empty folder to run in.

    Raises RuntimeError if the run itself dies.
    """
    found = cwd / "report.json"
    command = [
        *(*pytest, "-q", "--tb=line", "-W", "ignore", "-p", "no:cacheprovider"),
        *("-c", os.devnull, "--rootdir", str(rootdir), "--import-mode=importlib"),
        *("--continue-on-collection-errors", f"--timeout={test_timeout_s}"),
        *("--kvpolicy-swap", name, "--kvpolicy-report", str(found)),
        *map(str, tests),
    ]
    unwritten = {**env, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=cwd, env=unwritten, capture_output=True, text=True)
    if done.returncode not in (0, 1) or not found.exists():  # 1: some tests failed
        said = done.stdout[-3000:] + done.stderr[-3000:]
        raise RuntimeError(f"{name}: pytest ended with {done.returncode}:\n{said}")
    return Column(name, **json.loads(found.read_text()))


def new_failures(stock: Column, ours: Column) -> list[str]:
    """Tests that passed on stock and do not with our eviction, and tests that only one of the two runs has."""
    names = sorted(stock.outcomes.keys() | ours.outcomes.keys())
    return [
        name
        for name in names
        if (name in stock.outcomes) != (name in ours.outcomes)
        or (stock.outcomes[name] == "passed" and ours.outcomes[name] != "passed")
    ]


def newly_passed(stock: Column, ours: Column) -> list[str]:
    """Tests that pass with our eviction only: to be explained too."""
    return [
        name
        for name, outcome in sorted(ours.outcomes.items())
        if outcome == "passed" and stock.outcomes.get(name, "passed") != "passed"
    ]


def table(columns: Sequence[Column]) -> str:
    """passed/failed/skipped of each test file, one column a run."""
    files = sorted({name.split("::")[0] for column in columns for name in column.outcomes})
    width = max(map(len, files), default=0)
    lines = [f"{'passed/failed/skipped':{width}}  " + "  ".join(f"{column.name:>13}" for column in columns)]
    for file in [*files, "total"]:
        cells = []
        for column in columns:
            count = Counter(
                "failed" if outcome == "error" else outcome
                for name, outcome in column.outcomes.items()
                if file in ("total", name.split("::")[0])
            )
            cells.append(f"{count['passed']}/{count['failed']}/{count['skipped']}")
        lines.append(f"{file:{width}}  " + "  ".join(f"{cell:>13}" for cell in cells))
    return "\n".join(lines)


def failures(column: Column, most: int = 8) -> str:
    """What the failures of one run have in common, the most frequent first."""
    failed = [name for name, outcome in column.outcomes.items() if outcome in ("failed", "error")]
    counts = Counter(column.reasons.get(name, "")[:120] for name in failed)
    lines = [f"{column.name}: {len(failed)} failed"]
    lines += [f"  {count} {reason}" for reason, count in counts.most_common(most)]
    return "\n".join(lines)


def report(
    columns: Sequence[Column], swapped: Callable[[Column], str], not_ours: Callable[[dict[str, Any]], str]
) -> int:
    """Print the columns and what differs; 1 if something does, or nothing was swapped.

    `swapped` says what one column's plugin did, `not_ours` what is wrong with that ("" if nothing is).
    """
    stock, *others = columns
    print(table(columns))
    print(failures(stock))
    failed = False
    for column in others:
        print(swapped(column))
        for name in new_failures(stock, column):
            failed = True
            before, after = (run.outcomes.get(name, "absent") for run in (stock, column))
            print(f"  NEW FAILURE {name}: {before} -> {after}: {column.reasons.get(name, '')}")
        for name in newly_passed(stock, column):
            print(f"  passes with ours only: {name}: {stock.reasons.get(name, '')}")
        if wrong := not_ours(column.swap):
            failed = True
            print(f"  {wrong}")
    return 1 if failed else 0
