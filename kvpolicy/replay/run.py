"""Replay one trace under many policies and capacities in one pass: every request goes to every simulator in turn.

Memory is that of the trees, not of the trace (eight bytes a request and run for its hits apart); only the bounds keep a
record of the trace's distinct content.
"""

from __future__ import annotations

import gc
import hashlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kvpolicy.replay.clairvoyant import TraceRecord, clairvoyant
from kvpolicy.replay.optimum import optimum
from kvpolicy.replay.pages import Pager
from kvpolicy.replay.requests import Request
from kvpolicy.replay.simulator import Eviction, Simulator
from kvpolicy.replay.statistics import RunStatistics
from kvpolicy.replay.trace import Trace

__all__ = ["Bound", "Replay", "Run", "Settings", "replay"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to replay; printed with every report."""

    capacities: tuple[int, ...]  # tokens
    page_tokens: int | None = None  # None: the trace's own block size
    granularity: str = "node"
    hold_running: bool = False  # keep a request's path locked for the duration that the trace gives
    bounds: bool = True  # infinite cache, clairvoyant, and the proven optimum of a small case


@dataclass(slots=True)
class Run:
    """One policy at one capacity."""

    policy: str
    capacity_tokens: int
    stats: RunStatistics
    resident_tokens: int = 0  # at the end
    ever_full: bool = False  # whether anything was evicted

    @property
    def hit_tokens(self) -> array[int]:
        return self.stats.hit_tokens


@dataclass(slots=True)
class Bound:
    """What some cache with knowledge or room that no policy has would have hit."""

    name: str  # "infinite" | "clairvoyant"
    capacity_tokens: int | None
    hit_tokens: array[int]


@dataclass(slots=True)
class Replay:
    """All runs over one trace."""

    trace: str
    format: str
    block_tokens: int
    settings: Settings
    page_tokens: int
    input_tokens: array[int] = field(default_factory=lambda: array("q"))
    arrival_ms: array[int] = field(default_factory=lambda: array("q"))
    cache_salts: list[str | None] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)
    optimum_tokens: dict[int, int] = field(
        default_factory=dict
    )  # by capacity: proven most hit tokens, small cases only
    distinct_tokens: int | None = None  # what the infinite cache holds at the end
    notes: list[str] = field(default_factory=list)
    digest: str = ""  # over what was replayed: equal for equal requests in equal order

    @property
    def requests(self) -> int:
        return len(self.input_tokens)

    def bound(self, name: str, capacity_tokens: int | None = None) -> Bound | None:
        return next((b for b in self.bounds if (b.name, b.capacity_tokens) == (name, capacity_tokens)), None)


def _without_collector(requests: Iterator[Request]) -> Iterator[Request]:
    """Nodes are freed when they are removed, no cycle holds them: the cyclic collector would only walk large trees."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield from requests
    finally:
        if was_on:
            gc.enable()


def replay(
    trace: Trace,
    evictions: Sequence[Eviction],
    settings: Settings,
    progress: Callable[[int, str], None] | None = None,
) -> Replay:
    """Replay ``trace`` once. ``progress`` is called with the number of requests done, or what is being computed.

    Raises:
        TraceError: a bad row; TraceUsageError: the page size does not fit the trace's blocks.
    """
    page_tokens = settings.page_tokens or trace.info.block_tokens
    pager = Pager(trace.info.block_tokens, page_tokens, is_exact=trace.info.is_exact)
    simulators = [
        (
            Simulator(
                eviction,
                capacity,
                page_tokens,
                settings.granularity,
                hold_running=settings.hold_running,
                exact_tokens=trace.info.block_tokens == 1 or trace.info.is_exact,
                has_prefix_hashes=trace.info.block_tokens > 1 or trace.info.is_exact,
                ahead_pages=trace.info.ahead_pages,
            ),
            eviction,
            capacity,
        )
        for capacity in settings.capacities
        for eviction in evictions
    ]
    result = Replay(trace.name, trace.info.format, trace.info.block_tokens, settings, page_tokens)
    record = TraceRecord(page_tokens) if settings.bounds else None
    serve = [simulator.request for simulator, _, _ in simulators]
    digest = hashlib.sha256()
    for request in _without_collector(trace.requests()):
        pages = pager.pages(request.blocks, request.input_tokens)
        full = pages
        if request.full_blocks is not None:
            full = pager.pages(request.full_blocks, request.input_tokens + request.output_tokens)
        reusable = pager.reusable(len(pages), request.input_tokens)
        for each in serve:
            each(request, pages, reusable, full)
        if record is not None:
            record.add(request, reusable, full)
        result.input_tokens.append(request.input_tokens)
        result.arrival_ms.append(request.arrival_ms)
        result.cache_salts.append(request.info.cache_salt)
        digest.update(b"%d %d %d;" % (request.arrival_ms, request.input_tokens, len(full)))
        if progress is not None:
            progress(result.requests, "")
    result.digest = digest.hexdigest()[:16]
    for simulator, eviction, capacity in simulators:
        stats = simulator.stats
        counters = simulator.index.counters
        stats.evicted_by_rule = dict(counters.evicted_tokens)
        stats.fallbacks = counters.fallbacks
        resident = simulator.tree.pages * page_tokens
        result.runs.append(Run(eviction.name, capacity, stats, resident, stats.victims > 0))
    result.notes = list(trace.info.notes)
    if trace.out_of_order:
        result.notes.append(f"{trace.out_of_order:,} requests arrive before their predecessor: replayed in file order")
    if trace.bad_rows:
        result.notes.append(f"{trace.bad_rows:,} bad rows skipped, the first: {trace.first_bad}")
    if trace.info.has_sessions:
        result.notes.insert(0, f"sessions: {trace.interleaving}")
    if record is not None:
        result.distinct_tokens = record.distinct_pages * page_tokens
        result.bounds.append(Bound("infinite", None, record.infinite_hit_tokens))
        paths = record.paths()
        for capacity in settings.capacities:
            if progress is not None:
                progress(result.requests, "clairvoyant")
            result.bounds.append(Bound("clairvoyant", capacity, clairvoyant(record, paths, capacity)))
            most = optimum(record, paths, capacity)
            if most is not None:
                result.optimum_tokens[capacity] = most
    return result
