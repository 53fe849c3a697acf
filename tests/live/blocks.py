"""Status blocks as a scheduler makes them, of a policy that was really run, without an engine."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from kvpolicy.eviction import RequestInfo
from kvpolicy.eviction.envelope import read_envelope
from kvpolicy.hints import action, envelope
from kvpolicy.runtime import status
from kvpolicy.runtime.active import Setting
from tests.inside.activation import activate

#: By the number of the request; the second is above the policy's max_ttl.
HINTS: dict[int, Any] = {
    150: envelope(action("retain", "early", ttl="1s")),
    196: envelope(action("retain", "late", ttl="5m"), action("demote", "one-off")),
    198: "{",
}
POOL_TOKENS = 1600
PAGE_TOKENS = 16


def healthy_block() -> dict[str, Any]:
    """Two tenants, a rule, 200 requests of three pages each over a pool of 100 pages, a hit in four."""
    eviction = {
        "score": "log1p(hits) - 0.01 * idle_requests",
        "rules": [{"name": "kept", "match": "hits >= 1", "retain": {"weight": 2, "budget": "25%"}}],
        "tenants": {"cap": "90%", "named": {"gold": {"floor": "10%", "cap": "90%"}}},
    }
    active = activate("sglang", eviction, hints={"allow": ["retain"], "max_ttl": "1m", "budget": "25%"})
    active.name, active.digest = "live-test", "ab" * 32
    active.compiled = replace(active.compiled, eviction=replace(active.compiled.eviction, explains=True))
    active.pool_tokens = POOL_TOKENS
    active.settings["page_size"] = Setting("cache.page_size", "--page-size", 16, 16, "policy", "live.yaml:3:3")
    index = active.compiled.eviction.make_index(POOL_TOKENS)
    active.serve(index, active.compiled.eviction, "our index on a list")
    units: list[Any] = []
    for number in range(200):
        index.clock.arrive(number * 100)
        hints = read_envelope(HINTS[number]) if number in HINTS else None
        request = RequestInfo(cache_salt=("gold", "a secret salt")[number % 2], hints=hints)
        hit = number % 4 == 3 and units
        active.traffic.asked(48, 48 if hit else 0, PAGE_TOKENS, request.cache_salt)
        if hit:
            index.touch(units[-1], request)
            continue
        if 48 * (len(units) + 1) > POOL_TOKENS - 100:
            index.begin()
            victim: Any = index.pop()
            index.evicted(victim, 48)
            index.remove(victim)
            index.end()
            units.remove(victim)
            active.observe_evict(0.0005)
        unit = _Unit(number)
        index.insert(unit, None, request, 48, 48, content_key=number % 180)
        index.add(unit)
        units.append(unit)
    held = 48 * len(units)
    block = status.block(active)
    block["occupancy"] = status.occupancy(POOL_TOKENS, POOL_TOKENS - held, held)
    parsed = json.loads(json.dumps(block, allow_nan=False))  # as it comes over HTTP
    assert isinstance(parsed, dict)
    return parsed


class _Unit:
    def __init__(self, number: int) -> None:
        self.kvp: Any = None
        self.last_access_time = self.creation_time = number
        self.hit_count = 1
        self.priority = 0
