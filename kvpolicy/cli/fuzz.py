"""`kvpolicy test --fuzz`: random workloads, and invariants; a counter-example is shrunk, and printed as a test."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass

from kvpolicy.cli.main import EXIT_ERROR, EXIT_OK
from kvpolicy.language import LoadResult
from kvpolicy.policytest.load import prepare
from kvpolicy.policytest.shrink import shrink
from kvpolicy.policytest.workload import Workload, as_test, random_workload, violation
from kvpolicy.replay.simulator import Eviction

__all__ = ["run_fuzz"]


@dataclass(frozen=True, slots=True)
class Found:
    """The counter-example of one policy."""

    broken: str
    workload: int
    test: str


def run_fuzz(results: list[LoadResult], count: int, seed: int, engine: str, format: str) -> int:
    """Up to ``count`` workloads for each policy, the same ones for the same seed; the exit code."""
    found = {result.file: _fuzz(result, count, seed, engine) for result in results}
    if format == "json":
        items = [
            {
                "file": file,
                "workloads": one.workload if one else count,
                "seed": seed,
                "broken": one.broken if one else None,
                "test": one.test if one else None,
            }
            for file, one in found.items()
        ]
        print(json.dumps(items, indent=2))
    else:
        for file, one in found.items():
            if one is None:
                print(f"{file}: {count} random workloads kept the invariants (seed {seed})")
            else:
                print(f"{file}: FAIL in random workload {one.workload} (seed {seed}): {one.broken}")
                print(f"  the smallest workload found, as a test to paste:\n\ntests:\n{one.test}")
        sys.stdout.flush()
    return EXIT_ERROR if any(found.values()) else EXIT_OK


def _fuzz(result: LoadResult, count: int, seed: int, engine: str) -> Found | None:
    eviction, _ = prepare(result, engine)
    policy = result.policy
    assert policy is not None
    for number in range(1, count + 1):
        rng = random.Random(f"{seed}/{number}")
        workload = random_workload(rng, policy)
        if (first := violation(workload, eviction)) is not None:
            smallest = _smallest(workload, eviction, _kind(first))
            broken = violation(smallest, eviction) or first
            return Found(broken, number, as_test(smallest, f"found by --fuzz, seed {seed}, workload {number}"))
    return None


def _smallest(workload: Workload, eviction: Eviction, kind: str | None) -> Workload:
    return shrink(workload, lambda candidate: _kind(violation(candidate, eviction)) == kind)


def _kind(broken: str | None) -> str | None:
    """What broke, without the figures: shrinking must not slip from one fault to another."""
    return None if broken is None else broken.partition(":")[0]
