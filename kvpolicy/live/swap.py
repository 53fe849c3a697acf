"""The server's half of `kvpolicy apply`: one policy is prepared beside the running one, and takes over on every rank or
on none.

Each scheduler process of a server has one :class:`LiveSwap`. Its adapter hands it messages, which reach every rank
between the same two steps and in the same order:

``prepare``   check what is asked for against what this server can do, and start building
``continue``  bring one more slice of what is resident into the new index
``commit``    put the prepared policy in charge, if every rank has it
``abort``     forget it

Nothing happens between messages, so a client that is gone leaves the old policy, and a server that nobody changes pays
nothing. At most one policy is being prepared; a later `prepare` takes the place of an earlier one, whose `commit` then
finds another digest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from kvpolicy.compiler import CompiledPolicy, compile_policy
from kvpolicy.language import Policy, digest_of, policy_from_flat
from kvpolicy.runtime.active import ActivePolicy
from kvpolicy.runtime.loading import explaining

from .plan import make_plan
from .preparation import Preparation
from .slices import FIRST_UNITS, CollectionsPutOff, next_units

__all__ = ["Answer", "Candidate", "LiveSwap", "Seat"]

logger = logging.getLogger("kvpolicy")

Kind = Literal["preparing", "ready", "applied", "refused", "conflict", "failed", "none"]
#: Gathers one verdict of every rank that must decide alike; without others it returns its own alone.
Gather = Callable[[dict[str, Any]], list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy that may take over; ``flat`` is resolved for this engine. Off: the engine's own ways, kvpolicy idle."""

    flat: dict[str, Any]
    digest: str
    source: str
    policy: Policy
    compiled: CompiledPolicy
    is_off: bool = False

    @classmethod
    def of(cls, flat: dict[str, Any], source: str, engine: str) -> Candidate:
        """Raises PolicyError for a document that is no valid policy."""
        policy = policy_from_flat(flat, engine=engine)
        return cls(flat, digest_of(flat), source, policy, explaining(compile_policy(policy, engine)))

    @classmethod
    def running(cls, active: ActivePolicy) -> Candidate:
        return cls(active.flat, active.digest, active.source, active.policy, active.compiled, active.is_off)

    def changes_eviction(self, active: ActivePolicy) -> bool:
        """Whether another index is needed than the one that serves."""
        sections = ("eviction", "hints")
        same = all(self.flat.get(name) == active.flat.get(name) for name in sections)
        return not same or self.is_off != active.is_off


class Seat(Protocol):
    """What an adapter does for a swap, in one scheduler process."""

    active: ActivePolicy

    def refusals(self, after: Candidate) -> list[str]:
        """Why this server cannot run the policy without a restart, each with what to do; empty: it can."""

    def prepare(self, after: Candidate) -> Preparation | None:
        """Start to build what the policy needs beside what runs; ``None``: nothing needs building."""

    def abandon(self, preparation: Preparation | None) -> None:
        """Forget what was built. What runs is as it was."""

    def commit(self, after: Candidate, preparation: Preparation | None) -> None:
        """Put it in charge: pointers only."""

    def retire(self, units: int) -> bool:
        """Take apart up to ``units`` of what a commit replaced; whether there is more."""


@dataclass(slots=True)
class Answer:
    """What one rank, or all of a scheduler's together, say to a message. Goes out as JSON."""

    kind: Kind
    digest: str = ""  # of the policy in question
    why: list[str] = field(default_factory=list)
    examined_units: int = 0  # so far
    more: bool = False  # send `continue`: there is more to bring in or, after `applied`, to take apart

    def to_json(self) -> dict[str, Any]:
        return {
            "state": self.kind,
            "digest": self.digest,
            "why": self.why,
            "examined_units": self.examined_units,
            "more": self.more,
        }


