"""What this process runs: one policy, what of it took effect, and the live figures of its eviction.

One :class:`ActivePolicy` exists in a process that has a policy (launcher or scheduler), none in any other. The launch
side creates it, the cache side fills `core`, `index` and the counters, and status and metrics read it. No engine is
imported.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from kvpolicy.language.mutability import WISHES

from .traffic import Traffic

if TYPE_CHECKING:
    from kvpolicy.eviction import CompiledEviction
    from kvpolicy.eviction.index import EvictionIndex
    from kvpolicy.eviction.watermark import Watermark
    from kvpolicy.language import Policy

__all__ = ["ActivePolicy", "AllocatorState", "CascadeState", "Conflict", "Setting", "current", "set_current"]

logger = logging.getLogger("kvpolicy")

Role = Literal["launcher", "scheduler"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One engine setting a policy asks for, and what the engine really uses."""

    path: str  # in the policy, e.g. "cache.page_size"
    flag: str  # the engine's flag, e.g. "--page-size"
    requested: Any  # in the policy's words; None: not set in the policy
    effective: Any = None  # in the policy's words too; None: not known yet
    decided_by: str = "policy"  # "policy", "accept list", "engine default", a flag, or the engine's rule that overrode
    origin: str = ""  # file:line of the policy's value


@dataclass(frozen=True, slots=True)
class Conflict:
    """The policy and something explicit disagree; `on_conflict` says whether that ends the start."""

    setting: str
    requested: Any
    effective: Any
    winner: str  # the flag or the engine's rule that got its way
    origin: str  # file:line of the policy's value
    message: str


@dataclass(slots=True, eq=False)
class AllocatorState:
    """Who hands out the KV pool's slots, and what its guard found."""

    core: str = "engine"  # "kvpolicy": our free list under the engine's class; "engine": its own
    reason: str = "the policy leaves the allocator to the engine"
    order: str | None = None  # None: the engine's own
    guard: str = "off"
    free_list: Any = None  # kvpolicy.allocators.FreeList, or None with core "engine"
    faults: Counter[str] = field(default_factory=Counter)  # units by kind of fault


@dataclass(slots=True, eq=False)
class CascadeState:
    """Whether decode steps read shared prefixes once, and what came of it."""

    core: str | None = None  # "kvpolicy": where it pays; "engine": never; None: no backend was built yet
    reason: str = "no attention backend was built yet"
    cascade_steps: int = 0
    flat_steps: int = 0
    groups: int = 0  # of the last step that cascaded
    saved_tokens: int = 0  # reads that cascades spared, one a token and step


