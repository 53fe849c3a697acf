"""A request stream through replay's page mode and through vLLM's KVCacheManager: the same hits and the same victims.

Prompts are whole blocks and one token more, which vLLM keeps in a block of its own that is never cached; so vLLM gets
one block beyond replay's capacity. Pages are vLLM's block hashes.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from activation import activate
from driver import BLOCK_TOKENS, Driver
from kvpolicy_vllm.cache_runs import content_key

from kvpolicy.eviction import EvictionIndex, RequestInfo
from kvpolicy.eviction.algorithms import adaptive
from kvpolicy.eviction.algorithms.reuse_rate import ReuseRate
from kvpolicy.eviction.algorithms.tlru import TLRU
from kvpolicy.eviction.envelope import read_envelope
from kvpolicy.replay import requests as replay
from kvpolicy.replay.simulator import Eviction, Simulator

BLOCKS = 48
RULES = [
    {"name": "never", "match": "request.priority < 0", "admit": "never"},
    {
        "name": "deep",
        "match": "depth_tokens <= 64 and hits >= 2",
        "retain": {"weight": 8, "ttl": "40s", "budget": "30%"},
    },
    {"name": "gold", "match": "request.priority >= 3", "retain": {"weight": 3, "budget": "20%"}},
]
TENANTS = {"by": "cache_salt", "floor": "10%", "cap": "40%", "max_floors": 2}
POLICIES: dict[str, dict[str, Any]] = {
    **{name: {"policy": name} for name in ("lfu", "fifo", "filo", "mru", "slru", "priority", "gdsf", "s3fifo")},
    **{name: {"policy": name} for name in ("sieve", "hit_density")},
    "lru": {"policy": "lru", "core": "kvpolicy"},
    "tlru": {"policy": "tlru", "params": {"threshold_tokens": 64, "next_prompt_tokens": 16}},
    "stable score": {"score": "hits / depth_tokens"},
    "dynamic score": {"score": "log1p(hits) / (1 + idle_requests)"},
    "rules": {"policy": "lru", "rules": RULES},
    "lfu with rules": {"policy": "lfu", "rules": RULES},
    "tenants": {"policy": "lru", "tenants": TENANTS},
    "hints": {"policy": "lru", "rules": RULES[1:2]},
    "lfu with hints": {"policy": "lfu"},
    "rules and tenants": {"policy": "lru", "rules": RULES, "tenants": {**TENANTS, "floor": "5%"}},
}


#: What requests may ask for where the policy's name has "hints"; some prompts are longer than the budget.
HINTS = {"allow": ["retain", "demote", "expire"], "max_ttl": "60s", "budget": "20%"}


def asked(rng: random.Random, number: int) -> dict[str, Any]:
    """A request's envelope: a retain of all, or of its first tokens, and what else may come."""
    kinds = rng.choice([[], [], [], ["retain"], ["retain"], ["retain", "retain"], ["demote"], ["expire"],
                        ["retain", "demote"]])  # fmt: skip
    payloads: dict[str, Any] = {"retain": {"ttl": rng.choice(["20s", "30s", "2m"])}, "demote": {}, "expire": {}}
    actions = []
    for at, kind in enumerate(kinds):
        payload = dict(payloads[kind])
        if kind == "retain" and rng.random() < 0.5:
            payload["tokens"] = rng.randrange(1, 12 * BLOCK_TOKENS)
        actions.append({"action_id": f"{number}.{at}", "action_type": f"kv.{kind}", "action_version": "1.0",
                        "payload": payload})  # fmt: skip
    return {"actions": actions}


def stream(seed: int, count: int = 220) -> list[dict[str, Any]]:
    rng, hinting = random.Random(seed), random.Random(seed + 1000)
    stems = [[rng.randrange(1000) for _ in range(BLOCK_TOKENS * rng.randrange(1, 7))] for _ in range(9)]
    requests, arrival_ms = [], 0
    for number in range(count):
        arrival_ms += rng.choice([0, 500, 1000, 9000])
        tokens = rng.choice(stems) + [rng.randrange(1000) for _ in range(BLOCK_TOKENS * rng.randrange(0, 5))]
        requests.append(
            {
                "tokens": [*tokens, 7],
                "salt": rng.choice([None, "a", "b", "c"]),
                "priority": rng.choice([0, 0, 0, -1, 1, 3, 9]),
                "arrival_ms": arrival_ms,
                "kv_hints": asked(hinting, number),
            }
        )
    return requests


