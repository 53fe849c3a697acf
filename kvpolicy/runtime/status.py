"""What a process says of its policy: the `kvpolicy` block of the server's status, and one line at start.

Only JSON-able values leave this module, in one form for every engine. Reading is safe at any time: the thread that
evicts both writes and answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .active import ActivePolicy, AllocatorState
from .metrics import HISTOGRAMS

if TYPE_CHECKING:
    from kvpolicy.eviction.ghosts import Histogram, Miss
    from kvpolicy.eviction.hints import HintBook, HintReport
    from kvpolicy.eviction.index import EvictionIndex
    from kvpolicy.eviction.tenants import CompiledTenants, Tenant
    from kvpolicy.eviction.watermark import Watermark

    from .traffic import Traffic

__all__ = ["block", "by_rule", "fallbacks", "line", "occupancy", "start_facts"]


#: Tenants that a status shows at most.
TENANTS = 16


def _settings(active: ActivePolicy) -> dict[str, dict[str, Any]]:
    return {
        setting.path: {
            "flag": setting.flag,
            "requested": setting.requested,
            "effective": setting.effective,
            "decided_by": setting.decided_by,
            "origin": setting.origin,
        }
        for setting in active.settings.values()
    }


def start_facts(active: ActivePolicy) -> dict[str, Any]:
    """What stays true while the server runs."""
    return {
        "name": active.name,
        "digest": active.digest,
        "source": active.source,
        "settings": _settings(active),
        "built": dict(active.built),
        "core": active.core,
        "core_reason": active.core_reason,
        "algorithm": active.algorithm,
        "pool_tokens": active.pool_tokens,
        **({"kv_pool": active.kv_pool} if active.kv_pool else {}),
        **({"allocator": _allocator(active.allocator)} if active.allocator is not None else {}),
        **({"cascade": asdict(active.cascade)} if active.cascade is not None else {}),
        "conflicts": [conflict.message for conflict in active.conflicts],
    }


def _allocator(state: AllocatorState) -> dict[str, Any]:
    """Who hands out slots, and what its guard found (units by kind of fault)."""
    return {
        "core": state.core,
        "reason": state.reason,
        "order": state.order,
        "guard": state.guard,
        "faults": dict(state.faults),
    }


def block(active: ActivePolicy) -> dict[str, Any]:
    """The whole block: the start's facts and the live figures."""
    index = active.index
    counters = getattr(index, "counters", None)
    return {
        **start_facts(active),
        "evict_calls": active.evict_calls,
        "evict_seconds": round(active.evict_seconds, 6),
        "evictable_units": len(index) if index is not None else None,
        "evictions": by_rule(getattr(counters, "evictions", {})),
        "evicted_tokens": by_rule(getattr(counters, "evicted_tokens", {})),
        "victim_digest": f"{index.victim_digest:016x}" if index is not None else None,
        "fallbacks": fallbacks(active),
        "last_fault": getattr(counters, "last_fault", "") or None,
        **({"protected": protected} if (protected := _protected(index)) else {}),
        **({"hints": _hints(index.hints)} if index is not None and index.hints is not None else {}),
        **({"tenants": tenants} if (tenants := _tenants(active)) else {}),
        **({"traffic": _traffic(active.traffic)} if index is not None and index.needs_metadata else {}),
        **({"why": why} if (why := _why(index)) is not None else {}),
        **({"watermark": _watermark(active.watermark)} if active.watermark is not None else {}),
    }


def _protected(index: EvictionIndex | None) -> dict[str, dict[str, int | None]]:
    """By rule: tokens that it protects now, and those counted against its budget (ancestors included)."""
    if index is None:
        return {}
    return {
        rule: {"tokens": held, "budget_tokens": counted} for rule, (held, counted) in index.protected_tokens().items()
    }


def _hints(book: HintBook) -> dict[str, Any]:
    """What became of requests' hints: counts by action and outcome, and the latest ones by their action_id."""
    counts: dict[str, dict[str, int]] = {}
    for (action, outcome), count in book.counts.items():
        counts.setdefault(action, {})[outcome] = count
    now = book.clock.request_seq
    return {"counts": counts, "latest": [_hint(report, now) for report in reversed(book.recent.values())]}


def _hint(report: HintReport, now_seq: int) -> dict[str, Any]:
    hold = report.hold
    return {
        "action_id": report.action_id,
        "action": report.action,
        "outcome": report.outcome,
        "why": report.why or None,
        "ago_requests": now_seq - report.seq,
        "ttl_s": None if hold is None else hold.ttl_ms / 1000,
        "held_tokens": None if hold is None else hold.held_tokens,
        "most_held_tokens": None if hold is None else hold.most_tokens,
        "ended": (hold.end or None) if hold is not None and not hold.held_tokens else None,
        "demoted_tokens": report.demoted_tokens,
    }