@dataclass(slots=True, eq=False)
class ActivePolicy:
    """See the module text. Counters are written by the scheduler thread alone and only ever read elsewhere."""

    policy: Policy
    flat: dict[str, Any]
    digest: str
    role: Role
    name: str = ""
    source: str = ""  # the file or built-in name as the user gave it
    compiled: Any = None  # kvpolicy.compiler.CompiledPolicy
    origins: dict[str, str] = field(default_factory=dict)  # file:line of values, by policy path

    # -- what took effect --
    settings: dict[str, Setting] = field(default_factory=dict)  # by the engine's field
    conflicts: list[Conflict] = field(default_factory=list)
    built: dict[str, Any] = field(default_factory=dict)  # by the engine's field, asked for or not: what it built

    # -- filled by the cache side, in the scheduler --
    core: str = ""  # "kvpolicy" (our index), "engine" (stock order); "" until the cache is built
    core_reason: str = ""  # why that core
    algorithm: str = ""  # e.g. "lru", "score (stable)", with the engine's tree core, for people
    index: Any = None  # kvpolicy.eviction.EvictionIndex, or None with core "engine"
    pool_tokens: int = 0
    kv_pool: dict[str, Any] = field(default_factory=dict)  # classes of the pool that was built
    watermark: Watermark | None = None  # at work; None: the engine evicts what an allocation lacks
    allocator: AllocatorState | None = None  # None: no allocator of this engine can be replaced
    cascade: CascadeState | None = None  # None: the policy asks for no cascade
    traffic: Traffic = field(default_factory=Traffic)  # counted only where the policy keeps metadata
    is_off: bool = False  # switched off while running: the engine's own ways serve
    workers: int = 0  # worker processes that proved to have the policy, where an engine asks them

    # -- counters kept here because they exist without an index too --
    fallbacks: Counter[str] = field(default_factory=Counter)  # by reason; one a call served in the engine's order
    evict_calls: int = 0
    evict_seconds: float = 0.0
    #: Called as `(active, seconds)` after each eviction call; set by the metrics side when metrics are on.
    on_evict: Callable[[ActivePolicy, float], None] | None = None
    #: Called as `(active)` after another policy took over while running; set by the metrics side.
    on_swap: Callable[[ActivePolicy], None] | None = None
    #: Called with the figures of fragmentation whenever a status was asked for; set by the metrics side.
    on_measure: Callable[[dict[str, Any]], None] | None = None
    #: Called with the `shadows` of each status that was asked for, None where there never were any; as above.
    on_shadows: Callable[[dict[str, Any] | None], None] | None = None
    #: Called as `(active)` when the allocator's guard found something.
    on_allocator_fault: Callable[[ActivePolicy], None] | None = None

    def origin(self, path: str) -> str:
        """file:line of one value of the policy, or of the policy as a whole."""
        return self.origins.get(path, self.source)

    @property
    def eviction_yielded_to(self) -> str | None:
        """Who won over the policy's eviction under `on_conflict: warn`; then the engine's order serves throughout."""
        return next((found.winner for found in self.conflicts if found.setting.startswith("eviction.")), None)

    def serve(self, index: EvictionIndex, eviction: CompiledEviction, reason: str) -> None:
        """From now on `index` decides, in `eviction`'s order."""
        self.core, self.index, self.core_reason = "kvpolicy", index, reason
        self.algorithm = eviction.policy or "lru, the engine's default"
        if eviction.score is not None:
            self.algorithm = f"score ({eviction.score.score_class})"

    def become(
        self, policy: Policy, flat: dict[str, Any], digest: str, source: str, compiled: Any, is_off: bool = False
    ) -> None:
        """Another policy took over while running; what only a start can change is equal in both."""
        for name, setting in self.settings.items():
            if setting.path in WISHES and (prefer := _preferred(policy, setting.path)) != _preferred(
                self.policy, setting.path
            ):
                by = "policy" if prefer == setting.effective else "accept list"
                self.settings[name] = replace(setting, requested=prefer, decided_by=by, origin=source)
        self.policy, self.flat, self.digest, self.source, self.compiled = policy, flat, digest, source, compiled
        self.name, self.origins, self.is_off = compiled.name, {}, is_off
        if self.on_swap is not None:
            try:
                self.on_swap(self)
            except Exception:
                self.on_swap = None
                self.note_fallback("metrics", "metrics do not name the new policy: their update raised")

    def observe_evict(self, seconds: float) -> None:
        """Count one eviction call of the engine. Never raises."""
        self.evict_calls += 1
        self.evict_seconds += seconds
        if self.on_evict is not None:
            try:
                self.on_evict(self, seconds)
            except Exception:
                self.on_evict = None
                self.note_fallback("metrics", "metrics stopped: their update raised")

    def note_fallback(self, reason: str, message: str) -> None:
        """Count that a policy step failed and stock behaviour served instead; the first traceback is logged."""
        self.fallbacks[reason] += 1
        if self.fallbacks[reason] == 1:
            logger.exception("kvpolicy: %s (further ones are counted only)", message)


def _preferred(policy: Policy, path: str) -> Any:
    """What the policy asks for first; None: it leaves the choice to the engine."""
    section, name = path.split(".")
    return getattr(getattr(getattr(policy, section), name, None), "prefer", None)


_current: ActivePolicy | None = None


def current() -> ActivePolicy | None:
    """The policy of this process, or None."""
    return _current


def set_current(active: ActivePolicy | None) -> None:
    global _current
    _current = active
