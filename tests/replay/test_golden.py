"""Golden hits on the shipped conversation trace, equal to the public kvcache-simulator 0.1.3 (PyPI), block for block.

It was run with the same first 6,015 rows at 512 tokens a block; its figures are hit tokens over the last half of the
requests. `KVPOLICY_REFERENCE=1` runs it again where it is installed (`pip install kvcache-simulator==0.1.3`).
"""

from __future__ import annotations

import os

import pytest

from kvpolicy.replay.interleave import Interleaving
from kvpolicy.replay.policies import from_result, load
from kvpolicy.replay.run import Replay, Settings, replay
from kvpolicy.replay.trace import Trace

from .conftest import AGENTIC, CONVERSATION

BLOCK = 512
#: blocks -> (lru, optimal): hit tokens over the last half, of 36,157,346
GOLDEN = {2048: (2236837, 9626144), 4096: (3380308, 12005199), 6553: (5620183, 14007048)}
CAPACITIES = tuple(blocks * BLOCK for blocks in GOLDEN)


def run_conversation(*policies: str, granularity: str, capacities: tuple[int, ...] = CAPACITIES) -> Replay:
    evictions = [from_result(load(name), name) for name in policies]
    return replay(Trace(str(CONVERSATION)), evictions, Settings(capacities, granularity=granularity))


def last_half(hits: object) -> int:
    values = list(hits)  # type: ignore[call-overload]
    return sum(values[len(values) // 2 :])


@pytest.fixture(scope="module")
def by_page() -> Replay:
    return run_conversation("lru", granularity="page")


@pytest.mark.parametrize("blocks", GOLDEN)
def test_lru_equals_the_public_simulator(by_page: Replay, blocks: int) -> None:
    run = next(run for run in by_page.runs if run.capacity_tokens == blocks * BLOCK)
    assert last_half(run.hit_tokens) == GOLDEN[blocks][0]


@pytest.mark.parametrize("blocks", GOLDEN)
def test_the_clairvoyant_equals_the_public_simulator(by_page: Replay, blocks: int) -> None:
    bound = by_page.bound("clairvoyant", blocks * BLOCK)
    assert bound is not None
    assert last_half(bound.hit_tokens) == GOLDEN[blocks][1]
    assert last_half(by_page.input_tokens) == 36157346


def test_node_granularity_is_pinned() -> None:
    result = run_conversation("lru", granularity="node", capacities=(2_000_000,))
    assert sum(result.runs[0].hit_tokens) == NODE_LRU
    assert result.digest == "52381ea0c886a698"


#: hit tokens at 2.0M tokens: nodes are evicted whole, hence a little less than by page
NODE_LRU = 6651705


def test_the_agentic_protocol_is_pinned() -> None:
    """200 sessions, exponential starts of mean 30 s, seed 7, cut 3,600 s after the last start."""
    trace = Trace(str(AGENTIC), interleaving=Interleaving(max_sessions=200))
    result = replay(trace, [from_result(load("lru"), "lru")], Settings((1_000_000,)))
    assert (result.requests, sum(result.input_tokens)) == (7175, AGENTIC_INPUT)
    assert sum(result.runs[0].hit_tokens) == AGENTIC_LRU
    assert trace.interleaving.dropped == 2698


AGENTIC_INPUT, AGENTIC_LRU = 1055056340, 97027520


@pytest.mark.skipif(not os.environ.get("KVPOLICY_REFERENCE"), reason="set KVPOLICY_REFERENCE=1 to compare live")
def test_the_public_simulator_still_says_so() -> None:
    policies = pytest.importorskip("kvcache_sim.policies")
    plan = pytest.importorskip("kvcache_sim.plan")
    parse = pytest.importorskip("kvcache_sim.trace")
    prepared = plan.build_execution_plan(parse.parse_trace_file(str(CONVERSATION), block_size=BLOCK), 0.5)
    for blocks, (lru, optimal) in GOLDEN.items():
        assert policies.simulate_policy(prepared, "lru", blocks).hitTokens == lru
        assert policies.simulate_policy(prepared, "optimal", blocks).hitTokens == optimal
