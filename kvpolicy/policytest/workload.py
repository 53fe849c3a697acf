"""Random workloads in the tests' own notation, and the invariants run over one of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from kvpolicy.language.models import Hints, Policy
from kvpolicy.language.steps import Event, parse_event
from kvpolicy.policytest.cache import SmallCache, Violation
from kvpolicy.replay.simulator import Eviction

__all__ = ["Workload", "as_test", "random_workload", "violation"]


@dataclass(frozen=True, slots=True)
class Workload:
    """A test without expectations: whatever its events are, the invariants hold."""

    pool_tokens: int
    page_tokens: int
    granularity: str
    lengths: tuple[tuple[str, int], ...]
    steps: tuple[str, ...]


def random_workload(rng: random.Random, policy: Policy) -> Workload:
    """Few prefixes, asked for again and again in a pool that is too small, at times around the policy's ttls."""
    page = rng.choice((1, 1, 16, 64, 256))
    pages = rng.randint(3, 48)
    longest = max(1, pages * rng.choice((1, 1, 2)) // 2) * page
    lengths = tuple((name, rng.randint(1, longest)) for name in "abcdefgh")
    eviction = policy.eviction
    retains = [rule.retain for rule in eviction.rules if rule.retain] if eviction else []
    waits = [
        1000,
        *(ttl + extra for retain in retains if (ttl := retain.ttl_ms) for extra in (-1, 0, 1) if ttl + extra),
    ]
    hints = policy.hints if policy.hints is not None and policy.hints.allow else None
    if hints is not None:
        waits += [hints.max_ttl_ms, 60_000]
    tenants = [*(eviction.tenants.named if eviction and eviction.tenants else ()), "t1", "t2", "t3"]
    names = [name for name, _ in lengths]
    steps = [_step(rng, names, waits, tenants, pages * page, hints) for _ in range(rng.randint(4, 40))]
    return Workload(pages * page, page, rng.choice(("node", "page")), lengths, tuple(steps))


def _step(
    rng: random.Random, names: list[str], waits: list[int], tenants: list[str], pool: int, hints: Hints | None
) -> str:
    words = [f"+{rng.choice(waits)}ms"] if rng.random() < 0.5 else []
    if rng.random() < 0.1:
        words += ["flood", f"{rng.randint(1, 6)}x{rng.randint(1, max(1, pool // 2))}"]
    else:
        # The first names more often: prefixes that many share.
        words.append("/".join(names[min(rng.randrange(8), rng.randrange(8))] for _ in range(rng.randint(1, 4))))
        if rng.random() < 0.2:
            words += ["->", rng.choice(names)]
        if rng.random() < 0.2:
            words.append(f"x{rng.randint(2, 5)}")
    if rng.random() < 0.15:
        words += ["for", f"{rng.choice(waits)}ms"]
    for key, values in (("tenant", tenants), ("priority", range(-2, 4)), ("session", "pqr"), ("lora", "x")):
        if rng.random() < (0.4 if key in ("tenant", "priority") else 0.1):
            words.append(f"{key}={rng.choice(list(values))}")
    if hints is not None and rng.random() < 0.4:
        retain = f"retain={rng.choice(waits)}ms", f"retain=1h,{rng.randint(1, pool)}"
        words.append(rng.choice((*retain, "demote", "expire")))
    if hints is not None and hints.classes and rng.random() < 0.2:
        words.append(f"class={rng.choice(hints.classes)}")
    return " ".join(words)


_parsed: Callable[[str], Event] = cache(parse_event)


def violation(workload: Workload, eviction: Eviction) -> str | None:
    """What breaks, if anything does: run twice, as two ranks would, and drain at the end."""
    digests = []
    for _ in range(2):
        small = SmallCache(
            eviction, workload.pool_tokens, workload.page_tokens, workload.granularity, dict(workload.lengths)
        )
        try:
            for step in workload.steps:
                small.run(_parsed(step))
            for _ in small.drain():
                pass
        except Violation as broken:
            return str(broken)
        digests.append(small.index.victim_digest)
    return None if digests[0] == digests[1] else "two runs of the same requests evict differently: ranks would diverge"


def as_test(workload: Workload, name: str) -> str:
    """YAML to paste below `tests:`. The invariants are checked in every test; a last line gives it an expectation."""
    used = {name for step in workload.steps for name in step.replace("/", " ").split()}
    lengths = ", ".join(f"{key}: {tokens}" for key, tokens in workload.lengths if key in used)
    return "\n".join(
        [
            f"  - name: {name}",
            f"    pool: {workload.pool_tokens}",
            f"    page_size: {workload.page_tokens}",
            f"    granularity: {workload.granularity}",
            f"    segments: {{{lengths}}}",
            "    steps:",
            *(f"      - {step}" for step in workload.steps),
            f'      - resident_tokens: "<= {workload.pool_tokens}"',
            "",
        ]
    )
