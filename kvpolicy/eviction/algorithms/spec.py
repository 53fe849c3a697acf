"""The contract of an eviction algorithm. One algorithm a file beside this one; ``registry`` lists them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from kvpolicy.eviction.base import Handle, KeyChange, Order, PolicyClock
from kvpolicy.eviction.heap import LazyHeap

__all__ = ["Algorithm", "KeyedAlgorithm", "Ranked", "recency"]


class Algorithm:
    """One eviction order over the units of one pool. The index makes one per pool, and one Order per partition.

    The hooks are called for every resident unit, evictable or not, and only where ``needs_metadata`` is true; a unit's
    own state lives in ``handle.kvp.state`` as long as it is resident, wherever the unit goes in between.
    """

    #: Whether the order reads ``handle.kvp``, and the hooks below must be called.
    needs_metadata: ClassVar[bool] = False
    #: Whether it recognises content that was evicted before: the adapter must then give ``content_key`` to ``insert``.
    needs_content_key: ClassVar[bool] = False
    #: Whether ``inserted_run`` wants such a number for every unit of a run, not for the first alone.
    names_units: ClassVar[bool] = False
    #: Whether the key may rise from one unit of a run to the one before it, so that another one may come between.
    rises_in_runs: bool = False
    #: How keys move while a unit is evictable.
    change: KeyChange = KeyChange.GROWS

    def __init__(self, clock: PolicyClock) -> None:
        self.clock = clock

    def make_order(self) -> Order[Handle]:
        """An empty order over one partition."""
        raise NotImplementedError

    def make_member_order(self) -> Order[Handle]:
        """An empty order over the units that one rule protects, evictable or not: what its budget sheds first. The same
        order as far as keys go; orders without a key shed the least recently touched first."""
        return LazyHeap(recency, KeyChange.GROWS)

    def alike(self, content_keys: Sequence[int]) -> int:
        """How many of these units, each the prefix of the next and none resident, may come in as one run: at least 1.
        Asked only where ``names_units``."""
        return len(content_keys)

    def inserted(self, handle: Handle) -> None:
        """A unit became resident; ``handle.kvp`` is set."""

    def inserted_run(self, handle: Handle, following: Sequence[int]) -> None:
        """A run of several units became resident; ``following`` names those after the first, or is empty."""
        self.inserted(handle)

    def touched(self, handle: Handle) -> None:
        """A later request reached the unit's end; ``handle.kvp`` already counts it."""

    def split(self, upper: Handle, lower: Handle) -> None:
        """``upper.kvp`` is the copied metadata of the new ancestor half; both sizes are already right."""

    def divided(self, upper: Handle, lower: Handle) -> None:
        """``upper.kvp`` is the copied metadata of the first units of the run ``lower``, which kept the others."""

    def trimmed(self, handle: Handle, units: int, content_key: int | None) -> None:
        """That many last units of the run were evicted; the rest stays. ``content_key`` is the first one's of them."""

    def removed(self, handle: Handle, evicted: bool) -> None:
        """The unit is resident no more; ``evicted``: as a victim of this order."""

    def score_of(self, handle: Handle) -> float | None:
        """The number by which it orders the unit now, smallest first, for people; ``None``: it goes by no number."""
        return None

    def clear(self) -> None:
        """Forget all units and all that was learned."""


class KeyedAlgorithm(Algorithm):
    """An order by a key that holds between touches: a lazy heap."""

    key: Callable[[Handle], Any]

    def make_order(self) -> Order[Handle]:
        return LazyHeap(self.key, self.change)

    make_member_order = make_order


class Ranked(KeyedAlgorithm):
    """``inner``'s order within ranks that the engine gives its units (smallest rank first), as SGLang's session
    references do. A rank may fall: whoever changes one says so through ``touched``."""

    change = KeyChange.SHRINKS

    def __init__(self, inner: KeyedAlgorithm, rank: Callable[[Handle], Any]) -> None:
        super().__init__(inner.clock)
        self._inner = inner
        self._rank = rank

    def key(self, handle: Handle) -> Any:
        return self._rank(handle), self._inner.key(handle)


def recency(handle: Handle) -> tuple[int, int]:
    """Last touch, then creation: the language's tie-break. Needs metadata."""
    meta = handle.kvp
    return (meta.touch_seq, meta.order)
