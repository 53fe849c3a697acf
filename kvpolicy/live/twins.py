"""An index whose handles are not the engine's units but their *twins*, so that two policies can look at one unit.

A unit carries one policy's metadata (`unit.kvp`). What a policy applied later records stands on a twin, so preparing it
changes nothing that the running policy reads, and putting it in charge rewrites no unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvpolicy.eviction.base import RequestInfo, UnitMeta
from kvpolicy.eviction.metadata_index import MetadataIndex

__all__ = ["Twin", "TwinIndex"]


class Twin:
    """A handle of its own for one of the engine's units."""

    __slots__ = ("kvp", "unit")

    def __init__(self, unit: Any) -> None:
        self.unit = unit
        self.kvp: UnitMeta | None = None

    @property
    def last_access_time(self) -> Any:
        return self.unit.last_access_time

    @property
    def creation_time(self) -> Any:
        return self.unit.creation_time

    @property
    def hit_count(self) -> Any:
        return self.unit.hit_count

    @property
    def priority(self) -> Any:
        return self.unit.priority


class TwinIndex:
    """A :class:`MetadataIndex` as an adapter knows it: every handle that goes in or comes out is the engine's unit.

    What is not spelled out here goes to the index itself.
    """

    needs_metadata = needs_events = True

    def __init__(self, index: MetadataIndex) -> None:
        self.inner: Any = index
        self._divider: Callable[[Any, int], Any] | None = None
        self.twins: dict[Any, Twin] = {}  # of every resident unit that was adopted or inserted

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def divider(self) -> Callable[[Any, int], Any] | None:
        """See :class:`EvictionIndex`; of units."""
        return self._divider

    @divider.setter
    def divider(self, divide: Callable[[Any, int], Any] | None) -> None:
        self._divider = divide
        self.inner.divider = None if divide is None else lambda twin, units: self.twins[divide(twin.unit, units)]

    def __len__(self) -> int:
        return len(self.inner)

    def __contains__(self, unit: object) -> bool:
        twin = self.twins.get(unit)
        return twin is not None and twin in self.inner

    def meta(self, unit: Any) -> UnitMeta | None:
        twin = self.twins.get(unit)
        return None if twin is None else twin.kvp

    # -- membership --

    def add(self, unit: Any) -> None:
        self.inner.add(self.twins[unit])

    def discard(self, unit: Any) -> None:
        twin = self.twins.get(unit)
        if twin is not None:
            self.inner.discard(twin)

    def touched(self, unit: Any) -> None:
        twin = self.twins.get(unit)
        if twin is not None:
            self.inner.touched(twin)

    # -- resident units --

    def insert(
        self,
        unit: Any,
        parent: Any,
        request: RequestInfo,
        size_tokens: int,
        depth_tokens: int,
        is_output: bool = False,
        content_key: int | None = None,
        units: int = 1,
        following: Sequence[int] = (),
    ) -> None:
        twin = self.twins[unit] = Twin(unit)
        above = None if parent is None else self.twins.get(parent)
        self.inner.insert(twin, above, request, size_tokens, depth_tokens, is_output, content_key, units, following)

    def adopt(
        self,
        unit: Any,
        parent: Any,
        size_tokens: int,
        depth_tokens: int,
        before: UnitMeta | None = None,
        kept: tuple[int, int] | None = None,
        content_key: int | None = None,
        units: int = 1,
    ) -> None:
        twin = self.twins[unit] = Twin(unit)
        above = None if parent is None else self.twins.get(parent)
        self.inner.adopt(twin, above, size_tokens, depth_tokens, before, kept, content_key, units)

    def touch(self, unit: Any, request: RequestInfo) -> None:
        twin = self.twins.get(unit)
        if twin is not None:
            self.inner.touch(twin, request)

    def split(self, upper: Any, lower: Any, upper_tokens: int) -> None:
        twin = self.twins.get(lower)
        if twin is not None:
            above = self.twins[upper] = Twin(upper)
            self.inner.split(above, twin, upper_tokens)

    def divide(self, upper: Any, lower: Any, units: int, content_key: int | None = None) -> None:
        twin = self.twins.get(lower)
        if twin is not None:
            above = self.twins[upper] = Twin(upper)
            self.inner.divide(above, twin, units, content_key)

    def is_prompt(self, unit: Any) -> None:
        twin = self.twins.get(unit)
        if twin is not None:
            self.inner.is_prompt(twin)

    def orphaned(self, unit: Any) -> None:
        twin = self.twins.get(unit)
        if twin is not None:
            self.inner.orphaned(twin)

    def remove(self, unit: Any) -> None:
        twin = self.twins.pop(unit, None)
        if twin is not None:
            self.inner.remove(twin)

    # -- the walk --

    def pop(self) -> Any:
        twin = self.inner.pop()
        return None if twin is None else twin.unit

    def follow(self, victim: Any, unit: Any) -> bool:
        """The victim was removed before, so its twin is not known any more; the order compares keys alone."""
        return bool(self.inner.follow(self._last_victim, self.twins[unit]))

    def evicted(
        self, unit: Any, size_tokens: int, depth_tokens: int | None = None, identity: int = 0, units: int = 1
    ) -> None:
        twin = self._last_victim = self.twins[unit]
        self.inner.evicted(twin, size_tokens, depth_tokens, identity, units)

    def sweep(self, unit: Any, most: int) -> int:
        return int(self.inner.sweep(self.twins[unit], most))

    def trim(self, unit: Any, units: int, content_key: int | None = None) -> None:
        twin = self.twins.get(unit)
        if twin is not None:
            self.inner.trim(twin, units, content_key)

    def reoffer(self, unit: Any) -> None:
        self.inner.reoffer(self.twins[unit])

    def is_protected(self, unit: Any) -> bool:
        twin = self.twins.get(unit)
        return twin is not None and bool(self.inner.is_protected(twin))

    def rule_of(self, unit: Any) -> str:
        twin = self.twins.get(unit)
        return "" if twin is None else str(self.inner.rule_of(twin))

    # -- whole --

    def reset(self, pool_tokens: int | None = None) -> None:
        self.twins.clear()
        self.inner.reset(pool_tokens)

    def rebuild(self, units: Iterable[Any]) -> None:
        self.inner.rebuild([twin for unit in units if (twin := self.twins.get(unit)) is not None])

    def check(self) -> None:
        for unit, twin in self.twins.items():
            assert twin.unit is unit, "a twin of another unit"
            assert twin.kvp is not None, "a twin without metadata"
        self.inner.check()
