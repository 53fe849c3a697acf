"""Greedy outputs are stock's, bit for bit, whoever hands out the slots: every order at pages 1 and 16, under the guard.

The pool is so small that slots change hands many times. One engine a page size serves the workload once in each order,
beside a stock engine that serves it as often. The guard must find nothing, and then, when the engine is made to free
what it must not, repair it: the outputs are still stock's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvpolicy.allocators import ORDERS
from tests.programs import run_all
from tests.proofs.engines import assert_no_complaint, assert_sound, start, with_witness
from tests.stock import assert_outputs_of_stock
from tools.environment import CHECKOUT, EngineEnv

pytestmark = pytest.mark.engine

REQUESTS = 14  # of outputs.py, a pass
MISUSE = {
    "freed-twice": "double_free",
    "padding-freed": "padding_free",
    "foreign-freed": "foreign_free",
    "in-use-and-free": "use_after_free",
}
POLICY = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {{name: slots}}
cache: {{page_size: {page}, kv_dtype: bf16}}
backend: {{attention: torch_native}}
allocator: {{order: {order}, guard: full}}
eviction: {{policy: lru}}
"""


@pytest.mark.parametrize("page", [1, 16])
def test_outputs_equal_stock_in_every_order(
    sglang_env: Callable[..., EngineEnv], tiny_model: Path, tmp_path: Path, page: int
) -> None:
    orders = [order for order in ORDERS if order != "lifo"] + ["lifo"]  # a queue can hold what it must not
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(page=page, order=orders[0]))
    events = [f"order-{order}@{REQUESTS * i}" for i, order in enumerate(orders) if i]
    events += [f"{fault}@{REQUESTS * 3 + 3 + i}" for i, fault in enumerate(MISUSE)]

    engine = with_witness(sglang_env("0.5.20"), tmp_path / "witness")
    ours = with_witness(sglang_env("0.5.20"), tmp_path / "witness", PROOF_FAULTS=",".join(events))
    arguments = ("outputs.py", "--passes", str(len(orders)), tiny_model, CHECKOUT / "LICENSE", "1536")
    programs = start(engine, *arguments, f"stock:{page}"), start(ours, *arguments, policy)
    stock, seen = run_all(*programs)

    for program in programs:
        assert_no_complaint(program.log)
    assert assert_outputs_of_stock("slots", seen, stock) == len(orders) * REQUESTS == len(stock["cached"])
    assert sum(seen["kvpolicy"]["evictions"].values()) >= 10
    assert_sound(seen)
    found = seen["kvpolicy"]["allocator"]
    assert (found["core"], found["order"], found["guard"]) == ("kvpolicy", "lifo", "full")
    assert found["faults"] == dict.fromkeys(MISUSE.values(), 1)
    for fault, kind in MISUSE.items():
        (line,) = [line for line in programs[1].log.splitlines() if f"allocator guard: {kind}" in line]
        assert fault.replace("-", "_") in line or kind == "use_after_free"
