"""SGLang's own allocators and ours under the scheduler's calls: equal ids where the order is the engine's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvpolicy.allocators import ORDERS
from tests.programs import Program, of_gpu_server, run_all
from tools.environment import EngineEnv

pytestmark = pytest.mark.engine

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("version", ["0.5.18", "0.5.20", "0.5.23"])
def test_equal_ids_call_for_call(sglang_env: Callable[..., EngineEnv], version: str) -> None:
    runs = run_all(Program(of_gpu_server(sglang_env(version)), HERE / "differential.py", "250"))
    assert [(run["page"], run["order"], run["need_sort"]) for run in runs] == [
        (page, order, need_sort) for page in (1, 16) for order in ORDERS for need_sort in (False, True)
    ]
    assert all(run["calls"] > 180 for run in runs)
    compared = [(run["page"], run["order"]) for run in runs if run["sides"] == 2]
    assert compared == [(1, "fifo"), (1, "fifo"), (16, "lifo"), (16, "lifo")]
