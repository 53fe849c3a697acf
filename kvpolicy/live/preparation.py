"""Building a policy's index beside the one that decides, a slice at a time between the engine's steps.

While that goes on the adapter drives :class:`Both`: each event reaches the deciding index first, exactly as before, and
then the new one. The slices bring in what was resident already. Whatever happens in the new policy's code, the deciding
one never notices: a fault ends the preparation, and nothing else.

Slices are counted in units, never in time, and units come in an order that is equal on every rank; so after the same
messages every rank holds the same new index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol

from kvpolicy.eviction.base import RequestInfo, UnitMeta
from kvpolicy.eviction.metadata_index import MetadataIndex
from kvpolicy.eviction.plan import CompiledEviction

from .slices import LEAST_UNITS, MOST_UNITS
from .twins import TwinIndex

__all__ = ["Both", "Population", "Preparation"]

#: Requests after the client's last word until a prepared policy is dropped: nobody will ask for it any more.
LOST_AFTER_REQUESTS = 10_000

#: Smaller dictionaries grow in less than 1 ms; one of 87,381 takes 2 to 4.
_LARGE_DICT = 20_000
#: From so small a share below its size on, one may grow.
_EARLIER = 16

_END = object()
_Index = Any  # EvictionIndex | TwinIndex: one interface


class Population(Protocol):
    """The units of one pool, as the adapter knows them."""

    def units(self) -> Iterator[Any]:
        """Every resident unit, in an order equal on every rank; units may come and go between two of them. One that
        came meanwhile need not be among them, one that went may be. ``None`` is a place that was looked at and has
        none."""

    def parent(self, unit: Any) -> Any:
        """The unit whose prefix this one continues; ``None`` at the root."""

    def size_tokens(self, unit: Any) -> int:
        """Of the unit; of one unit of a run."""

    def count_units(self, unit: Any) -> int:
        """1, or how many units the run has."""

    def depth_tokens(self, unit: Any, above_tokens: int) -> int:
        """From the root to the unit's end; ``above_tokens`` is its parent's as far as that is known."""

    def content_key(self, unit: Any) -> int | None:
        """As ``EvictionIndex.insert`` takes it."""

    def is_evictable(self, unit: Any) -> bool:
        """Whether the engine offers the unit for eviction now."""


class Preparation:
    """One policy's index on its way into charge of a pool. No method raises for a fault of the new policy."""

    def __init__(
        self,
        eviction: CompiledEviction,
        before: _Index,
        population: Population,
        rank: Callable[[Any], Any] | None = None,
    ) -> None:
        self._before = before
        self._population = population
        #: Once a policy has recorded metadata it is kept for good: a later one, or a rollback, still knows the tenants.
        keep = bool(before.needs_metadata)
        built = eviction.make_index(before.pool_tokens, rank, clock=before.clock, keep_metadata=keep)
        #: What takes over. Without metadata its handles are the engine's units, as at a start.
        self.index: _Index = TwinIndex(built) if isinstance(built, MetadataIndex) else built
        if isinstance(built, MetadataIndex):
            built.continue_numbers(before.inner if isinstance(before, TwinIndex) else before)
        self._twins = self.index.twins if isinstance(self.index, TwinIndex) else None
        self.index.divider = before.divider
        self._cut: list[Any] = []  # made since the walk began of units that it had not come to
        self._walk: Iterator[Any] | None = chain(population.units(), self._cut)
        self._gone: dict[Any, None] = {}  # since the walk began: it may come to them, or they were not offered yet
        self._adopted: list[Any] = []  # in the last slice, to be offered for eviction in the next
        self._kept_rules = self._rules_that_stay()
        self.examined_units = 0
        self.was_cut_short = False  # the last slice, so that its time says nothing of the next
        self._fault: str | None = None
        self.heard_seq: int = before.clock.request_seq  # when the client last spoke, in requests

    @property
    def fault(self) -> str | None:
        """What the new policy did wrong, its survivable faults included; it is not going to take over then."""
        if self._fault is None and self.index.counters.fallbacks:
            self._fault = str(self.index.counters.last_fault)
        return self._fault

    @property
    def is_ready(self) -> bool:
        """Whether the new index holds every resident unit."""
        return self._walk is None and self.fault is None

    def step(self, units: int) -> bool:
        """Bring in up to ``units`` more (a path is not cut short); whether there is more to do."""
        self.heard_seq = self._before.clock.request_seq
        try:
            fitting = self._short_of_growth(units)
            self.was_cut_short = fitting < units
            stop = self.examined_units + fitting
            self._offer_adopted()
            while self._walk is not None and self.fault is None and self.examined_units < stop:
                unit = next(self._walk, _END)
                self.examined_units += 1
                if unit is _END:
                    self._offer_adopted()
                    self._finish()
                elif unit is not None and unit not in self._gone:
                    self._bring_in_later(unit)
        except Exception as fault:
            self.fail(fault)
        return self._walk is not None and self.fault is None

    def fail(self, fault: Exception) -> None:
        self._fault = self._fault or f"{type(fault).__name__}: {fault}"

    # -- events, after the deciding index took them --

    def add(self, unit: Any) -> None:
        if self._twins is None or unit in self._twins:
            self.index.add(unit)

    def insert(self, unit: Any, parent: Any, request: RequestInfo, *facts: Any) -> None:
        if parent is not None:
            self._adopt_path(parent)
        self.index.insert(unit, parent, request, *facts)

    def touch(self, unit: Any, request: RequestInfo) -> None:
        if self._twins is None:
            self.index.touched(unit)
        elif unit in self._twins:
            self.index.touch(unit, request)
        elif self._before.meta(unit) is None:  # else the hit is recorded there, and copied later
            self._adopt_path(unit)
            self.index.touch(unit, request)

    def split(self, upper: Any, lower: Any, upper_tokens: int) -> None:
        self.index.split(upper, lower, upper_tokens)
        self._remember(upper)

    def divide(self, upper: Any, lower: Any, units: int, content_key: int | None) -> None:
        self.index.divide(upper, lower, units, content_key)
        self._remember(upper)

    def _remember(self, upper: Any) -> None:
        """The walk may not know of it, and ``lower``, whose path it is on, may go before the walk comes to that."""
        if self._twins is not None and self._walk is not None and upper not in self._twins:
            self._cut.append(upper)

    def trim(self, unit: Any, units: int, content_key: int | None) -> None:
        """The deciding index took the end of a run, which is still evictable, and under another key."""
        is_offered = unit in self.index
        if is_offered:
            self.index.discard(unit)
        self.index.trim(unit, units, content_key)
        if is_offered:
            self.index.add(unit)

    def remove(self, unit: Any) -> None:
        if self._walk is not None:
            self._gone[unit] = None
        self.index.remove(unit)

    def reset(self, pool_tokens: int | None) -> None:
        self.index.reset(pool_tokens)
        self._gone.clear()
        self._adopted.clear()
        self._cut.clear()
        if self._walk is not None:
            self._finish()

    def bring_in(self, unit: Any) -> None:
        """The unit is resident, and perhaps not known here."""
        if self._twins is not None:
            self._adopt_path(unit)
        if self._population.is_evictable(unit):
            self.index.add(unit)

    # -- inner --

    def _bring_in_later(self, unit: Any) -> None:
        """Adopt it now and offer it in the next slice, so that the large dictionaries of both do not grow in one."""
        if self._twins is None:
            self.bring_in(unit)
        else:
            self._adopt_path(unit)
            self._adopted.append(unit)

    def _offer_adopted(self) -> None:
        adopted, self._adopted = self._adopted, []
        for unit in adopted:
            if unit not in self._gone and self._population.is_evictable(unit):
                self.index.add(unit)

    def _short_of_growth(self, units: int) -> int:
        """Fewer where a large dictionary is about to grow, which takes nearly as long as a slice may by itself.

        One whose units are offered again and again meanwhile is full before it has as many: a few slices earlier.
        """
        room = _room(len(self.index))
        if room < len(self._adopted):
            return min(units, LEAST_UNITS)
        if room < len(self.index) // _EARLIER:
            units = min(units, 2 * LEAST_UNITS)
        known = len(self.index) if self._twins is None else len(self._twins)
        return min(units, _room(known) or LEAST_UNITS)

    def _adopt_path(self, unit: Any) -> None:
        """Adopt the unit after those above it that are not yet."""
        twins, parent = self._twins, self._population.parent
        if twins is None or unit in twins:
            return
        path = [unit]
        while (above := parent(path[-1])) is not None and above not in twins:
            path.append(above)
        self.examined_units += len(path) - 1
        for below in reversed(path):
            self._adopt(below, parent(below))

    def _adopt(self, unit: Any, parent: Any) -> None:
        population, index = self._population, self.index
        meta: UnitMeta | None = self._before.meta(unit)
        size_tokens = population.size_tokens(unit)
        above = None if parent is None else index.meta(parent)
        depth_tokens = population.depth_tokens(unit, 0 if above is None else above.depth_tokens)
        kept = None
        if meta is not None:
            depth_tokens = meta.depth_tokens
            if meta.expiry_ms is not None and (place := self._kept_rules.get(meta.rule)) is not None:
                kept = (place, meta.expiry_ms)
        content_key = None if meta is None else meta.content_key
        if content_key is None and index.reads_content_key:
            content_key = population.content_key(unit)
        units = population.count_units(unit)
        index.adopt(unit, parent, size_tokens, depth_tokens, meta, kept, content_key, units)

    def _rules_that_stay(self) -> dict[int, int]:
        """Places of the rules before that the new policy has too, by name and ttl, and their places there."""
        places = {(rule.name, rule.ttl_ms): at for at, rule in enumerate(getattr(self.index, "rules", ()))}
        rules = enumerate(getattr(self._before, "rules", ()))
        return {
            at: places[rule.name, rule.ttl_ms]
            for at, rule in rules
            if rule.is_retain and rule.ttl_ms is not None and (rule.name, rule.ttl_ms) in places
        }

    def _finish(self) -> None:
        """All are in: let the new policy name a victim once, so that one that cannot is found out before it decides."""
        self._walk = None
        self._gone.clear()
        index = self.index
        index.begin()
        index.pop()
        index.end()


