"""Run SGLang's own unit tests with and without kvpolicy's eviction in every prefix cache that they build.

    python3.11 -m tools.conformance --sglang 0.5.18 --tests CHECKOUT

`CHECKOUT` is a checkout of SGLang at that version (`git clone --branch v0.5.18 --depth 1 ...`): SGLang publishes no
source distribution of these versions, and none of its tests are part of this project. The tests run three times in the
environment of tests/engines: stock, with the order they ask for taken from our index, and with rules on top that hold
nobody back (tests/sglang/conformance/kvpolicy_conformance.py). A test that passes in the first column and not in
another one is a finding, and the exit code is 1. Tests that need a GPU, or a package that is not installed, fail or
skip in all three columns alike and are counted as such.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.environment import CHECKOUT, EngineEnv, Environment, load_pins, say

#: Where SGLang keeps the tests of what we touch: caches, allocators, pools; and the plugin framework.
FOLDERS = ("test/registered/unit/mem_cache", "test/registered/unit/plugins")
#: The files there that are about prefix caches, eviction and allocators; the rest (host tiers, stores, kernels) neither
#: builds a cache that we steer nor runs without a GPU.
ONLY = (
    *("test_*radix*.py", "test_*evict*.py", "test_*alloc*.py", "test_*free*.py", "test_*lock*.py", "test_*session*.py"),
    *("test_*registry*.py", "test_swa_*.py", "test_mamba_*.py", "test_mem_cache_utils.py", "test_common*.py"),
    *("test_load_plugins.py",),
)
#: Not the several hundred cases of trees with sliding-window or Mamba state, which the adapter leaves to the engine.
SELECT = "not (FULL_SWA or FULL_MAMBA)"
COLUMNS = ("stock", "order", "rules")
PLUGIN_PATH = (
    CHECKOUT,
    CHECKOUT / "adapters",
    CHECKOUT / "tests/sglang/cache",  # how a policy is attached outside a server
    CHECKOUT / "tests/sglang/conformance",
)


@dataclass(frozen=True)
class Column:
    """One run of the tests: outcome and reason of each, and what the plugin swapped."""

    name: str
    outcomes: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    swap: dict[str, Any] = field(default_factory=dict)


def run_column(
    engine: EngineEnv,
    name: str,
    tests: list[Path],
    *,
    select: str = "",
    neighbour: bool = False,
    test_timeout_s: int = 60,
) -> Column:
    """Run `tests` once with pytest in `engine`'s SGLang. Raises RuntimeError if the run itself dies."""
    folders = sorted({str(test.parent) for test in tests})  # some test files import from others
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        command = [
            *(str(engine.python), "-m", "pytest", "-q", "--tb=line", "-W", "ignore", "-p", "no:cacheprovider"),
            *("-c", os.devnull, "--rootdir", str(tests[0].parent.parent), "--import-mode=importlib"),
            "--continue-on-collection-errors",
            *(f"--timeout={test_timeout_s}", "-k", select),
            *("-p", "kvpolicy_conformance", "--kvpolicy-swap", name, "--kvpolicy-report", str(report)),
            *(["--kvpolicy-neighbour"] if neighbour else []),
            *map(str, tests),
        ]
        env = {
            **engine.env,
            "PYTHONPATH": os.pathsep.join([engine.env["PYTHONPATH"], *map(str, PLUGIN_PATH), *folders]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SGLANG_TEST_MAX_RETRY": "0",
            # 0.5.23's default core is the Rust one, which our eviction replaces by the Python one: like with like.
            "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python",
        }
        done = subprocess.run(command, cwd=scratch, env=env, capture_output=True, text=True)
        if done.returncode not in (0, 1) or not report.exists():  # 1: some tests failed
            said = done.stdout[-3000:] + done.stderr[-3000:]
            raise RuntimeError(f"{name}: pytest ended with {done.returncode}:\n{said}")
        return Column(name, **json.loads(report.read_text()))


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


def table(columns: list[Column]) -> str:
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


def swapped(column: Column) -> str:
    """What one column's plugin did, in lines."""
    swap = column.swap
    lines = [
        f"{column.name}: {sum(swap['attached'].values())} of {sum(swap['built'].values())} caches with our eviction "
        f"({', '.join(f'{count} {name}' for name, count in swap['attached'].items())}), "
        f"{swap['evict calls']} eviction calls, {swap['victims']} victims from our index, "
        f"{sum(swap['fallbacks'].values())} fallbacks"
    ]
    lines += [f"  {count} left to the engine: {reason}" for reason, count in swap["left to the engine"].items()]
    lines += [f"  {count} fallbacks: {reason}" for reason, count in swap["fallbacks"].items()]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    pins = load_pins()["sglang"]["versions"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sglang", required=True, metavar="VERSION", help=f"installed version: {', '.join(pins)}")
    parser.add_argument("--tests", required=True, type=Path, help="checkout of SGLang that has these tests")
    parser.add_argument("--only", nargs="+", default=ONLY, metavar="GLOB", help=f"test files to run: {' '.join(ONLY)}")
    parser.add_argument("-k", dest="select", default=SELECT, metavar="EXPRESSION", help="pytest's -k (%(default)s)")
    parser.add_argument(
        "--neighbour",
        action="store_true",
        help="the tests are of another version: names that this one lacks fail the tests that use them, not the file",
    )
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS))
    arguments = parser.parse_args(argv)

    folders = [arguments.tests.resolve() / folder for folder in FOLDERS]
    tests = sorted({file for folder in folders for glob in arguments.only for file in folder.glob(glob)})
    if not tests:
        parser.error(f"no {' '.join(arguments.only)} under {' or '.join(map(str, folders))}")
    environment = Environment.default()
    environment.ensure([arguments.sglang])
    engine = environment.sglang(arguments.sglang)
    columns = []
    for name in arguments.columns:
        say(f"SGLang {arguments.sglang}: {len(tests)} test files, {name} ...")
        columns.append(run_column(engine, name, tests, select=arguments.select, neighbour=arguments.neighbour))
    print(table(columns))
    print(failures(columns[0]))
    failed = False
    for column in columns[1:]:
        print(swapped(column))
        for name in new_failures(columns[0], column):
            failed = True
            before, after = (run.outcomes.get(name, "absent") for run in (columns[0], column))
            print(f"  NEW FAILURE {name}: {before} -> {after}: {column.reasons.get(name, '')}")
        for name in newly_passed(columns[0], column):
            print(f"  passes with ours only: {name}: {columns[0].reasons.get(name, '')}")
        if not column.swap["victims"]:
            failed = True
            print("  NOTHING SWAPPED: no test of this selection evicted anything through our index")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
