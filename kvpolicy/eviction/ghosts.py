"""Why something is missing: a bounded memory of what was evicted, looked up when a new unit turns out to be an old one.

Only reports read this; no decision does. So it may look at the machine's clock, and a fault inside ends the memory,
never a call of the engine: no method raises.

A *ghost* is what is left of an evicted unit, under its ``content_key``. When a unit with that key is inserted again,
its tokens were evicted before they were reused: that is counted, and explained as a *miss*. Units of one request that
return one below the other are one miss.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kvpolicy.eviction.base import Handle, PolicyClock

__all__ = ["Ghost", "Ghosts", "Histogram", "Miss"]

#: Ghosts kept, of which each takes some 350 bytes, and misses explained. The oldest go first.
CAPACITY, MISSES = 32768, 64

SECONDS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
REQUESTS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0)
HITS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0)


class Histogram:
    """Counts by upper bound (inclusive, as Prometheus has it); the last count is of everything above."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0  # sum of all values

    def add(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count


class Ghost(NamedTuple):
    """One evicted unit, or the units of a run that went together, as they were then. Kept as a bare tuple: the garbage
    collector need not walk those."""

    rule: str  # that protected it, "": none
    size_tokens: int  # of one unit
    hits: int
    idle_requests: int  # since its last touch
    score: float | None  # by which the policy ordered it; None: its order has no number
    evicted_at: int  # tokens that had been evicted in all, before it
    seq: int  # clock.request_seq
    time_s: float
    cutoff: float | None  # the score of the last victim of the same walk


class Miss:
    """Tokens that had to be computed again because they had been evicted."""

    __slots__ = ("age_requests", "age_s", "first", "start_tokens", "time_s", "tokens", "units", "wanted_tokens")

    def __init__(self, ghost: Ghost, seq: int, time_s: float, start_tokens: int) -> None:
        self.first = ghost  # where the missing part begins
        self.age_requests = seq - ghost.seq
        self.age_s = time_s - ghost.time_s
        self.time_s = time_s
        self.start_tokens = start_tokens  # that were still there before it
        self.tokens = 0  # evicted and asked for again
        self.units = 0
        self.wanted_tokens = 0  # by how much larger a pool would have kept it until now, at most


class Ghosts:
    """The memory of one index. ``score_of`` gives the number by which the policy orders a unit."""

    def __init__(
        self,
        clock: PolicyClock,
        score_of: Callable[[Handle], float | None],
        *,
        capacity: int = CAPACITY,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.capacity = capacity
        self.fault = ""  # what ended the memory
        self.reused: dict[str, int] = {}  # units evicted before they were reused, by rule
        self.reused_tokens: dict[str, int] = {}
        self.age_s = Histogram(SECONDS)  # at eviction, since insertion
        self.hits = Histogram(HITS)  # at eviction
        self.away_s = Histogram(SECONDS)  # from eviction to the miss
        self.away_requests = Histogram(REQUESTS)
        self.misses: deque[Miss] = deque(maxlen=MISSES)
        self.found_tokens = 0  # of the unit inserted last, from its beginning on: evicted before
        self._clock, self._score_of, self.now_s = clock, score_of, now_s
        self.contents: OrderedDict[int, tuple[Any, ...]] = OrderedDict()  # a `Ghost` each; for looking up alone
        self._walk: list[tuple[Any, ...]] = []  # see `evicted`
        self._names: list[Sequence[int]] = []  # the contents of each of these
        self._evicted_tokens = 0
        self._last_order = 0  # UnitMeta.order of the unit that was missed last

    def __len__(self) -> int:
        return len(self.contents)

    def succeed(self, before: Ghosts) -> None:
        """Remember what another index's memory does, and count on from there."""
        for name in ("fault", "reused", "reused_tokens", "age_s", "hits", "away_s", "away_requests", "misses"):
            setattr(self, name, getattr(before, name))
        self.contents, self._evicted_tokens = before.contents, before._evicted_tokens
        self._last_order = before._last_order

    # -- what the index tells --

    def inserted(self, meta: Any, following: Sequence[int] = ()) -> None:
        """A unit with this metadata became resident, or a run, of which ``following`` names all but the first."""
        if self.fault:
            return
        try:
            meta.birth_s = self.now_s()
            self.found_tokens = 0
            if meta.content_key in self.contents:
                self.found_tokens = found = self.asked(meta, meta.content_key)
                for key in following if found else ():
                    if not (found := self.asked(meta, key, self.found_tokens)):
                        break
                    self.found_tokens += found
        except Exception as fault:
            self.stop(fault)

    def asked(self, meta: Any, content_key: int, start_tokens: int = 0) -> int:
        """A unit that is new begins, ``start_tokens`` after its beginning, with this content: how many tokens of that
        had been evicted, 0 for none. For units that grew together again of several."""
        found = self.contents.pop(content_key, None)
        if found is None:
            return 0
        ghost = Ghost(*found)
        tokens: int = min(ghost.size_tokens, meta.tokens - start_tokens)
        rule = ghost.rule
        self.reused[rule] = self.reused.get(rule, 0) + 1
        self.reused_tokens[rule] = self.reused_tokens.get(rule, 0) + tokens
        seq, now_s = self._clock.request_seq, self.now_s()
        self.away_s.add(now_s - ghost.time_s)
        self.away_requests.add(seq - ghost.seq)
        above = None if meta.parent is None else meta.parent.kvp
        continues = start_tokens > 0 or (above is not None and above.order == self._last_order)
        if not continues or not self.misses:
            before = meta.depth_tokens - meta.tokens + start_tokens
            self.misses.append(Miss(ghost, seq, now_s, before))
        miss = self.misses[-1]
        miss.tokens += tokens
        miss.units += 1
        miss.wanted_tokens = max(miss.wanted_tokens, self._evicted_tokens - ghost.evicted_at)
        self._last_order = meta.order
        return tokens

    def evicted(self, handle: Handle, rule: str, size_tokens: int, units: int = 1) -> None:
        """A unit is evicted in the walk that :meth:`end` ends, or so many of a run, which :meth:`name` then names."""
        if self.fault:
            return
        try:
            meta = handle.kvp
            key = meta.content_key
            self._names.append((key,) if key is not None and units == meta.units == 1 else ())
            self._walk.append(
                (rule, size_tokens, units, meta.hits, meta.touch_seq, self._score_of(handle), meta.birth_s)
            )
        except Exception as fault:
            self.stop(fault)

    def name(self, content_keys: Sequence[int]) -> None:
        """The contents of the units that :meth:`evicted` was told of last."""
        if self._names:
            self._names[-1] = content_keys

    def end(self) -> None:
        """The walk is over."""
        if self._walk:
            try:
                self._keep()
            except Exception as fault:
                self.stop(fault)

    def _keep(self) -> None:
        """Make ghosts of the walk's victims. In one piece: it runs for every one of them."""
        ghosts, evicted_tokens, seq, now_s = self.contents, self._evicted_tokens, self._clock.request_seq, self.now_s()
        unhit, add_age, cutoff = 0, self.age_s.add, self._walk[-1][5]
        for keys, (rule, tokens, units, hits, touch_seq, score, birth_s) in zip(self._names, self._walk, strict=True):
            add_age(now_s - birth_s, units)
            if hits:
                self.hits.add(hits, units)
            else:
                unhit += units
            ghost = (rule, tokens // units, hits, seq - touch_seq, score, evicted_tokens, seq, now_s, cutoff)
            for key in keys:
                ghosts[key] = ghost
            evicted_tokens += tokens
        self.hits.add(0, unhit)
        while len(ghosts) > self.capacity:
            ghosts.popitem(last=False)
        self._evicted_tokens = evicted_tokens
        self._walk.clear()
        self._names.clear()

    def clear(self) -> None:
        """The cache was emptied: what comes back now was not evicted by the policy."""
        self.contents.clear()
        self._walk.clear()
        self._names.clear()

    def stop(self, fault: Exception) -> None:
        """Remember nothing from now on."""
        self.fault = f"{type(fault).__name__}: {fault}"
        self.clear()
