"""Least recently used. SGLang's default order: the smallest ``last_access_time`` goes first."""

from __future__ import annotations

from kvpolicy.eviction.algorithms.spec import Algorithm, AlgorithmSpec
from kvpolicy.eviction.base import Handle, KeyChange, Order
from kvpolicy.eviction.heap import LazyHeap

__all__ = ["LRU", "SPEC"]


class LRU(Algorithm):
    """Key: ``last_access_time``, which the engine only moves forward."""

    change = KeyChange.GROWS

    def make_order(self) -> Order[Handle]:
        return LazyHeap(lambda handle: float(handle.last_access_time), self.change)


SPEC = AlgorithmSpec(
    name="lru",
    summary="least recently used first (the engine's default)",
    source="SGLang evict_policy.py, LRUStrategy",
    build=LRU,
)
