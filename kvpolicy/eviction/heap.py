"""A heap of evictable handles that is settled lazily: the Order behind every algorithm whose key holds between touches.

An entry is a list ``[key, sequence, handle]``. Discarding a handle (the engine locks the unit) only clears the entry's
third field, so it is O(1) and a dead entry keeps nothing alive. Keys that only grow are re-read when their entry comes
up, so the engine may change them without telling anybody.

Entries live in two heaps by age: ``old`` as it was at the last promotion, ``young`` for all that was added since. A
burst of touches kills the entries of ``old`` and fills ``young``, which is in order at all times; the dead are then
dropped wholesale, with one pass over ``old`` at most, never one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Generic

from kvpolicy.eviction.base import H, KeyChange

__all__ = ["LazyHeap"]

_KEY, _SEQUENCE, _HANDLE = 0, 1, 2

#: Below this many entries a pass over a heap is not worth choosing.
_SMALL = 64


class LazyHeap(Generic[H]):
    """Smallest key first; equal keys in the order in which they were added.

    ``key`` must return values that compare with each other. With :attr:`KeyChange.STATIC` it is read once, when the
    handle is added; with ``GROWS`` again when the handle comes up; with ``SHRINKS`` also at :meth:`touch`, which is
    then mandatory.
    """

    __slots__ = ("_boundary", "_entries", "_key", "_old", "_old_live", "_sequence", "_young", "change")

    def __init__(self, key: Callable[[H], Any], change: KeyChange) -> None:
        if change is KeyChange.DYNAMIC:
            raise ValueError("a key that moves with the clock cannot be kept in a heap: use SampledOrder")
        self.change: KeyChange = change
        self._key = key
        self._entries: dict[H, list[Any]] = {}  # the live entry of every member
        self._old: list[list[Any]] = []
        self._young: list[list[Any]] = []
        self._old_live = 0  # members whose entry is in `old`, i.e. has a sequence up to the boundary
        self._boundary = 0
        self._sequence = 0

    def add(self, handle: H) -> None:
        entries = self._entries
        if handle in entries:
            return
        self._sequence = sequence = self._sequence + 1
        entries[handle] = entry = [self._key(handle), sequence, handle]
        heappush(self._young, entry)
        if len(self._young) > 2 * len(entries) - len(self._old) + _SMALL:
            self._merge()

    def discard(self, handle: H) -> None:
        entry = self._entries.pop(handle, None)
        if entry is not None:
            entry[_HANDLE] = None
            if entry[_SEQUENCE] <= self._boundary:
                self._old_live -= 1
                if not self._old_live:
                    self._promote()

    def touch(self, handle: H) -> None:
        """Offer the handle anew if its key changed. Growing keys are left to :meth:`peek`."""
        if self.change is not KeyChange.SHRINKS:
            return
        entry = self._entries.get(handle)
        if entry is not None and self._key(handle) != entry[_KEY]:
            self.discard(handle)
            self.add(handle)

    def peek(self) -> tuple[Any, H] | None:
        entry = self._first()
        return None if entry is None else (entry[_KEY], entry[_HANDLE])

    def pop(self) -> H | None:
        entry = self._first()
        if entry is None:
            return None
        handle: H = entry[_HANDLE]
        heappop(self._old if entry[_SEQUENCE] <= self._boundary else self._young)
        self.discard(handle)
        return handle

    def clear(self) -> None:
        self._entries.clear()
        self._old.clear()
        self._young.clear()
        self._old_live = 0
        self._boundary = self._sequence

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, handle: object) -> bool:
        return handle in self._entries

    def __iter__(self) -> Iterator[H]:
        return iter(self._entries)

    def check(self) -> None:
        """Debug: each member has one live entry, both heaps are ordered, and no entry's key is above its member's
        own."""
        for heap, is_old in ((self._old, True), (self._young, False)):
            for i, entry in enumerate(heap):
                assert i == 0 or heap[(i - 1) // 2][:2] <= entry[:2], "the heap order is broken"
                assert (entry[_SEQUENCE] <= self._boundary) == is_old, "an entry in the wrong heap"
                handle = entry[_HANDLE]
                if handle is None:
                    continue
                assert self._entries.get(handle) is entry, "a live entry that is not its handle's own"
                current = self._key(handle)
                if self.change is KeyChange.GROWS:
                    assert entry[_KEY] <= current, "a key declared as growing shrank"
                else:
                    assert entry[_KEY] == current, "a key changed without touch()"
        live = [sum(entry[_HANDLE] is not None for entry in heap) for heap in (self._old, self._young)]
        assert live[0] == self._old_live, "the count of live old entries is off"
        assert sum(live) == len(self._entries), "a member without an entry"

    def _first(self) -> list[Any] | None:
        """The live entry with the smallest key of all, at the top of its heap and exact."""
        old = self._settled(self._old, self._old_live) if self._old_live else None
        young = self._settled(self._young, len(self._entries) - self._old_live)
        if old is None or young is None:
            return young if old is None else old
        return min(old, young)

    def _settled(self, heap: list[list[Any]], live: int) -> list[Any] | None:
        """Bring the live entry with the smallest current key to the top of one heap."""
        is_static = self.change is KeyChange.STATIC
        surfaced = 0  # entries that came up with an outdated key
        while heap:
            entry = heap[0]
            handle = entry[_HANDLE]
            if handle is None:
                if len(heap) - live > live // 8 + _SMALL:
                    _drop_dead(heap)
                else:
                    heappop(heap)
                continue
            if is_static:
                return entry
            key = self._key(handle)
            if key == entry[_KEY]:
                return entry
            surfaced += 1
            if surfaced > live // 16 + _SMALL:  # many were touched in place: one pass is cheaper than one by one
                surfaced = 0
                self._read_all_keys(heap)
            else:
                entry[_KEY] = key
                heapreplace(heap, entry)
        return None

    def _read_all_keys(self, heap: list[list[Any]]) -> None:
        key = self._key
        heap[:] = [entry for entry in heap if entry[_HANDLE] is not None]
        for entry in heap:
            entry[_KEY] = key(entry[_HANDLE])
        heapify(heap)

    def _promote(self) -> None:
        """`old` holds nothing alive: the young generation takes its place."""
        self._old, self._young = self._young, []
        self._old_live = len(self._entries)
        self._boundary = self._sequence

    def _merge(self) -> None:
        """Too many entries are dead: start over with one generation of the live ones."""
        self._old += self._young
        _drop_dead(self._old)
        self._young = []
        self._old_live = len(self._entries)
        self._boundary = self._sequence


def _drop_dead(heap: list[list[Any]]) -> None:
    heap[:] = [entry for entry in heap if entry[_HANDLE] is not None]
    heapify(heap)
