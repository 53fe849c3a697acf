"""The eviction index: the one object that an adapter talks to.

This class serves the bare built-in orders, which read the engine's own fields; ``metadata_index`` adds what rules,
tenants, scores and kvpolicy's own algorithms need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from kvpolicy.eviction.algorithms.spec import Algorithm
from kvpolicy.eviction.base import Handle, KeyChange, Order, PolicyClock, RequestInfo, UnitMeta
from kvpolicy.eviction.ghosts import Ghosts
from kvpolicy.eviction.hints import HintBook
from kvpolicy.eviction.tenants import Tenant

__all__ = ["Counters", "EvictionIndex"]

_MASK64 = (1 << 64) - 1


@dataclass
class Counters:
    """What was evicted so far, by rule name ("" = protected by none), and how often a policy fault was survived."""

    evictions: dict[str, int] = field(default_factory=dict)
    evicted_tokens: dict[str, int] = field(default_factory=dict)
    fallbacks: int = 0
    last_fault: str = ""


class EvictionIndex:
    """An ordered set of the units that are evictable now.

    Membership is the engine's business: ``add`` when a unit becomes evictable, ``discard`` when it is locked, gets a
    child or goes. A walk is ``begin``, any number of ``pop``, ``end``; a popped unit is held, i.e. not offered again in
    that walk, and offered again after it unless ``discard`` was called. No method raises for a fault inside a policy:
    the call is then answered in the engine's order (least recently used) and counted in ``counters.fallbacks``.
    """

    needs_metadata = False
    #: What was evicted of late, to explain misses; only with metadata, and where somebody asks for it.
    ghosts: Ghosts | None = None
    #: What requests asked for themselves; only where the policy allows it.
    hints: HintBook | None = None
    #: Set by an engine whose handles are runs: leave a run its last ``units`` units, make a handle of those before,
    #: report it to ``divide``, and return it.
    divider: Callable[[Any, int], Any] | None = None

    def __init__(self, algorithm: Algorithm, pool_tokens: int) -> None:
        self._algorithm = algorithm
        self.clock: PolicyClock = algorithm.clock
        self.pool_tokens = pool_tokens
        self.counters = Counters()
        #: 64 bits over the evicted units in order; equal on ranks that evicted the same.
        self.victim_digest = 0
        self.victims = 0
        self._order: Order[Handle] = self._make_order()
        self._held: dict[Handle, None] = {}  # popped in this walk, and evictable as far as the engine said
        self._stray: dict[Handle, None] = {}  # evictable units whose key could not be computed
        self._victims: dict[Handle, None] = {}  # popped and evicted, in this walk

    def _make_order(self) -> Order[Handle]:
        return self._algorithm.make_order()

    @property
    def needs_events(self) -> bool:
        """Whether an adapter must tell what becomes of resident units: ``insert``, ``touch``, ``split``, ``remove``."""
        return self.needs_metadata

    @property
    def change(self) -> KeyChange:
        """How keys move, hence what an adapter must observe."""
        return self._algorithm.change

    @property
    def takes_runs(self) -> bool:
        """Whether one handle may stand for a run of units; each unit has its own otherwise."""
        return True

    @property
    def names_units(self) -> bool:
        """Whether ``insert`` wants the numbers of all units of a run, after ``alike`` was asked for its length."""
        return self._algorithm.names_units

    def alike(self, content_keys: Sequence[int]) -> int:
        """How many of these new units, each the prefix of the next, may be inserted as one run: at least 1."""
        return self._algorithm.alike(content_keys)

    @property
    def reads_content_key(self) -> bool:
        """Whether a decision depends on ``content_key``; a report that wants it can do with it at eviction."""
        return self._algorithm.needs_content_key

    @property
    def needs_content_key(self) -> bool:
        """Whether ``insert`` wants a number for the unit's content from the root on, equal on every rank."""
        return self._algorithm.needs_content_key or self.ghosts is not None

    # -- membership --

    def add(self, handle: Handle) -> None:
        """The unit is evictable now. Idempotent."""
        if self._held and handle in self._held:
            return
        try:
            self._order.add(handle)
        except Exception as fault:
            self._stray[handle] = None
            self._fault(fault)

    def discard(self, handle: Handle) -> None:
        """The unit is evictable no more. Idempotent."""
        if self._held and handle in self._held:  # a victim, mostly: it is nowhere else
            del self._held[handle]
            return
        self._order.discard(handle)
        if self._stray:
            self._stray.pop(handle, None)

    def touched(self, handle: Handle) -> None:
        """The engine changed a field that the order reads, while the unit may be evictable.

        Mandatory where :attr:`change` is ``SHRINKS``; otherwise allowed and needless.
        """
        try:
            self._order.touch(handle)
        except Exception as fault:
            self._fault(fault)

    def __len__(self) -> int:
        return len(self._order) + len(self._held) + len(self._stray)

    def __contains__(self, handle: object) -> bool:
        return handle in self._order or handle in self._held or handle in self._stray

    # -- resident units: nothing to do where no metadata is kept --

    def meta(self, handle: Handle) -> UnitMeta | None:
        """What is recorded of a resident unit."""
        meta: UnitMeta | None = handle.kvp
        return meta

    def insert(
        self,
        handle: Handle,
        parent: Handle | None,
        request: RequestInfo,
        size_tokens: int,
        depth_tokens: int,
        is_output: bool = False,
        content_key: int | None = None,
        units: int = 1,
        following: Sequence[int] = (),
    ) -> None:
        """A new unit became resident, or a run of so many: ``size_tokens`` is one unit's, ``depth_tokens`` the last
        one's, ``content_key`` names the first and ``following`` the others, where anybody asks for them."""

    def touch(self, handle: Handle, request: RequestInfo) -> None:
        """One later request's match reached the unit's end (once a request)."""
        self.touched(handle)

    def split(self, upper: Handle, lower: Handle, upper_tokens: int) -> None:
        """``lower`` gave its first ``upper_tokens`` tokens to the new unit ``upper``, now its parent."""

    def is_prompt(self, handle: Handle) -> None:
        """The unit, said to be output, holds no generated token after all."""
        if handle.kvp is not None:
            handle.kvp.is_output = False

    def orphaned(self, handle: Handle) -> None:
        """The unit's parent went before it, by no choice of ours."""
        if handle.kvp is not None:
            handle.kvp.parent = None

    def divide(self, upper: Handle, lower: Handle, units: int, content_key: int | None = None) -> None:
        """The run ``lower`` kept its last ``units`` units; those before are the new run ``upper``, now its parent.
        ``content_key`` names the first that ``lower`` kept. Engine fields are set on both."""
        meta = lower.kvp  # of an index before this one, perhaps
        if meta is not None:
            upper.kvp = above = copy(meta)
            above.partition = None
            above.units -= units
            above.order -= units
            above.depth_tokens -= units * meta.size_tokens
            meta.units, meta.content_key, meta.parent = units, content_key, upper

    def remove(self, handle: Handle) -> None:
        """The unit is resident no more."""
        self.discard(handle)

    def adopt(
        self,
        handle: Handle,
        parent: Handle | None,
        size_tokens: int,
        depth_tokens: int,
        before: UnitMeta | None = None,
        kept: tuple[int, int] | None = None,
        content_key: int | None = None,
        units: int = 1,
    ) -> None:
        """A unit or run that was resident before this index, its parent first; ``before``: what another recorded."""

    def admit(self, request: RequestInfo, depth_tokens: int, size_tokens: int) -> bool:
        """Whether a unit ending at ``depth_tokens`` may be cached for this request."""
        return True

    # -- the walk --

    def begin(self) -> None:
        """Start a walk."""
        if self._held or self._victims:  # of a walk that a fault of the engine's cut short
            self.end()

    def pop(self) -> Handle | None:
        """The next victim to propose, or ``None`` when no evictable unit is left in this walk."""
        try:
            handle = self._order.pop()
        except Exception as fault:
            self._fault(fault)
            handle = self._pop_least_recent()
        if handle is None and self._stray:
            handle = min(self._stray, key=_last_access)
            del self._stray[handle]
        if handle is not None:
            self._held[handle] = None
        return handle

    def follow(self, victim: Handle, handle: Handle) -> bool:
        """``handle`` became evictable because ``victim``, the last one popped, was evicted: whether it goes next.

        ``True``: it is held as if popped. ``False``: it is on offer, and :meth:`pop` decides. Chains of units that
        were used together go in one sweep this way, without passing through the order one by one.
        """
        try:
            if self._order.precedes(handle, victim):
                self._held[handle] = None
                return True
        except Exception as fault:
            self._fault(fault)
        self.add(handle)
        return False

    def sweep(self, handle: Handle, most: int) -> int:
        """How many last units of the run that :meth:`pop` returned go next, one after the other: 1 to ``most``."""
        if most == 1 or self._algorithm.rises_in_runs:
            return 1
        try:
            return self._order.sweep(handle, most)
        except Exception as fault:
            self._fault(fault)
            return 1

    def trim(self, handle: Handle, units: int, content_key: int | None = None) -> None:
        """The engine freed that many last units of the run that :meth:`pop` returned, not all of them. What is left is
        held as if popped; :meth:`reoffer` offers it in this walk. ``content_key`` names the first that went."""
        meta = handle.kvp
        if meta is not None:
            meta.units -= units
            meta.order -= units
            meta.depth_tokens -= units * meta.size_tokens

    def reoffer(self, handle: Handle) -> None:
        """Offer what :meth:`trim` left."""
        if self._held.pop(handle, self) is None:
            self.add(handle)

    def evicted(
        self, handle: Handle, size_tokens: int, depth_tokens: int | None = None, identity: int = 0, units: int = 1
    ) -> None:
        """The engine frees the unit that :meth:`pop` returned, or so many of the run: count it. ``size_tokens`` are
        those of all; without ``depth_tokens`` it is as recorded. Call it before ``discard``, ``trim`` and ``remove``.

        All numbers must be equal on every rank. ``identity`` is any number that tells this unit from others of the same
        size and depth; with metadata its creation order is used besides.
        """
        rule, order = "", 0
        meta = handle.kvp
        if meta is not None:
            order = meta.order
            if meta.rule >= 0:
                rule = self.rule_of(handle)
        if depth_tokens is None:
            depth_tokens = 0 if meta is None else meta.depth_tokens
        counters = self.counters
        counters.evictions[rule] = counters.evictions.get(rule, 0) + units
        counters.evicted_tokens[rule] = counters.evicted_tokens.get(rule, 0) + size_tokens
        self._victims[handle] = None
        self.victims += units
        # CPython's hash of a tuple of integers: no hash seed changes it.
        self.victim_digest = hash((self.victim_digest, size_tokens, depth_tokens, identity, order)) & _MASK64

    def end(self) -> None:
        """End the walk: units popped but neither discarded nor removed are offered again."""
        self._victims.clear()
        if self._held:
            held, self._held = self._held, {}
            for handle in held:
                self.add(handle)

    def is_protected(self, handle: Handle) -> bool:
        """Whether a rule or a tenant's floor holds the unit now: what is evicted ahead of need spares it."""
        return False

    def rule_of(self, handle: Handle) -> str:
        """The rule that protects the unit now, "" for none; of a victim, until it is removed."""
        return ""

    # -- reports --

    def protected_tokens(self) -> dict[str, tuple[int, int | None]]:
        """By the name of each rule that retains: tokens of the units that it protects now, and tokens counted against
        its budget, which include those of their paths; ``None`` without one."""
        return {}

    def tenants(self) -> list[Tenant]:
        """Every tenant with units or a floor, where the policy has tenants."""
        return []

    # -- whole --

    def succeed(self, before: EvictionIndex) -> None:
        """Take over another index's counts and digest: what was evicted from a pool stays evicted."""
        self.counters, self.victims, self.victim_digest = before.counters, before.victims, before.victim_digest

    def reset(self, pool_tokens: int | None = None) -> None:
        """Forget every unit (the engine emptied its cache); counters, digest and clock stay."""
        if pool_tokens is not None:
            self.pool_tokens = pool_tokens
        self._order.clear()
        self._algorithm.clear()
        self._held.clear()
        self._stray.clear()

    def rebuild(self, handles: Iterable[Handle]) -> None:
        """Make the evictable units exactly ``handles``, whatever state a fault left behind."""
        self._order = self._make_order()
        self._held.clear()
        self._stray.clear()
        for handle in handles:
            self.add(handle)

    def members(self, most: int | None = None) -> list[Handle]:
        """The evictable units, or so many of them, held ones apart, in no particular order."""
        return list(islice(chain(self._order, self._stray), most))

    def check(self) -> None:
        """Debug: raise AssertionError on a broken invariant."""
        check = getattr(self._order, "check", None)
        if check is not None:
            check()
        for handle in self._held:
            assert handle not in self._order, "a held unit is still on offer"

    # -- inner --

    def _pop_least_recent(self) -> Handle | None:
        members = list(self._order)
        if not members:
            return None
        handle = min(members, key=_last_access)
        self._order.discard(handle)
        return handle

    def _fault(self, fault: Exception) -> None:
        self.counters.fallbacks += 1
        self.counters.last_fault = f"{type(fault).__name__}: {fault}"


def _last_access(handle: Handle) -> Any:
    return handle.last_access_time
