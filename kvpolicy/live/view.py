"""A server's cache at a glance, in lines of at most 80 columns: what `kvpolicy top` shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import engine_metrics
from .client import Sample
from .shadow_view import shadow_lines
from .words import number, share

__all__ = ["WIDTH", "Snapshot", "frame"]

WIDTH = 80
#: Tenants and rules shown at most.
_ROWS = 8
#: Latest hints shown at most.
_HINTS = 5

Block = Mapping[str, Any]


@dataclass(frozen=True)
class Snapshot:
    """What the server said at one time."""

    time_s: float
    blocks: Sequence[Block]  # one a data-parallel rank
    samples: Sequence[Sample]  # of /metrics; empty: there is none


def frame(now: Snapshot, before: Snapshot | None = None) -> Iterator[str]:
    """The lines of one picture; rates are those since `before`."""
    for line in _frame(now, before):
        yield line if len(line) <= WIDTH else line[: WIDTH - 3] + "..."


def _frame(now: Snapshot, before: Snapshot | None) -> Iterator[str]:
    seconds = 0.0 if before is None else now.time_s - before.time_s
    for rank, block in enumerate(now.blocks):
        earlier = None
        if before is not None and rank < len(before.blocks) and seconds > 0:
            earlier = before.blocks[rank]
        if len(now.blocks) > 1:
            yield f"{'' if rank == 0 else chr(10)}data-parallel rank {rank}"
        yield from _engine(block, earlier, seconds)
        if rank == 0:
            yield _hits(now, before)
        yield ""
        yield from _rules(block, earlier, seconds)
        if hints := block.get("hints"):
            yield ""
            yield from _hints(hints)
        if tenants := block.get("tenants"):
            yield ""
            yield from _tenants(tenants, block)
        if (shadows := block.get("shadows")) is not None and (lines := list(shadow_lines(shadows))):
            yield ""
            yield from lines


def _engine(block: Block, earlier: Block | None, seconds: float) -> Iterator[str]:
    yield f"policy     {block['name']}, digest {block['digest'][:12]}, {block['algorithm']}"
    yield f"order by   {block['core']} ({block['core_reason']})"
    yield from _pool(block)
    calls, spent_s = block["evict_calls"], block["evict_seconds"]
    evicted = sum(block["evicted_tokens"].values())
    text = f"evicted    {number(evicted)} tokens in {number(calls)} calls"
    if calls:
        text += f", {spent_s / calls * 1000:.2g} ms each"
    if earlier is not None:
        text += f"; now {number((evicted - sum(earlier['evicted_tokens'].values())) / seconds)} tokens/s"
    yield text
    if fallbacks := block["fallbacks"]:
        shown = ", ".join(f"{reason} {number(count)}" for reason, count in fallbacks.items())
        yield f"fallbacks  {shown}"
    for conflict in block["conflicts"]:
        yield f"conflict   {conflict}"


def _pool(block: Block) -> Iterator[str]:
    pool = block.get("occupancy")
    if pool is None:
        yield f"pool       {number(block['pool_tokens'])} tokens"
        return
    size, used, evictable = pool["pool_tokens"], pool["used_tokens"], pool["evictable_tokens"]
    width = WIDTH - 13
    marks = round(width * used / size) if size else 0
    kept = round(width * (evictable or 0) / size) if size else 0
    yield f"pool       [{('#' * marks + '=' * kept)[:width]:.<{width}}]"
    parts = [f"# in use {share(used, size)}"]
    if evictable is not None:
        parts.append(f"= evictable {share(evictable, size)}")
    parts.append(f". {'free' if evictable is not None else 'free or evictable'} {share(pool['free_tokens'], size)}")
    yield f"           {', '.join(parts)} of {number(size)} tokens"


def _hits(now: Snapshot, before: Snapshot | None) -> str:
    """Over all ranks, by our own count, else by the engine's."""
    asked, found = _looked_up(now)
    if asked is None or found is None:
        return "hits       not known: the engine has no metrics (SGLang: --enable-metrics)"
    text = f"hits       {share(found, asked)} of {number(asked)} prompt tokens"
    if before is not None:
        asked_before, found_before = _looked_up(before)
        if asked_before is not None and found_before is not None and asked > asked_before:
            text += f"; now {share(found - found_before, asked - asked_before)}"
    running = engine_metrics.total(now.samples, engine_metrics.RUNNING)
    waiting = engine_metrics.total(now.samples, engine_metrics.WAITING)
    if running is not None and waiting is not None:
        text += f"; {number(running)} requests running, {number(waiting)} waiting"
    return text