def _room(count: int) -> int:
    """How many more a dictionary of so many takes before it grows, as CPython does it; any, if it is small then."""
    full = (1 << (3 * count).bit_length()) // 3
    return full - count if full > _LARGE_DICT else MOST_UNITS


class Both:
    """The deciding index, as the adapter drives it, with a preparation that is told everything.

    What is not spelled out here goes to the deciding index alone. ``lost`` is called once nobody seems to ask for the
    new policy any more; it must put the deciding index back.
    """

    def __init__(self, before: _Index, preparation: Preparation, lost: Callable[[], None]) -> None:
        self.before = before
        self.preparation = preparation
        self._lost = lost
        self.needs_metadata: bool = before.needs_metadata
        self.needs_events: bool = before.needs_metadata or preparation.index.needs_metadata
        self.meta = before.meta
        self._divided: list[Any] = []  # made of the run that is being inserted or touched, from its end on
        self.takes_runs: bool = before.takes_runs and preparation.index.takes_runs
        self.names_units: bool = before.names_units or preparation.index.names_units
        self.divider = before.divider
        self.needs_content_key: bool = before.needs_content_key or preparation.index.needs_content_key

    def __getattr__(self, name: str) -> Any:
        return getattr(self.before, name)

    def __len__(self) -> int:
        return len(self.before)

    def __contains__(self, unit: object) -> bool:
        return unit in self.before

    def alike(self, content_keys: Sequence[int]) -> int:
        return int(min(self.before.alike(content_keys), self.preparation.index.alike(content_keys)))

    def _tell(self, event: Callable[..., Any], *args: Any) -> None:
        preparation = self.preparation
        if preparation.fault is None:
            try:
                event(*args)
            except Exception as fault:
                preparation.fail(fault)

    def add(self, unit: Any) -> None:
        try:
            self.before.add(unit)
        finally:
            self._tell(self.preparation.add, unit)

    def discard(self, unit: Any) -> None:
        try:
            self.before.discard(unit)
        finally:
            self._tell(self.preparation.index.discard, unit)

    def touched(self, unit: Any) -> None:
        try:
            self.before.touched(unit)
        finally:
            self._tell(self.preparation.index.touched, unit)

    def insert(self, unit: Any, parent: Any, request: RequestInfo, *facts: Any) -> None:
        self._divided.clear()
        try:
            self.before.insert(unit, parent, request, *facts)
        finally:
            if self._divided:  # by the deciding policy's rules, so that it is no longer what was inserted
                self._tell(self.preparation.bring_in, unit)
            else:
                self._tell(self.preparation.insert, unit, parent, request, *facts)

    def touch(self, unit: Any, request: RequestInfo) -> None:
        self._divided.clear()
        try:
            self.before.touch(unit, request)
        finally:
            for part in (unit, *self._divided):  # they were one run when the hit came
                self._tell(self.preparation.touch, part, request)

    def split(self, upper: Any, lower: Any, upper_tokens: int) -> None:
        try:
            self.before.split(upper, lower, upper_tokens)
        finally:
            self._tell(self.preparation.split, upper, lower, upper_tokens)

    def divide(self, upper: Any, lower: Any, units: int, content_key: int | None = None) -> None:
        self._divided.append(upper)
        try:
            self.before.divide(upper, lower, units, content_key)
        finally:
            self._tell(self.preparation.divide, upper, lower, units, content_key)

    def trim(self, unit: Any, units: int, content_key: int | None = None) -> None:
        try:
            self.before.trim(unit, units, content_key)
        finally:
            self._tell(self.preparation.trim, unit, units, content_key)

    def is_prompt(self, unit: Any) -> None:
        try:
            self.before.is_prompt(unit)
        finally:
            self._tell(self.preparation.index.is_prompt, unit)

    def orphaned(self, unit: Any) -> None:
        try:
            self.before.orphaned(unit)
        finally:
            self._tell(self.preparation.index.orphaned, unit)

    def remove(self, unit: Any) -> None:
        try:
            self.before.remove(unit)
        finally:
            self._tell(self.preparation.remove, unit)

    def begin(self) -> None:
        if self.before.clock.request_seq - self.preparation.heard_seq > LOST_AFTER_REQUESTS:
            self._lost()
        self.before.begin()

    def follow(self, victim: Any, unit: Any) -> bool:
        try:
            return bool(self.before.follow(victim, unit))
        finally:
            self._tell(self.preparation.add, unit)

    def reset(self, pool_tokens: int | None = None) -> None:
        try:
            self.before.reset(pool_tokens)
        finally:
            self._tell(self.preparation.reset, pool_tokens)

    def rebuild(self, units: Any) -> None:
        """A fault left the deciding index behind the pool; the new one may be too."""
        self.preparation.fail(RuntimeError("the running policy failed meanwhile and was built anew"))
        self.before.rebuild(units)
