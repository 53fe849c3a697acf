"""A heap of evictable handles that is settled lazily: the Order behind every algorithm whose key holds between touches.

An entry is a list ``[key, sequence, handle]``. Discarding a handle only clears the entry's third field, so that taking
a unit out (a lock) is O(1) and a dead entry keeps nothing alive; dead entries are dropped when they surface, or all at
once when they are many. Keys that only grow are re-read when their entry surfaces, so the engine may change them
without telling anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Generic

from kvpolicy.eviction.base import H, KeyChange

__all__ = ["LazyHeap"]

_KEY, _SEQUENCE, _HANDLE = 0, 1, 2

#: Below this many entries a wholesale rebuild is not worth choosing.
_SMALL = 64


class LazyHeap(Generic[H]):
    """Smallest key first; equal keys in the order in which they were added.

    ``key`` must return values that compare with each other. With :attr:`KeyChange.STATIC` it is read once, when the
    handle is added; with ``GROWS`` again when the handle comes up; with ``SHRINKS`` also at :meth:`touch`, which is
    then mandatory.
    """

    __slots__ = ("_entries", "_heap", "_key", "_sequence", "change")

    def __init__(self, key: Callable[[H], Any], change: KeyChange) -> None:
        if change is KeyChange.DYNAMIC:
            raise ValueError("a key that moves with the clock cannot be kept in a heap: use SampledOrder")
        self.change: KeyChange = change
        self._key = key
        self._sequence = 0
        self._entries: dict[H, list[Any]] = {}  # the live entry of every member
        self._heap: list[list[Any]] = []

    def add(self, handle: H) -> None:
        entries = self._entries
        if handle in entries:
            return
        self._sequence = sequence = self._sequence + 1
        entries[handle] = entry = [self._key(handle), sequence, handle]
        heap = self._heap
        heappush(heap, entry)
        if len(heap) > 2 * len(entries) + _SMALL:
            self._drop_dead()

    def discard(self, handle: H) -> None:
        entry = self._entries.pop(handle, None)
        if entry is not None:
            entry[_HANDLE] = None

    def touch(self, handle: H) -> None:
        """Offer the handle anew if its key changed. Growing keys are left to :meth:`peek`."""
        if self.change is not KeyChange.SHRINKS:
            return
        entry = self._entries.get(handle)
        if entry is not None and self._key(handle) != entry[_KEY]:
            self.discard(handle)
            self.add(handle)

    def peek(self) -> tuple[Any, H] | None:
        heap = self._heap
        reread = self.change is not KeyChange.STATIC
        surfaced = 0  # entries that came up and were not the answer
        while heap:
            entry = heap[0]
            handle = entry[_HANDLE]
            if handle is None:
                if len(heap) - len(self._entries) > len(self._entries) // 8 + _SMALL:
                    self._drop_dead()
                else:
                    heappop(heap)
                continue
            if not reread:
                return entry[_KEY], handle
            key = self._key(handle)
            if key == entry[_KEY]:
                return key, handle
            surfaced += 1
            if surfaced > len(heap) // 16 + _SMALL:  # many were touched in place: one pass is cheaper than one by one
                self._read_all_keys()
                surfaced = 0
                continue
            entry[_KEY] = key
            heapreplace(heap, entry)
        return None

    def pop(self) -> H | None:
        top = self.peek()
        if top is None:
            return None
        heappop(self._heap)
        del self._entries[top[1]]
        return top[1]

    def clear(self) -> None:
        self._entries.clear()
        self._heap.clear()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, handle: object) -> bool:
        return handle in self._entries

    def __iter__(self) -> Iterator[H]:
        return iter(self._entries)

    def check(self) -> None:
        """Debug: every member has one live entry, the heap is ordered, and no entry's key is above the member's own."""
        heap = self._heap
        live = [entry for entry in heap if entry[_HANDLE] is not None]
        assert len(live) == len(self._entries), "a member without an entry, or an entry without a member"
        for entry in live:
            assert self._entries[entry[_HANDLE]] is entry, "a live entry that is not its handle's own"
            current = self._key(entry[_HANDLE])
            if self.change is KeyChange.GROWS:
                assert entry[_KEY] <= current, "a key declared as growing shrank"
            else:
                assert entry[_KEY] == current, "a key changed without touch()"
        for i in range(1, len(heap)):
            assert heap[(i - 1) // 2][:2] <= heap[i][:2], "the heap order is broken"

    def _drop_dead(self) -> None:
        heap = self._heap
        heap[:] = [entry for entry in heap if entry[_HANDLE] is not None]
        heapify(heap)

    def _read_all_keys(self) -> None:
        key = self._key
        self._drop_dead()
        for entry in self._heap:
            entry[_KEY] = key(entry[_HANDLE])
        heapify(self._heap)
