"""The eviction index of policies that look at more than the engine's own fields: rules, tenants, scores, own
algorithms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from kvpolicy.eviction.algorithms.spec import Algorithm
from kvpolicy.eviction.base import Handle, Order, RequestInfo, UnitMeta
from kvpolicy.eviction.ghosts import Ghosts
from kvpolicy.eviction.hints import CompiledHints, HintBook
from kvpolicy.eviction.index import EvictionIndex
from kvpolicy.eviction.partitions import PartitionedOrder
from kvpolicy.eviction.rules import CompiledRule, RuleBook
from kvpolicy.eviction.tenants import WITHIN_FLOOR, CompiledTenants, Tenant, TenantTable

__all__ = ["MetadataIndex"]

_NOBODY = RequestInfo()
#: Weight of the newest gap in ``reuse_gap_s``.
_GAP_WEIGHT = 0.25


class MetadataIndex(EvictionIndex):
    """Keeps a :class:`UnitMeta` on every resident unit (``handle.kvp``). See :class:`EvictionIndex` for the walk."""

    needs_metadata = True

    def __init__(
        self,
        algorithm: Algorithm,
        pool_tokens: int,
        *,
        rules: tuple[CompiledRule, ...] = (),
        tenants: CompiledTenants | None = None,
        max_priority: int | None = None,
        hints: CompiledHints | None = None,
        explains: bool = False,
    ) -> None:
        #: The level of what nothing protects; below it is only what a hint demoted.
        self._plain_level = 1 if hints is not None and hints.demotes else 0
        self._level_of = [self._plain_level, *(self._plain_level + rule.level for rule in rules)]  # by rule + 1
        self._has_levels = max(self._level_of) > 0
        self._everybody = Tenant(None, 0, None, None)
        self._tenants: TenantTable | None = None
        self._partitions: PartitionedOrder | None = None
        if tenants is not None:
            self._tenants = TenantTable(tenants, pool_tokens, self._tenant_changed, self._tenant_forgotten)
        super().__init__(algorithm, pool_tokens)
        if explains:
            self.ghosts = Ghosts(self.clock, algorithm.score_of)
        self._rules = RuleBook(rules, algorithm, pool_tokens, self._moved, self._divide_run) if rules else None
        if hints is not None:
            self.hints = HintBook(hints, self.clock, self._moved, self._rules)
        # Units whose keys differ would have to be shed one by one.
        self._takes_runs = not (algorithm.rises_in_runs and any(rule.budget_share is not None for rule in rules))
        self._max_priority = max_priority
        self._units = 0  # ever created

    def _make_order(self) -> Order[Handle]:
        if self._tenants is None and not self._has_levels:
            return self._algorithm.make_order()
        self._partitions = PartitionedOrder(self._algorithm.make_order, max(self._level_of) + 1, self._place)
        return self._partitions

    @property
    def takes_runs(self) -> bool:
        return self._takes_runs

    # -- resident units --

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
        self._units += units
        handle.kvp = meta = self._new_meta(request, size_tokens, depth_tokens)
        meta.parent, meta.is_output, meta.content_key, meta.units = parent, is_output, content_key, units
        if self.ghosts is not None:
            self.ghosts.inserted(meta, following)
        if self._tenants is not None:
            self._tenants.resident(self._tenants.get(meta.cache_salt), 1, size_tokens * units)
        try:
            if units == 1:
                self._algorithm.inserted(handle)
            else:
                self._algorithm.inserted_run(handle, following)
            if self.hints is not None:
                self._decide(handle, self.hints.inserted(handle, request))
            elif self._rules is not None and not self._rules.need_hits:
                self._rules.run(handle)
        except Exception as fault:
            self._fault(fault)
        if self._stray and handle in self._stray:  # it became evictable before it was stamped
            del self._stray[handle]
            self.add(handle)

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
        """As if this policy had been there at the unit's last touch: its rules decide on the state it was left in, and
        a ttl counts from then.

        ``before`` is copied; without it the unit counts as made and touched now, by nobody. ``kept`` is the rule, by
        its place, and the policy time in ms until which it holds on where no rule of these matches.
        """
        if before is None:
            self._units += units
        meta = self._new_meta(_NOBODY, size_tokens, depth_tokens)
        meta.units = units
        if before is not None:
            meta.birth_seq, meta.birth_ms, meta.touch_seq, meta.touch_ms = (
                before.birth_seq, before.birth_ms, before.touch_seq, before.touch_ms
            )  # fmt: skip
            meta.order, meta.hits, meta.reuse_gap_s = before.order, before.hits, before.reuse_gap_s
            meta.is_output, meta.cache_salt = before.is_output, before.cache_salt
            meta.session_id, meta.lora = before.session_id, before.lora
            if before.request_priority is not None:
                meta.priority = meta.request_priority = self._clamped(before.request_priority)
            if self.hints is not None:
                self.hints.adopt(meta, before)
        meta.parent, meta.content_key = parent, content_key
        if self.ghosts is not None:
            meta.birth_s = before.birth_s if before is not None and before.birth_s else self.ghosts.now_s()
        handle.kvp = meta
        if self._tenants is not None:
            tenant = self._tenants.get(meta.cache_salt)
            self._tenants.resident(tenant, 1, meta.tokens)
            if meta.hits:
                self._tenants.hit(tenant, meta.hits * meta.tokens)
        try:
            if units == 1:
                self._algorithm.inserted(handle)
            else:
                self._algorithm.inserted_run(handle, ())
            if self._rules is not None:
                self._rules.adopt(handle, kept)
        except Exception as fault:
            self._fault(fault)

    def touch(self, handle: Handle, request: RequestInfo) -> None:
        meta = handle.kvp
        if meta is None:
            return
        clock = self.clock
        gap_s = (clock.now_ms - meta.touch_ms) / 1000
        meta.reuse_gap_s = gap_s if meta.hits == 0 else meta.reuse_gap_s + _GAP_WEIGHT * (gap_s - meta.reuse_gap_s)
        meta.hits += 1
        meta.touch_seq, meta.touch_ms = clock.request_seq, clock.now_ms
        if request.priority is not None:
            asked = self._clamped(request.priority)
            meta.request_priority = asked if meta.request_priority is None else max(meta.request_priority, asked)
            meta.priority = meta.request_priority
        if request.session_id is not None:
            meta.session_id = request.session_id
        if self.hints is not None and (hint_class := self.hints.ruling(request).class_name) is not None:
            meta.hint_class = hint_class
        if self._tenants is not None:
            self._tenants.hit(self._tenants.get(meta.cache_salt), meta.tokens)
        try:
            self._algorithm.touched(handle)
            if self.hints is not None:
                self._decide(handle, self.hints.touched(handle, request))
            elif self._rules is not None:
                self._rules.run(handle)
            self._order.touch(handle)
        except Exception as fault:
            self._fault(fault)

    def split(self, upper: Handle, lower: Handle, upper_tokens: int) -> None:
        meta: UnitMeta | None = lower.kvp
        if meta is None:
            return
        self._units += 1
        upper.kvp = above = replace(meta, order=self._units, size_tokens=upper_tokens)
        meta.size_tokens -= upper_tokens
        meta.content_key = None  # it names the tokens up to where a unit begins, which only the upper half still does
        above.path_state = above.partition = None
        above.depth_tokens = meta.depth_tokens - meta.size_tokens
        meta.parent = upper
        if self._tenants is not None:
            self._tenants.resident(self._tenants.get(meta.cache_salt), 1, 0)
        try:
            self._algorithm.split(upper, lower)
            if self._rules is not None:
                self._rules.split(upper, lower)
            if self.hints is not None:
                self.hints.split(upper, lower)
            if lower in self._order:  # its key may read its size or its depth
                self._order.discard(lower)
                self._order.add(lower)
        except Exception as fault:
            self._fault(fault)

    def divide(self, upper: Handle, lower: Handle, units: int, content_key: int | None = None) -> None:
        super().divide(upper, lower, units, content_key)
        meta: UnitMeta | None = lower.kvp
        if meta is None:
            return
        if self._tenants is not None:
            self._tenants.resident(self._tenants.get(meta.cache_salt), 1, 0)
        try:
            self._algorithm.divided(upper, lower)
            if self._rules is not None:
                self._rules.split(upper, lower)
        except Exception as fault:
            self._fault(fault)

    def remove(self, handle: Handle) -> None:
        meta = handle.kvp
        self.discard(handle)
        if meta is None:
            return
        try:
            if self._rules is not None:
                self._rules.removed(handle)
            self._algorithm.removed(handle, handle in self._victims)
        except Exception as fault:
            self._fault(fault)
        if self._tenants is not None:
            self._tenants.resident(self._tenants.get(meta.cache_salt), -1, -meta.tokens)
        meta.parent = None

    def admit(self, request: RequestInfo, depth_tokens: int, size_tokens: int) -> bool:
        hint_class = None if self.hints is None else self.hints.ruling(request).class_name
        if self._rules is None or not self._rules.has_admission:
            return True
        if hint_class is not None:
            request = replace(request, hint_class=hint_class)
        if request.priority is not None:  # clamped as every rule sees it
            request = replace(request, priority=self._clamped(request.priority))
        try:
            probe = partial(self._new_meta, request, size_tokens, depth_tokens)
            return not self._rules.refuses(request, depth_tokens, size_tokens, probe)
        except Exception as fault:
            self._fault(fault)
            return True

    # -- the walk --

    def begin(self) -> None:
        super().begin()
        if self._rules is not None:
            try:
                self._rules.expire()
            except Exception as fault:
                self._fault(fault)

    def succeed(self, before: EvictionIndex) -> None:
        super().succeed(before)
        if self.ghosts is not None and before.ghosts is not None:
            self.ghosts.succeed(before.ghosts)
        if self.hints is not None and before.hints is not None:
            self.hints.succeed(before.hints)

    def evicted(
        self, handle: Handle, size_tokens: int, depth_tokens: int | None = None, identity: int = 0, units: int = 1
    ) -> None:
        super().evicted(handle, size_tokens, depth_tokens, identity, units)
        meta = handle.kvp
        if self.ghosts is not None and meta is not None:
            self.ghosts.evicted(handle, self.rule_of(handle) if meta.rule >= 0 else "", size_tokens, units)

    def end(self) -> None:
        super().end()
        if self.ghosts is not None:
            self.ghosts.end()

    def sweep(self, handle: Handle, most: int) -> int:
        if most > 1 and self._tenants is not None:
            meta = handle.kvp
            most = min(most, self._tenants.units_in_class(self._tenants.get(meta.cache_salt), meta.size_tokens, most))
        return super().sweep(handle, most)

    def trim(self, handle: Handle, units: int, content_key: int | None = None) -> None:
        super().trim(handle, units, content_key)
        meta = handle.kvp
        if meta is None:
            return
        try:
            if self._rules is not None:
                self._rules.trimmed(handle, units)
            self._algorithm.trimmed(handle, units, content_key)
        except Exception as fault:
            self._fault(fault)
        if self._tenants is not None:
            self._tenants.resident(self._tenants.get(meta.cache_salt), 0, -units * meta.size_tokens)

    def is_protected(self, handle: Handle) -> bool:
        meta = handle.kvp
        if meta is None or (meta.rule < 0 and self._tenants is None):
            return False
        tenant, level = self._place(handle)
        return level > self._plain_level or tenant.klass == WITHIN_FLOOR

    def rule_of(self, handle: Handle) -> str:
        meta = handle.kvp
        if meta is None or meta.rule < 0 or self._rules is None:
            return ""
        rule: int = meta.rule
        return self._rules.rules[rule].name

    # -- reports --

    def protected_tokens(self) -> dict[str, tuple[int, int | None]]:
        return {} if self._rules is None else self._rules.protected_tokens()

    def tenants(self) -> list[Tenant]:
        return [] if self._tenants is None else self._tenants.all()

    # -- whole --

    def continue_numbers(self, before: EvictionIndex) -> None:
        """Number units from here on as ``before`` does, so that those of both stay in their order of creation."""
        if isinstance(before, MetadataIndex):
            self._units = before._units

    @property
    def rules(self) -> tuple[CompiledRule, ...]:
        return () if self._rules is None else self._rules.rules

    def reset(self, pool_tokens: int | None = None) -> None:
        super().reset(pool_tokens)
        if self.ghosts is not None:
            self.ghosts.clear()
        if self.hints is not None:
            self.hints.clear()
        if self._rules is not None:
            self._rules.clear(self.pool_tokens)
        if self._tenants is not None:
            self._tenants.clear(self.pool_tokens)

    def rebuild(self, handles: Iterable[Handle]) -> None:
        members = list(handles)
        super().rebuild([handle for handle in members if handle.kvp is not None])
        for handle in members:
            if handle.kvp is None:
                self._stray[handle] = None

    def check(self) -> None:
        super().check()
        if self._rules is not None:
            self._rules.check()
        if self._tenants is not None:
            self._tenants.check()

    # -- inner --

    def _new_meta(self, request: RequestInfo, size_tokens: int, depth_tokens: int) -> UnitMeta:
        clock = self.clock
        seq, now_ms = clock.request_seq, clock.now_ms
        priority = request.priority
        if priority is not None:
            priority = self._clamped(priority)
        meta = UnitMeta(size_tokens, depth_tokens, seq, now_ms, seq, now_ms, self._units)  # by position: it is faster
        meta.cache_salt, meta.session_id, meta.lora = request.cache_salt, request.session_id, request.lora
        meta.priority = meta.request_priority = priority
        if self.hints is not None and request.hints is not None:
            meta.hint_class = self.hints.ruling(request).class_name
        return meta

    def _decide(self, handle: Handle, divided: Sequence[Handle]) -> None:
        """Run the rules over what was inserted or touched, after what hints divided from it: a budget hears of parents
        first, as it does of single units."""
        if self._rules is not None:
            for upper in reversed(divided):
                self._rules.run(upper)
            self._rules.run(handle)

    def _divide_run(self, handle: Handle, units: int) -> Handle:
        if self.divider is None:
            raise TypeError("this engine cannot divide a run")
        upper: Handle = self.divider(handle, units)
        return upper

    def _clamped(self, priority: int) -> int:
        return priority if self._max_priority is None else min(priority, self._max_priority)

    def _place(self, handle: Handle) -> tuple[Tenant, int]:
        meta = handle.kvp
        tenant = self._everybody if self._tenants is None else self._tenants.get(meta.cache_salt)
        return tenant, 0 if meta.is_demoted and meta.rule < 0 else self._level_of[meta.rule + 1]

    def _moved(self, handle: Handle) -> None:
        if self._partitions is not None:
            self._partitions.move(handle)

    def _tenant_changed(self, tenant: Tenant) -> None:
        if self._partitions is not None:
            self._partitions.tenant_changed(tenant)

    def _tenant_forgotten(self, tenant: Tenant) -> None:
        if self._partitions is not None:
            self._partitions.forget(tenant)