def watch(index: EvictionIndex, name: Any) -> list[Any]:
    victims: list[Any] = []
    evicted = index.evicted

    def watched(handle: Any, *args: Any, **kwargs: Any) -> None:
        victims.append(name(handle))
        evicted(handle, *args, **kwargs)

    index.evicted = watched  # type: ignore[method-assign]
    return victims


def run(
    eviction: dict[str, Any], seed: int, hints: dict[str, Any] | None = None
) -> tuple[Driver, list[Any], list[Any], list[Any], list[Any]]:
    """(driver, hits and victims of vLLM, hits and victims of replay)."""
    hints = {"max_priority": 5, **(hints or {})}
    driver = Driver(BLOCKS + 1, eviction, hints=hints)
    # One pool size for shares: replay's capacity.
    index = driver.pool.guard.units.index
    index.reset(BLOCKS * BLOCK_TOKENS)
    compiled = activate("vllm", eviction, hints=hints).compiled.eviction
    simulator = Simulator(
        Eviction("replay", compiled.make_index, compiled.needs_metadata), BLOCKS * BLOCK_TOKENS, BLOCK_TOKENS, "page"
    )
    expected_victims = watch(simulator.index, lambda node: node.key[0])
    hits, expected = [], []
    for wanted in stream(seed):
        request = driver.request(**wanted)
        pages = list(request.block_hashes)
        info = RequestInfo(cache_salt=wanted["salt"], priority=wanted["priority"] or None,
                           hints=read_envelope(wanted["kv_hints"]))  # fmt: skip
        row = replay.Request(1_000_000 + wanted["arrival_ms"], len(wanted["tokens"]), 0, pages, pages, info)
        expected.append(simulator.request(row, pages, len(pages), pages))
        hits.append(driver.start(request))
        driver.finish(request)
        driver.check()
    victims = [block_hash[:-4] for block_hash in driver.evicted]
    assert len(victims) == index.victims
    return driver, hits, victims, expected, expected_victims


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(3))
def check_replay_and_vllm_agree(policy: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Replay gives S3-FIFO no names of contents, hence no ghosts.
    monkeypatch.setattr(EvictionIndex, "needs_content_key", property(lambda self: False))
    hints = HINTS if "hints" in policy else None
    driver, hits, victims, expected, expected_victims = run(POLICIES[policy], seed, hints)
    assert hits == expected
    assert victims == expected_victims
    assert len(victims) > 100
    assert driver.active is not None
    assert not driver.active.fallbacks


@pytest.mark.parametrize("policy", ["reuse_rate", "adaptive", "adaptive, of a small sample", "adaptive, in turns"])
@pytest.mark.parametrize("seed", range(3))
def check_what_is_learned_agrees(policy: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """These remember contents by name, whether they are asked about one by one or as runs."""
    monkeypatch.setattr(Simulator, "_content_key", lambda self, info, above, full, at: content_key(full[at]))
    if policy == "adaptive, of a small sample":
        monkeypatch.setattr(adaptive, "_SHADOW_CONTENTS", 12)
    if policy == "adaptive, in turns":
        monkeypatch.setattr(adaptive, "_MARGIN", 0.0)
    driver, hits, victims, expected, expected_victims = run({"policy": policy.partition(",")[0]}, seed)
    assert hits == expected
    assert victims == expected_victims
    assert len(victims) > 100
    assert driver.active is not None
    assert not driver.active.fallbacks
    learned: Any = driver.active.index._algorithm
    assert learned._waits > 50
    if policy == "adaptive, of a small sample":
        assert learned._sample_bits > 0
    if policy == "adaptive, in turns":
        assert learned.switches >= 2


def check_contents_that_return_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose units were evicted at different times is no run."""
    monkeypatch.setattr(Simulator, "_content_key", lambda self, info, above, full, at: content_key(full[at]))
    monkeypatch.setattr(ReuseRate, "alike", lambda self, content_keys: len(content_keys))
    _, hits, victims, expected, expected_victims = run({"policy": "reuse_rate"}, 1)
    assert (hits, victims) != (expected, expected_victims)


def check_a_run_that_goes_too_far_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """tlru: a chain's last blocks may be spare and those before them not, so that others' come between."""
    monkeypatch.setattr(TLRU, "rises_in_runs", False)
    _, hits, victims, expected, expected_victims = run(POLICIES["tlru"], 1)
    assert (hits, victims) != (expected, expected_victims)


def check_another_policy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = activate
    monkeypatch.setitem(globals(), "activate", lambda *_, **sections: wrong("vllm", {"policy": "fifo"}, **sections))
    _, hits, victims, expected, expected_victims = run(POLICIES["lfu"], 1)
    assert (hits, victims) != (expected, expected_victims)
