"""KVP3xx: fields that contradict each other."""

from __future__ import annotations

from kvpolicy.language.codes.base import Code, codes

__all__ = ["MEANING"]


def _rules(text: str) -> str:
    return f"eviction:\n  policy: lru\n  rules:\n{text}"


_KEEP = "    - {name: keep, match: hits >= 3, retain: {weight: 8, ttl: 600s, budget: 20%}}\n"

MEANING = codes(
    Code(
        "KVP301",
        "score and policy",
        "Both say what goes first. Give one, or neither for the engine's own order. In a child, either clears the "
        "parent's other.",
        bad="eviction: {policy: lru, score: hits}\n",
        good="eviction: {score: hits}\n",
    ),
    Code(
        "KVP302",
        "unknown eviction policy",
        "The built-in orders are lru, lfu, fifo, filo, mru, slru, priority, tlru, gdsf, s3fifo, sieve, "
        "hit_density, reuse_rate and adaptive. For another, write a `score`.",
        bad="eviction: {policy: lri}\n",
        good="eviction: {policy: lru}\n",
    ),
    Code(
        "KVP303",
        "bad parameter",
        "The eviction policy has no such parameter, or the value is not one it takes.",
        bad="eviction: {policy: slru, params: {protected: 2}}\n",
        good="eviction: {policy: slru, params: {protected_hits: 2}}\n",
    ),
    Code(
        "KVP304",
        "params without policy",
        "`params` belong to a built-in `policy`; a score has its numbers in its text.",
        bad="eviction: {score: hits, params: {protected_hits: 2}}\n",
        good="eviction: {policy: slru, params: {protected_hits: 2}}\n",
    ),
    Code(
        "KVP305",
        "rule without an action",
        "A rule needs at least one of retain, admit and priority.",
        bad=_rules("    - {name: keep, match: hits >= 3}\n"),
        good=_rules(_KEEP),
    ),
    Code(
        "KVP306",
        "rule name given twice",
        "Metrics and reports count by rule name.",
        bad=_rules(_KEEP + "    - {name: keep, match: hits >= 1, priority: 1}\n"),
        good=_rules(_KEEP + "    - {name: raise, match: hits >= 1, priority: 1}\n"),
    ),
    Code(
        "KVP307",
        "match on idle or age",
        "Rules run at insertion and at each touch. There idle is zero, and it grows without a touch, so such a "
        "match could never take effect. Let protection end with `ttl`, or weigh idleness in `score`.",
        bad=_rules("    - {name: keep, match: idle_s < 60, retain: {weight: 8}}\n"),
        good=_rules("    - {name: keep, match: hits >= 1, retain: {weight: 8, ttl: 60s}}\n"),
    ),
    Code(
        "KVP308",
        "more promised than there is",
        "max_floors * floor + named floors + retain budgets, that of hints too, must be at most 100 % of the pool.",
        bad="eviction:\n  policy: lru\n  tenants: {floor: 10%, max_floors: 8, named: {gold: {floor: 30%}}}\n",
        good="eviction:\n  policy: lru\n  tenants: {floor: 5%, max_floors: 8, named: {gold: {floor: 30%}}}\n",
    ),
    Code(
        "KVP309",
        "floor above cap",
        "A tenant cannot be guaranteed more than it may hold.",
        bad="eviction: {tenants: {floor: 20%, cap: 10%, max_floors: 2}}\n",
        good="eviction: {tenants: {floor: 10%, cap: 20%, max_floors: 2}}\n",
    ),
    Code(
        "KVP310",
        "watermarks crossed",
        "Eviction starts when free room falls below `low` and stops at `high`, so `low` is the smaller one.",
        bad="allocator: {watermark: {low: 5%, high: 2%}}\n",
        good="allocator: {watermark: {low: 2%, high: 5%}}\n",
    ),
    Code(
        "KVP311",
        "preferred but not accepted",
        "`accept` lists everything the engine may settle on, the preferred value included.",
        bad="cache: {page_size: {prefer: 16, accept: [32, 64]}}\n",
        good="cache: {page_size: {prefer: 16, accept: [16, 32, 64]}}\n",
    ),
    Code(
        "KVP312",
        "rule is never reached",
        "The first matching rule wins, and a rule above has no `match`, so it takes every unit.",
        bad=_rules("    - {name: all, priority: 1}\n" + _KEEP),
        good=_rules(_KEEP + "    - {name: rest, priority: 1}\n"),
    ),
    Code(
        "KVP313",
        "accept without prefer",
        "`accept` widens a preference; alone it asks for nothing. Say what to ask the engine for.",
        bad="cache: {page_size: {accept: [16, 32]}}\n",
        good="cache: {page_size: {prefer: 16, accept: [16, 32]}}\n",
    ),
    Code(
        "KVP315",
        "nothing admitted, nothing to keep",
        "`admit: never` leaves nothing in the cache, so `retain` and `priority` beside it have no unit to act on.",
        bad=_rules("    - {name: out, match: request.priority < 0, admit: never, priority: 1}\n"),
        good=_rules("    - {name: out, match: request.priority < 0, admit: never}\n"),
    ),
    Code(
        "KVP316",
        "the engine's core cannot do this",
        "`core: engine` keeps the engine's own tree core, which knows its built-in orders only: no scores, rules, "
        "tenants, hints or orders of ours.",
        bad="eviction: {core: engine, policy: gdsf}\n",
        good="eviction: {core: engine, policy: lru}\n",
    ),
    Code(
        "KVP317",
        "max_floors without a floor",
        "`max_floors` counts the tenants that hold `floor`; without a floor it has no effect.",
        bad="eviction: {tenants: {cap: 40%, max_floors: 4}}\n",
        good="eviction: {tenants: {cap: 40%, floor: 5%, max_floors: 4}}\n",
    ),
    Code(
        "KVP318",
        "default and prefer",
        "`default` and `prefer` are two words for one thing; give one.",
        bad="cache: {kv_dtype: {default: bf16, prefer: fp8_e4m3}}\n",
        good="cache: {kv_dtype: {prefer: bf16}}\n",
    ),
    Code(
        "KVP319",
        "a layer has two dtypes",
        "Two ranges overlap and name different dtypes.",
        bad='cache: {kv_dtype: {default: fp8_e4m3, layers: {"0-3": bf16, "2-5": fp8_e5m2}}}\n',
        good='cache: {kv_dtype: {default: fp8_e4m3, layers: {"0-3": bf16, "4-5": fp8_e5m2}}}\n',
    ),
    Code(
        "KVP330",
        "hints in vain",
        "A word of `hints:` has no effect while the hint that it is about is not in `allow`, or a rule waits for "
        "`request.hint_class` and no request can have one.",
        bad="hints: {allow: [demote], budget: 20%}\n",
        good="hints: {allow: [retain, demote], budget: 20%}\n",
    ),
)
