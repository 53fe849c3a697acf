"""Hints at run time: what requests ask for themselves, clamped to what the policy's ``hints`` section allows.

A *retain* that is accepted is a :class:`Hold`: the units of the request's prefix, up to its tokens, are protected until
its ttl is over, as if a last rule ``(hints)`` with the section's weight and budget had matched them. Where one of the
policy's rules retains a unit, that rule has it, and the hold goes on when the rule is done. *demote* puts the units of
the request before all unprotected ones, until a request without it uses them. *expire* ends holds on the request's path
and demotes it. *class* names the request for the policy's rules (``request.hint_class``).

Everything here is decided from the requests and the policy's clock, so it is equal on every rank.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

from kvpolicy.eviction.base import Handle, PolicyClock, RequestInfo, UnitMeta
from kvpolicy.eviction.envelope import Action, Envelope
from kvpolicy.language.policy_tests import HINTS_RULE

if TYPE_CHECKING:
    from kvpolicy.eviction.rules import RuleBook

__all__ = ["HINTS_RULE", "CompiledHints", "HintBook", "HintReport", "Hold", "Outcome"]

logger = logging.getLogger("kvpolicy")

#: Hints reported one by one, the latest.
REPORTED = 64

#: ``ignored``: cannot be read. ``expired``: an accepted retain's ttl ran out while it held something.
Outcome = Literal["accepted", "clamped", "refused", "ignored", "expired"]


@dataclass(frozen=True)
class CompiledHints:
    """A policy's ``hints`` section, where it allows any."""

    allow: frozenset[str]
    budget_share: float = 0.0
    ttl_ms: int = 0  # of a retain that names none
    max_ttl_ms: int = 0
    classes: frozenset[str] = frozenset()

    @property
    def retains(self) -> bool:
        return "retain" in self.allow

    @property
    def demotes(self) -> bool:
        return bool(self.allow & {"demote", "expire"})


class Hold:
    """One accepted retain, and what it holds now."""

    __slots__ = ("action_id", "end", "held_tokens", "most_tokens", "session_id", "tokens", "ttl_ms")

    def __init__(self, action_id: str, session_id: str | None, ttl_ms: int, tokens: int | None) -> None:
        self.action_id = action_id
        self.session_id = session_id
        self.ttl_ms = ttl_ms
        self.tokens = tokens  # of the prefix; None: all of it
        self.held_tokens = 0  # that only this protects: units, their paths apart
        self.most_tokens = 0
        self.end = ""  # why the last unit that it lost is not held any more

    def count(self, tokens: int) -> None:
        self.held_tokens += tokens
        self.most_tokens = max(self.most_tokens, self.held_tokens)

    def copy(self) -> Hold:
        """The same promise, holding nothing yet."""
        copied = Hold(self.action_id, self.session_id, self.ttl_ms, self.tokens)
        copied.most_tokens, copied.end = self.most_tokens, self.end
        return copied


@dataclass(slots=True)
class HintReport:
    """What became of one action."""

    action_id: str
    action: str
    outcome: Outcome
    why: str = ""
    seq: int = 0  # clock.request_seq
    hold: Hold | None = None  # of a retain
    demoted_tokens: int | None = None  # of a demote or an expire, in all


@dataclass(slots=True, eq=False)
class Ruling:
    """What of a request's hints is in effect."""

    holds: list[Hold] = field(default_factory=list)
    demoted: HintReport | None = None
    expires: Action | None = None
    class_name: str | None = None


_NOTHING = Ruling()


