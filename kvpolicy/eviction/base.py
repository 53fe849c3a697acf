"""The contract of the eviction layer: what an adapter hands in, what an algorithm promises, what the index answers.

Nothing here imports an engine. A *handle* is the engine's own object for one unit that can be evicted alone (SGLang: a
tree node; vLLM: a block; replay: a page). The index never copies handles and never frees anything: it only proposes
victims, and the engine re-validates each one.

A handle may also stand for a *run*: several units of one size, each the prefix of the next, born and touched together.
The last one is what goes next; key, depth and creation order are its own, and a unit that goes shortens the run (see
``EvictionIndex.trim``). The units of a run are told apart wherever they differ, by dividing it.

A handle carries, as plain attributes:

``kvp``
    The unit's :class:`UnitMeta`, or ``None`` where the policy needs none (a bare built-in order).
``last_access_time``, ``creation_time``, ``hit_count``, ``priority``
    The engine's own bookkeeping, under SGLang's names. The built-in orders (lru, lfu, fifo, filo, mru, slru, priority,
    tlru) read these, so that they give the engine's victims exactly; engines without such fields keep them on their
    handle under the same names. Within a run ``last_access_time`` falls by 1 from a unit to the one before it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from kvpolicy.eviction.envelope import Envelope
    from kvpolicy.eviction.hints import Hold

__all__ = ["ENGINE_FIELDS", "Handle", "KeyChange", "Order", "PolicyClock", "RequestInfo", "UnitMeta"]

#: What a built-in order may read from a handle itself.
ENGINE_FIELDS = ("last_access_time", "creation_time", "hit_count", "priority")


class KeyChange(enum.Enum):
    """How a unit's key moves while the unit stays evictable; it decides what must be observed."""

    STATIC = "static"  # never: a heap entry stays exact
    GROWS = "grows"  # only upwards (later eviction): a lazy heap re-reads at pop; no touch hook is needed
    SHRINKS = "shrinks"  # may fall at a touch: `touch` must be called, which re-offers the unit
    DYNAMIC = "dynamic"  # changes with the clock alone: evaluated on a sample at eviction


@dataclass(slots=True)
class PolicyClock:
    """Policy time: equal on every rank, moved only by arriving requests, never back."""

    request_seq: int = 0  # requests seen so far
    now_ms: int = 0  # running maximum of the arrival stamps, integer milliseconds

    def arrive(self, arrival_ms: int | None = None) -> None:
        """Count one arriving request and, where it carries a stamp, move the time forward to it."""
        self.request_seq += 1
        if arrival_ms is not None and arrival_ms > self.now_ms:
            self.now_ms = arrival_ms


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """What a policy may know of a request. ``None`` means absent."""

    cache_salt: str | None = None
    priority: int | None = None
    session_id: str | None = None
    lora: str | None = None
    hints: Envelope | None = None  # what it asks for itself, as read from the client
    hint_class: str | None = None  # of those, the class that the policy lets it have; the index fills it in


@dataclass(slots=True, eq=False)
class UnitMeta:
    """What kvpolicy itself records of one resident unit. A split copies all of it to both halves (sizes apart)."""

    size_tokens: int  # tokens of this unit alone
    depth_tokens: int  # tokens from the root to this unit's end
    birth_seq: int  # clock.request_seq at insertion
    birth_ms: int
    touch_seq: int  # clock.request_seq at the last touch
    touch_ms: int
    order: int  # creation order within the index: the last tie-break
    hits: int = 0  # requests after the creating one whose match reached the unit's end
    reuse_gap_s: float = 0.0  # exponentially smoothed gap between touches; 0 before the first reuse
    is_output: bool = False
    cache_salt: str | None = None
    priority: int | None = None  # in effect: the rule's where one sets it, else that of the requests
    request_priority: int | None = None  # clamped maximum over the unit's requests
    rule_priority: int | None = None  # set by the rule that won at the last touch
    session_id: str | None = None
    lora: str | None = None
    parent: Any = None  # the parent's handle, None under the root
    #: Names the tokens from the root through the unit's first page, if the adapter knows such a number: equal when the
    #: same prompt, or a longer one that begins with it, comes back after an eviction.
    content_key: int | None = None
    units: int = 1  # of a run: that many of ``size_tokens`` each
    # -- protection, kept by the rules --
    rule: int = -1  # index of the retain rule that protects the unit now, -1: unprotected
    expiry_ms: int | None = None  # policy time at which the protection ends; None: never
    # -- hints, where the policy allows any --
    hint_class: str | None = None  # of the latest request that had one
    is_demoted: bool = False  # the latest request wants it to go before what nothing protects
    hold: Hold | None = None  # the retain that covers it
    hold_expiry_ms: int | None = None  # policy time until which it does; None: no more
    state: Any = field(default=None, repr=False)  # an algorithm's own per-unit state
    partition: Any = field(default=None, repr=False)  # where it is among tenants and levels, while it is evictable
    # -- for reports and adapters; no decision reads them --
    birth_s: float = 0.0  # of the machine's clock, at insertion
    path_state: Any = field(default=None, repr=False)  # an adapter's own: the hash of the tokens up to the unit's end

    @property
    def tokens(self) -> int:
        """Of all units of the run."""
        return self.size_tokens * self.units


class Handle(Protocol):
    """See the module text."""

    kvp: Any  # UnitMeta | None
    last_access_time: Any  # the four engine fields: numbers
    creation_time: Any
    hit_count: Any
    priority: Any


H = TypeVar("H")


class Order(Protocol, Generic[H]):
    """An ordered set of evictable handles: one algorithm over one partition (a tenant's units at one protection level).

    ``add``, ``discard`` and ``touch`` are idempotent and cost O(log n) amortised at most. ``peek`` settles lazily kept
    state and returns the handle that goes first with its sort key, without removing it.
    """

    change: KeyChange
    #: Whether the first key only falls when a handle is added or touched, which then return the new one. The first key
    #: known so far is a lower bound otherwise.
    is_keyed: bool

    def add(self, handle: H) -> Any:
        """The handle became evictable. A keyed order returns its key if it was no member yet."""

    def discard(self, handle: H) -> None:
        """The handle is evictable no more (locked, given a child, or gone); unknown handles are ignored."""

    def touch(self, handle: H) -> Any:
        """The handle's key may have changed in place. A keyed order returns the key if it offers the handle anew."""

    def peek(self) -> tuple[Any, H] | None:
        """``(key, handle)`` of the next victim, or ``None`` when empty."""

    def pop(self) -> H | None:
        """Remove and return the next victim, or ``None`` when empty."""

    def precedes(self, handle: H, victim: H) -> bool:
        """Whether ``handle``, no member, would be the next victim for sure if it were added now, ``victim`` being the
        last one popped and nothing having been added or touched since. ``False`` where there is no telling cheaply."""

    def sweep(self, handle: H, most: int) -> int:
        """Of the run popped last: how many of its last units, at least 1 and at most ``most``, are the next victims one
        after the other if nothing is added or touched between. Keys that rise towards a run's start are not asked."""

    def __len__(self) -> int: ...

    def __contains__(self, handle: object) -> bool: ...

    def __iter__(self) -> Iterator[H]: ...

    def clear(self) -> None: ...