def _looked_up(snapshot: Snapshot) -> tuple[float | None, float | None]:
    if all("traffic" in block for block in snapshot.blocks):
        traffic = [block["traffic"] for block in snapshot.blocks]
        return sum(each["prompt_tokens"] for each in traffic), sum(each["hit_tokens"] for each in traffic)
    asked = engine_metrics.total(snapshot.samples, engine_metrics.LOOKED_UP_TOKENS)
    found = engine_metrics.total(snapshot.samples, engine_metrics.HIT_TOKENS)
    return asked, found or (None if asked is None else 0.0)  # SGLang shows no hits before the first one


def _rules(block: Block, earlier: Block | None, seconds: float) -> Iterator[str]:
    protected = block.get("protected", {})
    evicted = block["evicted_tokens"]
    again = (block.get("why") or {}).get("evicted_before_reuse_tokens", {})
    yield f"{'rule':<24}{'protects':>12}{'of pool':>8}{'evicted':>14}{'/s':>9}{'again':>11}"
    names = sorted({*protected, *evicted, "none"}, key=lambda name: (name == "none", -evicted.get(name, 0), name))
    for name in [*names[: _ROWS - 1], *names[-1:]] if len(names) > _ROWS else names:
        held = protected.get(name, {}).get("tokens")
        rate = ""
        if earlier is not None:
            rate = number((evicted.get(name, 0) - earlier["evicted_tokens"].get(name, 0)) / seconds)
        yield (
            f"{_cut(name, 23):<24}{'' if held is None else number(held):>12}"
            f"{'' if held is None else share(held, block['pool_tokens']):>8}"
            f"{number(evicted.get(name, 0)):>14}{rate:>9}"
            f"{share(again.get(name, 0), evicted.get(name, 0)) if block.get('why') else '':>11}"
        )


def _hints(hints: Block) -> Iterator[str]:
    """What became of requests' hints, by action, and the latest ones by their action_id."""
    counted = "; ".join(
        f"{action} " + ", ".join(f"{number(count)} {outcome}" for outcome, count in outcomes.items())
        for action, outcomes in hints["counts"].items()
    )
    yield f"hints      {counted or 'none so far'}"
    if latest := hints["latest"][:_HINTS]:
        yield f"{'latest by action_id':<24}{'':<9}{'':<10}{'holds':>10}{'at most':>10}  then"
    for hint in latest:
        held, most = hint["held_tokens"], hint["most_held_tokens"]
        yield (
            f"{_cut(hint['action_id'], 23):<24}{hint['action']:<9}{hint['outcome']:<10}"
            f"{'' if held is None else number(held):>10}{'' if most is None else number(most):>10}"
            f"  {_cut(hint['ended'] or hint['why'] or '', 60)}"
        ).rstrip()


def _tenants(tenants: Sequence[Mapping[str, Any]], block: Block) -> Iterator[str]:
    yield f"{'tenant':<24}{'resident':>12}{'of pool':>8}{'hit tokens':>14}{'floor':>9}{'cap':>11}"
    pool = block["pool_tokens"]
    for tenant in tenants[:_ROWS]:
        floor, cap = tenant["floor_tokens"], tenant["cap_tokens"]
        yield (
            f"{_cut(tenant['name'], 23):<24}{number(tenant['resident_tokens']):>12}"
            f"{share(tenant['resident_tokens'], pool):>8}{number(tenant['hit_tokens']):>14}"
            f"{'' if floor is None else share(floor, pool):>9}{'' if cap is None else share(cap, pool):>11}"
        )


def _cut(text: str, width: int) -> str:
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= width else text[: width - 3] + "..."