class LiveSwap:
    """See the module text. No method raises."""

    def __init__(self, seat: Seat, engine: str, gather: Gather | None = None) -> None:
        self._seat, self._engine = seat, engine
        self._gather: Gather = gather if gather is not None else lambda own: [own]
        self._candidate: Candidate | None = None
        self._preparation: Preparation | None = None
        self._previous: Candidate | None = None
        self.answer = Answer("none")  # to the last message
        self.slice_units: int | None = None  # of every slice; None: as many as take a short time
        self._units, self._slice_s = FIRST_UNITS, 0.0  # of the last slice
        self._collections = CollectionsPutOff()
        self.swaps = 0
        self._victims: list[str | None] = []  # of every rank at the last agreement: equal, or they evicted differently

    @property
    def previous(self) -> Candidate | None:
        """What `rollback` returns to."""
        return self._previous

    def handle(self, message: dict[str, Any]) -> bool:
        """Act on one message; True where the client should send `continue`. The words are in :attr:`answer`."""
        try:
            operation = {
                "prepare": self._prepare,
                "continue": self._continue,
                "commit": self._commit,
                "abort": self._abort,
            }[message["op"]]
            self._collections.go_on()
            self.answer = operation(message)
        except Exception as error:
            logger.exception("kvpolicy: a live swap failed; the policy that ran goes on")
            self._forget()
            self.answer = Answer("failed", why=[f"{type(error).__name__}: {error}"])
        if not self.answer.more and self.answer.kind != "ready":
            self._collections.end()
        return self.answer.more

    def to_json(self) -> dict[str, Any]:
        previous = self._previous
        return {
            **self.answer.to_json(),
            "swaps": self.swaps,
            **({"rank_victim_digests": self._victims} if len(self._victims) > 1 else {}),
            "previous": None if previous is None else _name(previous),
        }

    # -- messages --

    def _prepare(self, message: dict[str, Any]) -> Answer:
        self._forget()
        verdict = self._alone(self._start, message)
        if bad := self._one_says_no(verdict):
            self._forget()
            return bad
        assert self._candidate is not None
        logger.info("kvpolicy: preparing %s beside %s", _name(self._candidate), self._seat.active.digest[:12])
        return verdict

    def _start(self, message: dict[str, Any]) -> Answer:
        if conflict := self._unexpected(message):
            return conflict
        found = self._asked_for(message)
        if isinstance(found, str):
            return Answer("refused", why=[found])
        if why := self._refusals(found):
            return Answer("refused", found.digest, why)
        self._candidate = found
        self._collections.start()
        self._preparation = self._seat.prepare(found)
        more = self._preparation is not None
        self._units, self._slice_s = FIRST_UNITS, 0.0
        return Answer("preparing" if more else "ready", found.digest, more=more)

    def _continue(self, _message: dict[str, Any]) -> Answer:
        units = self._agreed_units()  # whatever a rank has to do or not: all of them take part
        start_s = time.perf_counter()
        try:
            return self._one_slice(units)
        finally:
            preparation = self._preparation
            is_short = preparation is not None and preparation.was_cut_short
            self._slice_s = 0.0 if is_short else time.perf_counter() - start_s

    def _agreed_units(self) -> int:
        if self.slice_units is not None:
            return self.slice_units
        slowest_s = max(told["slice_s"] for told in self._gather({"slice_s": self._slice_s}))
        if slowest_s > 0:
            self._units = next_units(self._units, slowest_s)
        return self._units

    def _one_slice(self, units: int) -> Answer:
        candidate, preparation = self._candidate, self._preparation
        if candidate is None:
            if self.answer.kind == "applied":
                return Answer("applied", self.answer.digest, more=self._seat.retire(units))
            if self.answer.kind in ("refused", "conflict", "failed"):
                return self.answer  # said already, while other groups go on
            return Answer("conflict", why=["nothing is being prepared: it was dropped, or another apply came"])
        if preparation is None:
            return Answer("ready", candidate.digest)
        more = preparation.step(units)
        if preparation.fault is not None:
            return self._fault(candidate, preparation)
        return Answer("preparing" if more else "ready", candidate.digest, [], preparation.examined_units, more)

    def _commit(self, message: dict[str, Any]) -> Answer:
        if bad := self._one_says_no(self._alone(self._may_commit, message)):
            self._forget()
            return bad
        candidate, preparation = self._candidate, self._preparation
        assert candidate is not None
        before = Candidate.running(self._seat.active)
        self._candidate = self._preparation = None
        self._units, self._slice_s = FIRST_UNITS, 0.0
        self._seat.commit(candidate, preparation)
        self._previous, self.swaps = before, self.swaps + 1
        logger.info("kvpolicy: %s took over from %s", _name(candidate), _name(before))
        return Answer("applied", candidate.digest, more=True)

    def _may_commit(self, message: dict[str, Any]) -> Answer:
        candidate, preparation = self._candidate, self._preparation
        if conflict := self._unexpected(message):
            return conflict
        if candidate is None or candidate.digest != message.get("digest"):
            return Answer("conflict", why=["another apply came, or the prepared policy was dropped"])
        if preparation is not None and preparation.fault is not None:
            return self._fault(candidate, preparation)
        if preparation is not None and not preparation.is_ready:
            return Answer("failed", candidate.digest, ["the policy is not prepared to the end"])
        return Answer("ready", candidate.digest)

    def _abort(self, _message: dict[str, Any]) -> Answer:
        self._forget()
        return Answer("none")

    # -- inner --

    def _alone(self, judge: Callable[[dict[str, Any]], Answer], message: dict[str, Any]) -> Answer:
        """This rank's verdict. Never raises: the other ranks wait for it."""
        try:
            return judge(message)
        except Exception as error:
            logger.exception("kvpolicy: a live swap failed here; the policy that ran goes on")
            return Answer("failed", why=[f"{type(error).__name__}: {error}"])

    def _unexpected(self, message: dict[str, Any]) -> Answer | None:
        expected, found = message.get("expect"), self._seat.active.digest
        if not expected or found.startswith(expected):
            return None
        return Answer("conflict", found, [f"the server runs policy {found[:16]}, not {expected[:16]}"])

    def _asked_for(self, message: dict[str, Any]) -> Candidate | str:
        if message.get("off"):
            running = Candidate.running(self._seat.active)
            return Candidate(
                running.flat, running.digest, running.source, running.policy, running.compiled, is_off=True
            )
        if message.get("rollback"):
            return self._previous or "nothing was applied since the start, so there is nothing to return to"
        return Candidate.of(message["flat"], message.get("source", ""), self._engine)

    def _refusals(self, found: Candidate) -> list[str]:
        """Restart-class changes, and what this server cannot do; all of them, as nothing is half applied."""
        active = self._seat.active
        effective = {setting.path: setting.effective for setting in active.settings.values()}
        plan = make_plan(active.flat, found.flat, effective)
        needs_restart = [f"{change.path}: needs a restart" for change in plan.changes if change.mutability != "hot"]
        return needs_restart + self._seat.refusals(found)

    def _one_says_no(self, own: Answer) -> Answer | None:
        """The first rank's answer that is no agreement, if there is one; every rank finds the same."""
        index = self._seat.active.index
        victims = None if index is None else f"{index.victim_digest:016x}"
        answers = self._gather({**own.to_json(), "victim_digest": victims})
        self._victims = [verdict.get("victim_digest") for verdict in answers]
        if len(set(self._victims)) > 1:
            logger.error("kvpolicy: the ranks evicted different units, so their caches differ: %s", self._victims)
        for rank, verdict in enumerate(answers):
            if verdict["state"] not in ("preparing", "ready"):
                where = f"rank {rank}: " if len(answers) > 1 else ""
                return Answer(verdict["state"], verdict["digest"], [where + why for why in verdict["why"]])
        if len({verdict["digest"] for verdict in answers}) > 1:
            return Answer("failed", own.digest, ["the ranks were asked for different policies"])
        return None

    def _fault(self, candidate: Candidate, preparation: Preparation) -> Answer:
        self._forget()
        why = f"the new policy failed on what is in the cache: {preparation.fault}"
        return Answer("failed", candidate.digest, [why], preparation.examined_units)

    def _forget(self) -> None:
        if self._candidate is not None:
            self._seat.abandon(self._preparation)
        self._candidate = self._preparation = None

    def dropped(self) -> None:
        """The client is gone for good: the adapter forgot what was built."""
        self._candidate = self._preparation = None
        self._collections.end()
        self.answer = Answer("none", why=["dropped: the client did not come back"])
        logger.warning("kvpolicy: a prepared policy was dropped: its client did not come back")


def _name(candidate: Candidate) -> str:
    return "off" if candidate.is_off else f"{candidate.policy.metadata.name} ({candidate.digest[:12]})"
