"""From the typed ``eviction`` section of a policy to what an adapter needs: what to observe, and an index a pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvpolicy.eviction.algorithms.registry import get_spec, make_algorithm
from kvpolicy.eviction.base import PolicyClock
from kvpolicy.eviction.index import EvictionIndex

__all__ = ["CompiledEviction", "compile_eviction"]


@dataclass(frozen=True)
class CompiledEviction:
    """A policy's eviction, ready to make one index per pool."""

    policy: str | None
    params: Mapping[str, Any] = field(default_factory=dict)
    needs_metadata: bool = False
    needs_time: bool = False
    rules: tuple[Any, ...] = ()

    def make_index(self, pool_tokens: int) -> EvictionIndex:
        """An empty index for a pool of that many tokens, with its own clock."""
        return EvictionIndex(make_algorithm(self.policy or "lru", self.params, PolicyClock()), pool_tokens)


def compile_eviction(eviction: Any, *, hints: Any = None) -> CompiledEviction:
    """Compile a policy's ``eviction`` section (``None``: absent). Raises ValueError for an unknown algorithm or param."""
    policy = getattr(eviction, "policy", None) or "lru"
    params = get_spec(policy).validate_params(getattr(eviction, "params", None) or {})
    return CompiledEviction(policy=policy, params=params)
