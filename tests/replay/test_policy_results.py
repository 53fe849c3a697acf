"""policies/RESULTS.md is true: the rows that matter are measured again, and compared with what the page says."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _tool() -> Any:
    spec = importlib.util.spec_from_file_location("policy_results", ROOT / "benchmarks" / "policy_results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


TOOL = _tool()
PAGE = TOOL.PAGE.read_text(encoding="utf-8")
CHECKED = ("lru", "reuse_rate", "adaptive")


def hit_table(workload: str) -> dict[tuple[int, str], tuple[str, str]]:
    """(column, policy) -> the two figures of a cell of a workload's first table."""
    section = PAGE.split(f"\n## {workload}\n")[1].split("\nPrefill saved")[0]
    found = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for column, cell in enumerate(cells[1:]):
            if match := re.fullmatch(r"\**([\d.]+)\** \(([\d.]+)\)", cell):
                found[column, cells[0]] = (match[1], match[2])
    return found


@pytest.mark.parametrize("workload", TOOL.WORKLOADS, ids=lambda workload: workload.name)
def test_the_page_says_what_a_replay_says(workload: Any) -> None:
    capacity = workload.aim[0]
    said = hit_table(workload.name)
    column = workload.capacities.index(capacity)
    done = TOOL.measure(workload, CHECKED, [capacity], with_nodes=False)
    assert done.heading in PAGE
    for name in (*CHECKED, TOOL.CLAIRVOYANT):
        figures = done.figures[capacity, name]
        assert said[column, name] == (f"{100 * figures.last:.2f}", f"{100 * figures.all:.2f}"), name


def test_every_policy_and_capacity_is_on_the_page() -> None:
    for workload in TOOL.WORKLOADS:
        said = hit_table(workload.name)
        for name in (*TOOL.policies(), TOOL.NODES, TOOL.CLAIRVOYANT):
            for column in range(len(workload.capacities)):
                assert (column, name) in said, f"{name} is missing: run benchmarks/policy_results.py"


def test_adaptive_is_never_far_below_lru_and_the_best_on_average() -> None:
    """What the page claims of it, from the page's own figures."""
    rates: dict[str, list[float]] = {}
    for workload in TOOL.WORKLOADS:
        said = hit_table(workload.name)
        for column in range(len(workload.capacities)):
            for name in TOOL.policies():
                rates.setdefault(name, []).append(float(said[column, name][0]))
    for ours, lru in zip(rates["adaptive"], rates["lru"], strict=True):
        assert ours >= lru - 1
    mean = {name: sum(values) / len(values) for name, values in rates.items()}
    assert max(mean, key=lambda name: mean[name]) == "adaptive"
