"""A heap of evictable handles that is settled lazily: the Order behind every algorithm whose key holds between touches.

An entry is a tuple of the key (flat, where the key is a tuple itself) and a number; the numbers of the live ones lead
to their handles. So discarding a handle (the engine locks the unit) is O(1), a dead entry keeps nothing alive, and the
garbage collector has nothing to walk: a heap of handles themselves makes it examine every entry over and over. Keys
that only grow are re-read when their entry comes up, so the engine may change them without telling anybody.

Entries live in a few heaps by age, *generations*. Additions go to the youngest; it is sealed at a quarter of the
members. A burst of touches so leaves whole generations without a live entry, which are dropped at once, instead of one
large heap whose dead entries all have to be passed before the next victim shows. None is made larger
than 1/32 of the members (or ``_LARGE``), so that no addition has to tidy up or merge most of them at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Generic

from kvpolicy.eviction.base import H, KeyChange

__all__ = ["LazyHeap"]

#: Below this many entries a pass over a heap, or a generation of its own, is not worth it.
_SMALL = 64
#: Up to this many entries a heap's top is kept live at each discard, so that many small heaps need not all be tidied up
#: in one eviction. In a large heap that would cost each touch more than a victim gains: generations mostly die whole.
_SETTLED = 256
#: More generations than this are merged, as far as that makes none larger than the limit below.
_FEW_GENERATIONS = 8
#: Entries of one generation, or 1/32 of the members where that is more. Tidying up so many takes about 1 ms.
_LARGE = 4096


_Entry = tuple[Any, ...]


class _Generation:
    __slots__ = ("handles", "heap")

    def __init__(self) -> None:
        self.heap: list[_Entry] = []
        self.handles: dict[int, Any] = {}  # the members whose live entry is here, by its number


class LazyHeap(Generic[H]):
    """Smallest key first; equal keys in the order in which they were added.

    ``key`` must return values that compare with each other. With :attr:`KeyChange.STATIC` it is read once, when the
    handle is added; with ``GROWS`` again when the handle comes up; with ``SHRINKS`` also at :meth:`touch`, which is
    then mandatory.
    """

    is_keyed = True

    __slots__ = ("_bound", "_firsts", "_front", "_generations", "_key", "_last", "_numbers", "_open", "_room", "change")

    def __init__(self, key: Callable[[H], Any], change: KeyChange) -> None:
        if change is KeyChange.DYNAMIC:
            raise ValueError("a key that moves with the clock cannot be kept in a heap: use SampledOrder")
        self.change: KeyChange = change
        self._key = key
        self._numbers: dict[H, int] = {}  # the number of each member's live entry
        self._last = 0  # number given last
        self._open = _Generation()
        self._room = _SMALL  # entries of the open generation
        self._generations = [self._open]  # oldest first
        self._firsts = [1]  # the lowest number that each may hold
        self._front: _Generation | None = None  # where the first one was found last
        self._bound: _Entry | None = None  # no top of the others was below, and but for the open one's they only rise

    def add(self, handle: H) -> Any:
        numbers = self._numbers
        if handle in numbers:
            return None
        key = self._key(handle)
        self._last = number = self._last + 1
        numbers[handle] = number
        generation = self._open
        generation.handles[number] = handle
        heap = generation.heap
        heappush(heap, (*key, number) if type(key) is tuple else (key, number))
        if len(heap) > self._room:
            self._seal()
        return key

    def discard(self, handle: H) -> None:
        number = self._numbers.pop(handle, None)
        if number is not None:
            generation = self._generations[bisect_right(self._firsts, number) - 1]
            handles, heap = generation.handles, generation.heap
            del handles[number]
            if heap[0][-1] == number and len(heap) <= _SETTLED:
                while heap and heap[0][-1] not in handles:
                    heappop(heap)
            if not handles:
                self._end(generation)

    def touch(self, handle: H) -> Any:
        """Offer the handle anew. Growing keys are left to :meth:`peek`."""
        if self.change is KeyChange.SHRINKS and handle in self._numbers:
            self.discard(handle)
            return self.add(handle)
        return None

    def peek(self) -> tuple[Any, H] | None:
        generation = self._first() if self._numbers else None
        if generation is None:
            return None
        entry = generation.heap[0]
        return (entry[0] if len(entry) == 2 else entry[:-1], generation.handles[entry[-1]])

    def pop(self) -> H | None:
        generation = self._first()
        if generation is None:
            return None
        handle: H = generation.handles.pop(heappop(generation.heap)[-1])
        del self._numbers[handle]
        if not generation.handles:
            self._end(generation)
        return handle

    def precedes(self, handle: H, victim: H) -> bool:
        return bool(self._key(handle) <= self._key(victim))

    def sweep(self, handle: H, most: int) -> int:
        return most

    def clear(self) -> None:
        self._numbers.clear()
        self._open = _Generation()
        self._room = _SMALL
        self._generations = [self._open]
        self._firsts = [self._last + 1]
        self._front = None

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, handle: object) -> bool:
        return handle in self._numbers

    def __iter__(self) -> Iterator[H]:
        return iter(self._numbers)

    def check(self) -> None:
        """Debug: one live entry a member, heaps ordered, no entry with a key above its member's own."""
        assert len(self._firsts) == len(self._generations)
        assert self._generations[-1] is self._open
        for generation, first, end in zip(
            self._generations, self._firsts, [*self._firsts[1:], self._last + 1], strict=True
        ):
            heap, handles, live = generation.heap, generation.handles, 0
            for i, entry in enumerate(heap):
                number = entry[-1]
                assert i == 0 or heap[(i - 1) // 2] <= heap[i], "the heap order is broken"
                assert first <= number < end, "an entry in the wrong generation"
                if number not in handles:
                    continue
                live += 1
                handle = handles[number]
                assert self._numbers.get(handle) == number, "a live entry that is not its handle's own"
                current = _entry(self._key(handle), number)
                if self.change is KeyChange.GROWS:
                    assert entry <= current, "a key declared as growing shrank"
                else:
                    assert entry == current, "a key changed without touch()"
            assert live == len(handles), "a member without an entry"
            is_bound = handles and self._front not in (None, generation) and generation is not self._open
            assert not is_bound or self._bound <= heap[0], "a generation that would not be looked at"  # type: ignore[operator]
        assert sum(len(generation.handles) for generation in self._generations) == len(self._numbers), (
            "a member of no generation"
        )

    def _first(self) -> _Generation | None:
        """The generation whose heap has the live entry with the smallest key of all at its top, exact."""
        generations = self._generations
        if len(generations) == 1:
            only = self._open
            if not only.handles:
                return None
            self._settled(only)
            return only
        newest = self._open
        while True:
            # Unsettled tops are lower bounds, so only the smallest has to be looked at.
            if (front := self._front) is not None:
                top, bound = front.heap[0], self._bound
                is_before_newest = front is newest or not newest.handles or top < newest.heap[0]
                if is_before_newest and (bound is None or top < bound):
                    if self._settled(front) is top:
                        return front
                    continue
            self._find_front()
            if self._front is None:
                return None

    def _find_front(self) -> None:
        """The generation with the smallest top, settled or not, and the smallest of the others."""
        first, self._bound, self._front = None, None, None
        for generation in self._generations:
            if generation.handles:
                top = generation.heap[0]
                if first is None or top < first:
                    first, self._bound, self._front = top, first, generation
                elif self._bound is None or top < self._bound:
                    self._bound = top

    def _settled(self, generation: _Generation) -> _Entry:
        """Bring the live entry with the smallest current key to the top of a heap that has one."""
        heap, handles, key_of = generation.heap, generation.handles, self._key
        live = len(handles)
        is_static = self.change is KeyChange.STATIC
        surfaced = 0  # entries that came up with an outdated key
        while True:
            entry = heap[0]
            number = entry[-1]
            if number not in handles:
                if len(heap) - live > live // 8 + _SMALL:
                    _drop_dead(generation)
                else:
                    heappop(heap)
                continue
            if is_static:
                return entry
            key = key_of(handles[number])
            if key == (entry[:-1] if type(key) is tuple else entry[0]):
                return entry
            surfaced += 1
            if surfaced > live // 16 + _SMALL:  # many were touched in place: one pass is cheaper than one by one
                surfaced = 0
                heap[:] = [_entry(key_of(handles[e[-1]]), e[-1]) for e in heap if e[-1] in handles]
                heapify(heap)
            else:
                heapreplace(heap, _entry(key, number))

    def _end(self, generation: _Generation) -> None:
        """That generation's last live entry died."""
        if generation is self._front:
            self._front = None
        if generation is self._open:
            generation.heap.clear()
        else:
            at = self._generations.index(generation)
            del self._generations[at], self._firsts[at]

    def _seal(self) -> None:
        """Open a new generation; tidy up those that are mostly dead, and merge the two smallest neighbours if need
        be."""
        generations, members = self._generations, len(self._numbers)
        self._front = None
        limit = max(_LARGE, members // 32)
        for generation in generations:
            if len(generation.heap) > 2 * len(generation.handles) + _SMALL:
                _drop_dead(generation)
        if len(generations) >= _FEW_GENERATIONS:
            sizes = [len(generation.handles) for generation in generations]
            at = min(range(len(sizes) - 1), key=lambda i: sizes[i] + sizes[i + 1])
            if sizes[at] + sizes[at + 1] <= limit:
                into, other = generations[at], generations[at + 1]
                into.heap += other.heap
                into.handles.update(other.handles)
                _drop_dead(into)
                del generations[at + 1], self._firsts[at + 1]
        self._open = _Generation()
        self._room = min(members // 4 + _SMALL, limit)
        generations.append(self._open)
        self._firsts.append(self._last + 1)


def _drop_dead(generation: _Generation) -> None:
    heap, handles = generation.heap, generation.handles
    heap[:] = [entry for entry in heap if entry[-1] in handles]
    heapify(heap)


def _entry(key: Any, number: int) -> _Entry:
    return (*key, number) if type(key) is tuple else (key, number)