def _tenants(active: ActivePolicy) -> list[dict[str, Any]]:
    """Those with most tokens. A salt may be a secret between a client and the server, so only the policy's own names
    are told; the others go by the order in which they appeared."""
    index, section = active.index, active.compiled.eviction.tenants if active.compiled is not None else None
    if index is None or section is None:
        return []
    tenants = sorted(index.tenants(), key=lambda tenant: (-tenant.resident_tokens, tenant.order))
    return [
        {
            "name": _tenant_name(tenant, section),
            "resident_tokens": tenant.resident_tokens,
            "hit_tokens": tenant.hit_tokens,
            "floor_tokens": tenant.floor_tokens if tenant.holds_floor else None,
            "cap_tokens": tenant.cap_tokens,
        }
        for tenant in tenants[:TENANTS]
    ]


def _tenant_name(tenant: Tenant, section: CompiledTenants) -> str:
    if tenant.salt is None:
        return "(no salt)"
    return tenant.salt if tenant.salt in section.named else f"#{tenant.order}"


def _traffic(traffic: Traffic) -> dict[str, int]:
    return {
        "requests": traffic.requests,
        "prompt_tokens": traffic.prompt_tokens,
        "hit_tokens": traffic.hit_tokens,
        "short_prompts": traffic.short_prompts,
        "salted_requests": traffic.salted_requests,
        "new_salts": traffic.new_salts,
    }


def _why(index: EvictionIndex | None) -> dict[str, Any] | None:
    """What is remembered of evictions, the latest miss first; None: nothing is."""
    ghosts = None if index is None else index.ghosts
    if ghosts is None:
        return None
    now_s = ghosts.now_s()
    return {
        "fault": ghosts.fault or None,
        "remembered_units": len(ghosts),
        "most_units": ghosts.capacity,
        "evicted_before_reuse": by_rule(ghosts.reused),
        "evicted_before_reuse_tokens": by_rule(ghosts.reused_tokens),
        **{name: _histogram(getattr(ghosts, name)) for name in HISTOGRAMS},
        "misses": [_miss(miss, now_s) for miss in reversed(ghosts.misses)],
    }


def _histogram(histogram: Histogram) -> dict[str, Any]:
    return {"bounds": list(histogram.bounds), "counts": list(histogram.counts), "sum": round(histogram.total, 3)}


def _miss(miss: Miss, now_s: float) -> dict[str, Any]:
    ghost = miss.first
    return {
        "ago_s": round(now_s - miss.time_s, 3),
        "start_tokens": miss.start_tokens,
        "tokens": miss.tokens,
        "units": miss.units,
        "evicted_ago_s": round(miss.age_s, 3),
        "evicted_ago_requests": miss.age_requests,
        "rule": ghost.rule or "none",
        "score": _finite(ghost.score),
        "cutoff": _finite(ghost.cutoff),
        "hits": ghost.hits,
        "idle_requests": ghost.idle_requests,
        "wanted_tokens": miss.wanted_tokens,
    }


def occupancy(pool_tokens: int, free_tokens: int, evictable_tokens: int | None) -> dict[str, int | None]:
    """What the pool's tokens are: free and empty, evictable, or in use by running requests. With None evictable, free
    ones include what is evictable."""
    return {
        "pool_tokens": pool_tokens,
        "free_tokens": free_tokens,
        "evictable_tokens": evictable_tokens,
        "used_tokens": pool_tokens - free_tokens - (evictable_tokens or 0),
    }


def _watermark(mark: Watermark) -> dict[str, int]:
    return {
        "low_pages": mark.low_pages,
        "high_pages": mark.high_pages,
        "batches": mark.batches,
        "ahead_pages": mark.ahead_pages,
    }


def _finite(number: float | None) -> float | None:
    """JSON has no other numbers."""
    return number if number is not None and math.isfinite(number) else None


def line(active: ActivePolicy) -> str:
    """One line for the log of each scheduler."""
    settings = ", ".join(
        f"{known.flag.removeprefix('--')} {known.requested} -> {known.effective}" for known in active.settings.values()
    )
    mark = active.watermark
    built = f"; KV pool {active.kv_pool['class']}" if active.kv_pool else ""
    built += f"; below {mark.low_pages} free pages evicts up to {mark.high_pages}" if mark is not None else ""
    return (
        f"kvpolicy: policy {active.name}, digest {active.digest[:12]}, core {active.core} ({active.core_reason})"
        f"{f', {active.algorithm}' if active.algorithm else ''}{f'; {settings}' if settings else ''}{built}"
        f"{f'; slots: {active.allocator.reason}' if active.allocator and active.allocator.core == 'kvpolicy' else ''}"
    )


def by_rule(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by rule name; what no rule protected is under "none"."""
    return {rule or "none": count for rule, count in counts.items()}


def fallbacks(active: ActivePolicy) -> dict[str, int]:
    """Calls served in the engine's order after a fault, by where the fault was; "policy": inside the index."""
    inside = getattr(getattr(active.index, "counters", None), "fallbacks", 0)
    return {**active.fallbacks, **({"policy": inside} if inside else {})}