class HintBook:
    """The hints of one pool's requests. ``moved`` is told of units that were demoted, or are no more; ``rules`` protect
    what is retained."""

    def __init__(
        self, hints: CompiledHints, clock: PolicyClock, moved: Callable[[Handle], None], rules: RuleBook | None
    ) -> None:
        self.hints = hints
        self.clock = clock
        self._moved = moved
        self.rules = rules
        if rules is not None:
            rules.hold_expired = self.expired
        self.counts: dict[tuple[str, Outcome], int] = {}
        self.recent: OrderedDict[str, HintReport] = OrderedDict()  # by action_id, latest last
        self._rulings: WeakKeyDictionary[Envelope, Ruling] = WeakKeyDictionary()
        self._adopted: dict[Hold, Hold] = {}
        self._is_said = False

    # -- requests --

    def ruling(self, request: RequestInfo) -> Ruling:
        """What of the request's hints is in effect; decided, counted and reported the first time."""
        envelope = request.hints
        if envelope is None:
            return _NOTHING
        ruling = self._rulings.get(envelope)
        if ruling is None:
            ruling = self._rulings[envelope] = self._decide(envelope, request.session_id)
        return ruling

    def _decide(self, envelope: Envelope, session_id: str | None) -> Ruling:
        ruling = Ruling()
        if envelope.fault:
            self._ignore("?", "envelope", envelope.fault)
        seen: set[str] = set()
        for action in envelope.actions:
            if action.fault:
                self._ignore(action.action_id, action.name, action.fault)
            elif action.name not in self.hints.allow:
                self._note(action, "refused", "the policy's hints.allow does not name it")
            elif action.name in seen and action.name != "retain":
                self._note(action, "refused", "the envelope has another one before it")
            else:
                seen.add(action.name)
                self._accept(ruling, action, session_id)
        return ruling

    def _accept(self, ruling: Ruling, action: Action, session_id: str | None) -> None:
        if action.name == "retain":
            asked_ms, most_ms = action.ttl_ms or self.hints.ttl_ms, self.hints.max_ttl_ms
            hold = Hold(action.action_id, session_id, min(asked_ms, most_ms), action.tokens)
            ruling.holds.append(hold)
            is_clamped = asked_ms > most_ms and action.ttl_ms is not None
            why = f"ttl {asked_ms / 1000:g} s is above hints.max_ttl" if is_clamped else ""
            self._note(action, "clamped" if is_clamped else "accepted", why).hold = hold
        elif action.name == "class":
            if action.class_name not in self.hints.classes:
                self._note(action, "refused", "hints.classes does not name it")
                return
            ruling.class_name = action.class_name
            self._note(action, "accepted")
        else:
            if action.name == "expire":
                ruling.expires = action
            ruling.demoted = self._note(action, "accepted")
            ruling.demoted.demoted_tokens = 0

    # -- units --

    def inserted(self, handle: Handle, request: RequestInfo) -> Sequence[Handle]:
        """The unit was made by the request. Before the rules run; see :meth:`touched` for what is returned."""
        ruling = self.ruling(request)
        meta: UnitMeta = handle.kvp
        if ruling.demoted is not None:
            meta.is_demoted = True
            ruling.demoted.demoted_tokens = (ruling.demoted.demoted_tokens or 0) + meta.tokens
        return self._hold_all(handle, ruling.holds) if ruling.holds else ()

    def touched(self, handle: Handle, request: RequestInfo) -> Sequence[Handle]:
        """The request used the unit. Before the rules run, which have to run for the new handles too that are returned:
        of a run that a hint covers in part, the part that it covers."""
        meta: UnitMeta = handle.kvp
        ruling = self.ruling(request)
        if ruling.expires is not None and (hold := meta.hold) is not None:
            of = ruling.expires.of
            if hold.action_id == of if of is not None else hold.session_id == request.session_id:
                self._release(handle, meta)
        is_demoted = ruling.demoted is not None
        if meta.is_demoted is not is_demoted:
            meta.is_demoted = is_demoted
            self._moved(handle)
        if ruling.demoted is not None:
            ruling.demoted.demoted_tokens = (ruling.demoted.demoted_tokens or 0) + meta.tokens
        return self._hold_all(handle, ruling.holds) if ruling.holds else ()

    def _hold_all(self, handle: Handle, holds: list[Hold]) -> list[Handle]:
        parts = [handle]
        for hold in holds:
            for part in tuple(parts):
                if (upper := self._hold(part, part.kvp, hold)) is not None:
                    parts.append(upper)
        return parts[1:]

    def _hold(self, handle: Handle, meta: UnitMeta, hold: Hold) -> Handle | None:
        """Let ``hold`` have as much of the run as it covers: units that begin within its tokens and end within the
        budget."""
        rules = self.rules
        assert rules is not None, "a hold is accepted where none can be kept"
        size_tokens, begin_tokens = meta.size_tokens, meta.depth_tokens - meta.tokens
        covered = (rules.hint_limit_tokens - begin_tokens) // size_tokens
        if hold.tokens is not None:
            covered = min(covered, -(-(hold.tokens - begin_tokens) // size_tokens))
        if covered <= 0:
            if rules.hint_limit_tokens < meta.depth_tokens and not hold.held_tokens:
                hold.end = "over budget"
            return None
        upper = None
        if covered < meta.units:
            handle = upper = rules.divide(handle, meta.units - covered)
            meta = upper.kvp
        expiry_ms = self.clock.now_ms + hold.ttl_ms
        if meta.hold is not None and meta.hold_expiry_ms is not None and meta.hold_expiry_ms > expiry_ms:
            return upper  # another one keeps it for longer
        rules.hold(meta, hold, expiry_ms)
        return upper

    def _release(self, handle: Handle, meta: UnitMeta) -> None:
        assert self.rules is not None
        self.rules.release(handle, "ended by an expire")

    def split(self, upper: Handle, lower: Handle) -> None:
        """``lower`` keeps the end: out of reach of a hold whose tokens end with the upper half."""
        meta: UnitMeta = lower.kvp
        hold = meta.hold
        if hold is not None and hold.tokens is not None and upper.kvp.depth_tokens >= hold.tokens:
            assert self.rules is not None
            self.rules.release(lower, hold.end)

    # -- whole --

    def clear(self) -> None:
        """The engine emptied its cache."""
        for report in self.recent.values():
            if report.hold is not None and report.hold.held_tokens:
                report.hold.held_tokens, report.hold.end = 0, "flushed"

    def adopt(self, meta: UnitMeta, before: UnitMeta) -> None:
        """The unit was resident under another policy: what that accepted goes on, as far as this one allows it."""
        if before.hint_class in self.hints.classes:
            meta.hint_class = before.hint_class
        meta.is_demoted = before.is_demoted and self.hints.demotes
        hold = before.hold
        if hold is None or before.hold_expiry_ms is None or not self.hints.retains:
            return
        if hold not in self._adopted:
            self._adopted[hold] = hold.copy()
        meta.hold = self._adopted[hold]
        meta.hold_expiry_ms = min(before.hold_expiry_ms, self.clock.now_ms + self.hints.max_ttl_ms)

    def succeed(self, before: HintBook) -> None:
        """Take over what was counted and reported."""
        self.counts, self.recent, self._is_said = before.counts, before.recent, before._is_said
        for report in self.recent.values():
            if report.hold is not None:
                report.hold = self._adopted.get(report.hold, report.hold)
        self._adopted.clear()

    # -- reports --

    def expired(self, hold: Hold) -> None:
        """Nothing is held any more, for its time is over."""
        self._count("retain", "expired")

    def _note(self, action: Action, outcome: Outcome, why: str = "") -> HintReport:
        self._count(action.name, outcome)
        return self._report(HintReport(action.action_id, action.name, outcome, why, self.clock.request_seq))

    def _ignore(self, action_id: str, name: str, fault: str) -> None:
        self._count(name, "ignored")
        self._report(HintReport(action_id, name, "ignored", fault, self.clock.request_seq))
        if not self._is_said:
            self._is_said = True
            logger.warning("kvpolicy: a hint that cannot be read is ignored: %s (further ones are counted only)", fault)

    def _report(self, report: HintReport) -> HintReport:
        self.recent.pop(report.action_id, None)
        self.recent[report.action_id] = report
        if len(self.recent) > REPORTED:
            self.recent.popitem(last=False)
        return report

    def _count(self, name: str, outcome: Outcome) -> None:
        key = name, outcome
        self.counts[key] = self.counts.get(key, 0) + 1
