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
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.conformance_columns import PLUGIN_PATH, Column, report, run_pytest
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
COLUMNS = ("stock", "order", "rules", "slots")
PLUGIN_FOLDER = CHECKOUT / "tests/sglang/conformance"


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
    folders = sorted({test.parent for test in tests})  # some test files import from others
    path = [engine.env["PYTHONPATH"], *PLUGIN_PATH, PLUGIN_FOLDER, *folders]
    own = {
        "SGLANG_TEST_MAX_RETRY": "0",
        # 0.5.23's default core is the Rust one, which our eviction replaces by the Python one: like with like.
        "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python",
    }
    with tempfile.TemporaryDirectory() as scratch:
        return run_pytest(
            name,
            [str(engine.python), "-m", "pytest", "-p", "kvpolicy_conformance", "-k", select]
            + (["--kvpolicy-neighbour"] if neighbour else []),
            tests,
            rootdir=tests[0].parent.parent,
            cwd=Path(scratch),
            env={**engine.env, **own, "PYTHONPATH": os.pathsep.join(map(str, path))},
            test_timeout_s=test_timeout_s,
        )


def swapped(column: Column) -> str:
    """What one column's plugin did, in lines."""
    swap = column.swap
    if column.name == "slots":
        return (
            f"{column.name}: {sum(swap['built'].values())} allocators with our free list "
            f"({', '.join(f'{count} {name}' for name, count in swap['built'].items())}), "
            f"{swap['units handed out']} units handed out, {swap['units given back']} given back"
        )
    lines = [
        f"{column.name}: {sum(swap['attached'].values())} of {sum(swap['built'].values())} caches with our eviction "
        f"({', '.join(f'{count} {name}' for name, count in swap['attached'].items())}), "
        f"{swap['evict calls']} eviction calls, {swap['victims']} victims from our index, "
        f"{sum(swap['fallbacks'].values())} fallbacks"
    ]
    lines += [f"  {count} left to the engine: {reason}" for reason, count in swap["left to the engine"].items()]
    lines += [f"  {count} fallbacks: {reason}" for reason, count in swap["fallbacks"].items()]
    return "\n".join(lines)


def not_ours(swap: dict[str, Any]) -> str:
    """What is wrong with what one column's plugin did; "" if nothing is."""
    if "units given back" in swap:
        return "" if swap["units given back"] else "NOTHING SWAPPED: no test of this selection freed a slot of ours"
    return "" if swap["victims"] else "NOTHING SWAPPED: no test of this selection evicted anything through our index"


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
    return report(columns, swapped, not_ours)


if __name__ == "__main__":
    sys.exit(main())
