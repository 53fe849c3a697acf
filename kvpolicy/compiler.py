"""Policy document -> what an adapter installs.

Sits between the language and the adapters: it turns the typed, engine-resolved document into four plans (cache,
backend, allocator, eviction). It decides nothing an engine decides; an adapter asks for the preferred value, lets the
engine have the last word, and compares the outcome with :meth:`Preference.accepts`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from kvpolicy.eviction import CompiledEviction, compile_eviction
from kvpolicy.language import LoadResult, Policy

__all__ = ["AllocatorPlan", "BackendPlan", "CachePlan", "CompiledPolicy", "Preference", "compile_policy"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Preference(Generic[T]):
    """What a policy asks for: the first choice, and what else is no conflict. ``prefer is None`` means auto."""

    prefer: T | None = None
    accept: tuple[T, ...] = ()

    @property
    def is_auto(self) -> bool:
        """Whether the engine's own choice stands, whatever it is."""
        return self.prefer is None

    @property
    def candidates(self) -> tuple[T, ...]:
        """Every acceptable value, the preferred one first, the rest as written."""
        if self.prefer is None:
            return ()
        return (self.prefer, *(value for value in self.accept if value != self.prefer))

    def accepts(self, value: T) -> bool:
        """Whether the engine settling on ``value`` honours the policy."""
        return self.prefer is None or value in self.candidates

    def first_possible(self, possible: Callable[[T], bool]) -> T | None:
        """The first candidate the engine can run; the preferred one when none is (the engine then says why not)."""
        return next((value for value in self.candidates if possible(value)), self.prefer)


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Page size in tokens and KV dtype (canonical names), asked for at start only."""

    page_size: Preference[int] = Preference()
    kv_dtype: Preference[str] = Preference()
    layer_dtypes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class BackendPlan:
    """Attention backend (the engine's own names) and how it plans."""

    attention: Preference[str] = Preference()
    page_native: bool | None = None
    cascade: Any = None


@dataclass(frozen=True, slots=True)
class AllocatorPlan:
    """Order in which slots are handed out, and the watermarks (low, high) as shares of the pool."""

    order: str | None = None
    watermark: tuple[float, float] | None = None
    guard: str | None = None


@dataclass(frozen=True, slots=True)
class CompiledPolicy:
    """One policy, ready for one engine."""

    name: str
    digest: str  # sha256 over the flattened document: what processes carry and compare
    engine: str
    on_conflict: str  # "error" | "warn"
    cache: CachePlan
    backend: BackendPlan
    allocator: AllocatorPlan
    eviction: CompiledEviction
    flat: dict[str, Any] = field(repr=False, default_factory=dict)

    @property
    def core(self) -> str:
        """Which tree core the policy wants: ``auto``, ``engine`` or ``kvpolicy``."""
        return self.eviction.core


def compile_policy(source: Policy | LoadResult, engine: str) -> CompiledPolicy:
    """Turn a checked policy (already resolved for ``engine``) into the plans an adapter installs.

    A :class:`LoadResult` brings its digest along; a bare :class:`Policy`, rebuilt in a child process from what the
    launcher carried, is compiled without one. Raises ``ValueError`` for a result that has errors.
    """
    if isinstance(source, LoadResult):
        policy, digest, flat = source.policy, source.digest, source.flat
        if policy is None:
            raise ValueError("a policy with errors cannot be compiled; see its diagnostics")
    else:
        policy, digest, flat = source, "", {}
    cache, backend, allocator = policy.cache, policy.backend, policy.allocator
    dtype = cache.kv_dtype if cache else None
    watermark = allocator.watermark if allocator else None
    return CompiledPolicy(
        name=policy.metadata.name,
        digest=digest,
        engine=engine,
        on_conflict=cache.on_conflict if cache else "error",
        cache=CachePlan(
            page_size=_preference(cache.page_size if cache else None),
            kv_dtype=_preference(dtype),
            layer_dtypes=dtype.layers if dtype else (),
        ),
        backend=BackendPlan(
            attention=_preference(backend.attention if backend else None),
            page_native=backend.page_native if backend else None,
            cascade=backend.cascade if backend else None,
        ),
        allocator=AllocatorPlan(
            order=allocator.order if allocator else None,
            watermark=(watermark.low, watermark.high) if watermark else None,
            guard=allocator.guard if allocator else None,
        ),
        eviction=compile_eviction(policy.eviction, hints=policy.hints),
        flat=flat,
    )


def _preference(choice: Any) -> Preference[Any]:
    return Preference(choice.prefer, tuple(choice.accept)) if choice is not None else Preference()
