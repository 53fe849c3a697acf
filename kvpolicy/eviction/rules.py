"""Rules at run time: which retain rule protects which unit, until when, and within which budget.

Rules run when a unit is inserted and at each touch, top to bottom; the first whose ``match`` holds wins, and only its
actions count. A retain rule that wins protects the unit; a touch that another rule wins, or none, ends a protection
without ttl, while one with ttl runs out on its own, counted from the last matching touch.

A rule's budget counts every token on the path of every unit that it protects once, ancestors included. Over budget,
the units that would go first lose their protection until their next matching touch. A unit whose own path is longer
than the whole budget is not protected, so that one giant prompt does not cost all others theirs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from kvpolicy.eviction.algorithms.spec import Algorithm
from kvpolicy.eviction.base import Handle, KeyChange, PolicyClock, RequestInfo, UnitMeta
from kvpolicy.eviction.budget import Budget
from kvpolicy.eviction.heap import LazyHeap
from kvpolicy.eviction.hints import HINTS_RULE, Hold

__all__ = ["CompiledRule", "RuleBook"]


@dataclass(frozen=True)
class CompiledRule:
    """One rule of the policy. ``match`` takes ``(meta, clock)``; ``level`` is 0 without retain, else 1 for the smallest
    weight of the policy, 2 for the next, and so on."""

    name: str
    match: Callable[[UnitMeta, PolicyClock], bool]
    is_retain: bool = False
    level: int = 0
    ttl_ms: int | None = None
    budget_share: float | None = None
    needs_hits: bool = False  # ``match`` never holds for a unit without hits
    depth_steps: tuple[int, ...] | None = None  # depths from which on ``match`` may say otherwise; ``None``: any
    refuses: Callable[[RequestInfo, int, int], bool] | None = None  # admit: never; (request, depth_tokens, size_tokens)
    priority: int | None = None


#: Why a hold lost a unit.
EXPIRED, EVICTED, OVER_BUDGET, RULED = "expired", "evicted", "over budget", "retained by a rule"


class RuleBook:
    """All rules over the resident units of one pool. ``moved`` is told of every unit whose level changed. ``divide``
    leaves a run that many last units and gives those before to a new handle, which it returns."""

    def __init__(
        self,
        rules: tuple[CompiledRule, ...],
        algorithm: Algorithm,
        pool_tokens: int,
        moved: Callable[[Handle], None],
        divide: Callable[[Handle, int], Handle],
    ) -> None:
        self.rules = rules
        self.divide = divide
        #: The place of what hints protect: the last one, if there is one. It matches nothing by itself.
        self._hints_at = len(rules) - 1 if rules and rules[-1].name == HINTS_RULE else len(rules)
        self._matches = [rule.match for rule in rules[: self._hints_at]]
        #: Whether none of them has a say before a unit's first hit.
        self.need_hits = all(rule.needs_hits for rule in rules[: self._hints_at])
        self.hold_expired: Callable[[Hold], None] | None = None  # told when a hold lost its last unit to its ttl
        #: Those that decide whether something is cached: up to the last one that may refuse.
        self._admission = rules[: max((at for at, rule in enumerate(rules, 1) if rule.refuses is not None), default=0)]
        self.has_admission = bool(self._admission)
        self._clock = algorithm.clock
        self._algorithm = algorithm
        self._moved = moved
        self._expiry: LazyHeap[Handle] = LazyHeap(_expiry_ms, KeyChange.GROWS)
        self._budgets: list[Budget | None] = []
        self.clear(pool_tokens)

    def clear(self, pool_tokens: int) -> None:
        self.held_tokens = [0] * len(self.rules)  # of the units that each protects, their paths apart
        self._next_expiry_ms: float = inf  # nothing expires before
        self._expiry.clear()
        self._budgets = [
            None
            if rule.budget_share is None
            else Budget(int(rule.budget_share * pool_tokens), self._algorithm.make_member_order())
            for rule in self.rules
        ]
        steps = {budget.limit_tokens + 1 for budget in self._budgets if budget is not None}  # too deep from there on
        for rule in self.rules:
            steps.update(rule.depth_steps or ())
        self._steps = sorted(steps)
        self._is_stepless = any(rule.depth_steps is None for rule in self.rules)

    def protected_tokens(self) -> dict[str, tuple[int, int | None]]:
        """By the name of each rule that retains: tokens of the units that it protects, and tokens counted against its
        budget, which include those of their paths; ``None`` without one."""
        return {
            rule.name: (self.held_tokens[at], None if (budget := self._budgets[at]) is None else budget.used_tokens)
            for at, rule in enumerate(self.rules)
            if rule.is_retain
        }

    def refuses(self, request: RequestInfo, depth_tokens: int, size_tokens: int, probe: Callable[[], UnitMeta]) -> bool:
        """Whether the first rule that matches the unit to be says ``admit: never``. ``probe`` makes its metadata, for
        rules that look at it."""
        meta = None
        for rule in self._admission:
            if rule.refuses is not None:
                if rule.refuses(request, depth_tokens, size_tokens):
                    return True
            else:
                meta = meta or probe()
                if rule.match(meta, self._clock):
                    return False
        return False

    def run(self, handle: Handle) -> None:
        """The unit was inserted or touched: end what is over, then let the first matching rule act. A run is divided
        where rules tell its units apart."""
        meta = handle.kvp
        if self._clock.now_ms >= self._next_expiry_ms:
            self.expire()
        while True:
            outcome, units = self._outcome_of_last(meta)
            if units == meta.units:
                break
            upper = self.divide(handle, units)
            self._apply(handle, meta, outcome)
            handle, meta = upper, upper.kvp
        self._apply(handle, meta, outcome)

    def adopt(self, handle: Handle, kept: tuple[int, int] | None) -> None:
        """The unit, or run, was resident before these rules: decide as of its last touch, since when nothing that a
        rule may read has changed. ``kept``: a rule by its place, and until when it holds on if none matches."""
        meta = handle.kvp
        while True:
            outcome, units = self._outcome_of_last(meta)
            if units == meta.units:
                break
            upper = self.divide(handle, units)
            self._settle(handle, meta, outcome, kept)
            handle, meta = upper, upper.kvp
        self._settle(handle, meta, outcome, kept)

    def _settle(self, handle: Handle, meta: UnitMeta, outcome: int, kept: tuple[int, int] | None) -> None:
        meta.priority, meta.rule_priority = meta.request_priority, None
        index, expiry_ms = kept or (-1, None)
        if outcome >= 0:
            rule = self.rules[outcome]
            if rule.priority is not None:
                meta.priority = meta.rule_priority = rule.priority
            if rule.is_retain:
                index, expiry_ms = outcome, None if rule.ttl_ms is None else meta.touch_ms + rule.ttl_ms
        if index >= 0 and (expiry_ms is None or expiry_ms > self._clock.now_ms):
            self._protect(handle, meta, index, expiry_ms)
        elif meta.hold_expiry_ms is not None:
            self._resume_hold(handle, meta)

    def _outcome(self, meta: UnitMeta) -> int:
        """The index of the rule that wins, -1 for none."""
        clock = self._clock
        for index, match in enumerate(self._matches):
            if match(meta, clock):
                return index
        return -1

    def _outcome_of_last(self, meta: UnitMeta) -> tuple[int, int]:
        """What the rules say of a run's last unit, and of how many before it too, itself included."""
        outcome, end_tokens = self._outcome(meta), meta.depth_tokens
        units = self._count_alike(meta, 0)
        budget = self._budgets[outcome]
        limit_tokens = end_tokens if outcome < 0 or budget is None else budget.limit_tokens
        try:
            while units < meta.units:
                depth_tokens = meta.depth_tokens = end_tokens - units * meta.size_tokens
                if depth_tokens <= limit_tokens < end_tokens or self._outcome(meta) != outcome:
                    break
                units = self._count_alike(meta, units)
        finally:
            meta.depth_tokens = end_tokens
        return outcome, units

    def _count_alike(self, meta: UnitMeta, units: int) -> int:
        """So many units, the one that ends at ``depth_tokens`` now, and those before it down to the next step."""
        if self._is_stepless or units + 1 == meta.units:
            return units + 1
        at = bisect_right(self._steps, meta.depth_tokens)
        step_tokens = self._steps[at - 1] if at else 0
        return min(meta.units, units + (meta.depth_tokens - step_tokens) // meta.size_tokens + 1)

    def _apply(self, handle: Handle, meta: UnitMeta, outcome: int) -> None:
        meta.priority, meta.rule_priority = meta.request_priority, None
        if outcome >= 0:
            rule = self.rules[outcome]
            if rule.priority is not None:
                meta.priority = meta.rule_priority = rule.priority
            if rule.is_retain:
                expiry_ms = None if rule.ttl_ms is None else self._clock.now_ms + rule.ttl_ms
                self._protect(handle, meta, outcome, expiry_ms)
                return
        if 0 <= meta.rule != self._hints_at:
            if meta.expiry_ms is not None:
                self._touch_member(handle, meta)
                return
            self.unprotect(handle)
        if meta.hold_expiry_ms is not None:
            self._resume_hold(handle, meta)

    def expire(self) -> None:
        """End every protection whose time is over."""
        expiry, now_ms = self._expiry, self._clock.now_ms
        if now_ms < self._next_expiry_ms:
            return
        while (top := expiry.peek()) is not None and top[0] <= now_ms:
            handle = top[1]
            self.unprotect(handle, EXPIRED)
            if handle.kvp.hold_expiry_ms is not None:
                self._resume_hold(handle, handle.kvp)
        self._next_expiry_ms = inf if top is None else top[0]

    def unprotect(self, handle: Handle, why: str = "") -> None:
        meta = handle.kvp
        budget = self._budgets[meta.rule]
        if budget is not None:
            budget.leave(handle)
        if meta.expiry_ms is not None:
            self._expiry.discard(handle)
        self._count(meta, -meta.tokens, why)
        meta.rule, meta.expiry_ms = -1, None
        self._moved(handle)

    def _count(self, meta: UnitMeta, tokens: int, why: str = "") -> None:
        """So many tokens more are protected by ``meta.rule``, or fewer: ``why``, for a hold's report."""
        self.held_tokens[meta.rule] += tokens
        if meta.rule == self._hints_at and (hold := meta.hold) is not None:
            hold.count(tokens)
            if why:
                hold.end = why
                if why == EXPIRED and not hold.held_tokens and self.hold_expired is not None:
                    self.hold_expired(hold)

    # -- hints --

    @property
    def hint_limit_tokens(self) -> int:
        """The longest path that hints can protect."""
        budget = self._budgets[self._hints_at]
        assert budget is not None, "hints without a budget"
        return budget.limit_tokens

    def hold(self, meta: UnitMeta, hold: Hold, expiry_ms: int) -> None:
        """The unit is covered by ``hold`` from now on; :meth:`run` protects it, unless a rule does."""
        if meta.rule == self._hints_at and meta.hold is not hold:
            self._count(meta, -meta.tokens, "taken over by another retain")
            meta.hold = hold
            self._count(meta, meta.tokens)
        meta.hold, meta.hold_expiry_ms = hold, expiry_ms

    def release(self, handle: Handle, why: str) -> None:
        """No hold covers the unit any more."""
        meta = handle.kvp
        if meta.rule == self._hints_at:
            self.unprotect(handle, why)
        meta.hold = meta.hold_expiry_ms = None

    def _resume_hold(self, handle: Handle, meta: UnitMeta) -> None:
        """No rule protects the unit: its hold does, if that is not over."""
        expiry_ms = meta.hold_expiry_ms
        if expiry_ms is not None and expiry_ms > self._clock.now_ms:
            self._protect(handle, meta, self._hints_at, expiry_ms)
        else:
            self.release(handle, EXPIRED)

    def split(self, upper: Handle, lower: Handle) -> None:
        """``upper.kvp`` is a copy: it is protected as ``lower`` is."""
        rule = upper.kvp.rule
        for index, budget in enumerate(self._budgets):
            if budget is not None:
                budget.split(upper, lower, is_member=index == rule)
        if upper.kvp.expiry_ms is not None:
            self._expiry.add(upper)
        if rule >= 0:
            self._touch_member(lower, lower.kvp)

    def trimmed(self, handle: Handle, units: int) -> None:
        """The run lost that many last units."""
        meta = handle.kvp
        if meta.rule >= 0:
            self._count(meta, -units * meta.size_tokens, EVICTED)
        for index, budget in enumerate(self._budgets):
            if budget is not None and handle in budget.refs:
                budget.trimmed(handle, units * meta.size_tokens, is_member=index == meta.rule)

    def removed(self, handle: Handle) -> None:
        """The unit is resident no more. ``kvp.rule`` stays readable: it says which rule had protected the victim."""
        for budget in self._budgets:
            if budget is not None and handle in budget.refs:
                budget.forget(handle)
        if handle.kvp.expiry_ms is not None:
            self._expiry.discard(handle)
        if handle.kvp.rule >= 0:
            self._count(handle.kvp, -handle.kvp.tokens, EVICTED)

    def check(self) -> None:
        for budget in self._budgets:
            if budget is not None:
                budget.check()
        self._expiry.check()
        assert all(self._next_expiry_ms <= _expiry_ms(handle) for handle in self._expiry), "a time that would be missed"
        if self._hints_at < len(self.rules):
            held: dict[Hold, int] = {}
            for member in self._budgets[self._hints_at].members:  # type: ignore[union-attr]
                assert member.kvp.hold is not None, "a unit that hints protect without a hold"
                held[member.kvp.hold] = held.get(member.kvp.hold, 0) + member.kvp.tokens
            for hold, tokens in held.items():
                assert hold.held_tokens == tokens, "a hold's tokens were miscounted"
            assert self.held_tokens[self._hints_at] == sum(held.values()), "what hints hold was miscounted"

    def _protect(self, handle: Handle, meta: UnitMeta, index: int, expiry_ms: int | None) -> None:
        budget = self._budgets[index]
        if budget is not None and meta.depth_tokens > budget.limit_tokens:
            if meta.rule >= 0:
                self.unprotect(handle, OVER_BUDGET)
            return
        if meta.rule != index:
            if meta.rule >= 0:
                self.unprotect(handle, RULED)
            meta.rule = index
            self._count(meta, meta.tokens)
            if budget is not None:
                budget.join(handle)
            self._moved(handle)
        else:
            self._touch_member(handle, meta)
        self._set_expiry(handle, meta, expiry_ms)
        if budget is None:
            return
        while (excess_tokens := budget.used_tokens - budget.limit_tokens) > 0:
            weakest = budget.members.peek()[1]
            self.unprotect(weakest, OVER_BUDGET)
            if index == self._hints_at:
                weakest.kvp.hold_expiry_ms = None
            if weakest is handle and meta.hits and excess_tokens <= meta.tokens - meta.size_tokens:
                # Touched from the end on: the last of its units do not fit, those before them do.
                upper = self.divide(handle, -(-excess_tokens // meta.size_tokens))
                self._protect(upper, upper.kvp, index, expiry_ms)
                return

    def _set_expiry(self, handle: Handle, meta: UnitMeta, expiry_ms: int | None) -> None:
        if expiry_ms is not None:  # the same rule's ttl, and a clock that never goes back: it only moves later
            meta.expiry_ms = max(expiry_ms, meta.expiry_ms or 0)
            self._next_expiry_ms = min(self._next_expiry_ms, expiry_ms)
            self._expiry.add(handle)

    def _touch_member(self, handle: Handle, meta: UnitMeta) -> None:
        budget = self._budgets[meta.rule]
        if budget is not None:
            budget.members.touch(handle)


def _expiry_ms(handle: Handle) -> Any:
    return handle.kvp.expiry_ms
