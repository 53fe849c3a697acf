"""180 requests at once in a pool that cannot hold what runs: outputs are those of one request at a time, as stock's.

Preempted requests, blocks that are evicted and handed out again while others run, refusals and tenants. Both faults
that this could hide are injected, and seen.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.programs import run_all
from tests.vllm.proofs.engines import assert_sound, start
from tools.environment import CHECKOUT, EngineEnv

pytestmark = pytest.mark.engine

VllmEnv = Callable[..., EngineEnv]
COUNT = 180

#: Everything that can move a block: a dynamic score, refusals, protection that ends, tenants.
POLICY = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {name: storm}
cache: {page_size: 32}
eviction:
  score: log1p(hits) / (1 + idle_requests)
  rules:
    - name: opted-out
      match: request.priority == -1
      admit: never
    - name: asked-again
      match: hits >= 1 and not is_output
      retain: {weight: 4, ttl: 30s, budget: 25%}
  tenants: {by: cache_salt, named: {gold: {floor: 20%}, noisy: {cap: 40%}}}
hints: {max_priority: 5}
"""


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "storm.yaml"
    path.write_text(POLICY)
    return path


def mismatches(seen: dict[str, Any], serial: dict[str, Any]) -> int:
    """Requests whose output is not what their prompt gave alone."""
    alone = dict(serial["outputs"])
    assert len(seen["outputs"]) == COUNT
    return sum(output != alone[number] for number, output in seen["outputs"])


def assert_as_good_as_stock(serial: dict[str, Any], stock: dict[str, Any], ours: dict[str, Any]) -> None:
    assert (serial["preemptions"], stock["kvpolicy"]) == (0, None)
    assert min(stock["preemptions"], ours["preemptions"]) >= 5
    assert sum(ours["kvpolicy"]["evictions"].values()) > 50
    assert ours["kvpolicy"]["core"] == "kvpolicy"
    for seen in (serial, stock, ours):
        assert_sound(seen)
    assert mismatches(ours, serial) <= mismatches(stock, serial)


def test_real_model(vllm_env: VllmEnv, real_model: Path, policy: Path) -> None:
    arguments = ("storm.py", real_model, CHECKOUT / "LICENSE", str(COUNT))
    programs = [start(vllm_env(), *arguments, *cases) for cases in (("serial", "stock"), (policy,))]
    assert_as_good_as_stock(*run_all(*programs))


def test_the_detector_detects(vllm_env: VllmEnv, tiny_model: Path, policy: Path) -> None:
    """On the tiny model nothing differs; with a victim that keeps its hash, or a block handed out in use, much does."""
    cases = ("serial", "stock", str(policy), f"{policy}+stale-hash", f"{policy}+in-use")
    program = start(vllm_env(), "storm.py", tiny_model, CHECKOUT / "LICENSE", str(COUNT), *cases)
    serial, stock, ours, stale_hash, in_use = program.told()
    assert_as_good_as_stock(serial, stock, ours)
    assert mismatches(ours, serial) == 0
    assert mismatches(stale_hash, serial) > 10
    assert mismatches(in_use, serial) > 10
