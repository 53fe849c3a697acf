"""One order out of many: a tenant's units at one protection level each, and which of these partitions gives the next
victim.

Partitions go by their tenant's class, then by level, then by the key of their first unit. Only partitions that changed
since the last victim are looked at again, so that the choice costs O(log partitions), not a scan of all tenants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kvpolicy.eviction.base import Handle, KeyChange, Order
from kvpolicy.eviction.heap import LazyHeap
from kvpolicy.eviction.tenants import WITHIN_FLOOR, Tenant

__all__ = ["PartitionedOrder"]


class _Partition:
    __slots__ = ("first_key", "heap", "is_dirty", "level", "order", "tenant")

    def __init__(self, order: Order[Handle], tenant: Tenant, level: int) -> None:
        self.order = order
        self.tenant = tenant
        self.level = level
        self.is_dirty = False
        self.heap: LazyHeap[_Partition] | None = None  # where it is offered, under
        self.first_key: Any = None


class PartitionedOrder:
    """``place(handle)`` gives the tenant and the level of a unit when it is added; :meth:`move` when either changed."""

    change = KeyChange.GROWS

    def __init__(
        self,
        make_order: Callable[[], Order[Handle]],
        levels: int,
        place: Callable[[Handle], tuple[Tenant, int]],
    ) -> None:
        self._make_order = make_order
        self._levels = levels
        self._place = place
        self._where: dict[Handle, _Partition] = {}
        self._partitions: dict[Tenant, list[_Partition | None]] = {}
        self._dirty: list[_Partition] = []
        #: The partitions of each class and level by the key of their first unit; in victim order.
        self._heaps: list[LazyHeap[_Partition]] = [
            LazyHeap(_first_key, KeyChange.STATIC) for _ in range((WITHIN_FLOOR + 1) * levels)
        ]

    def add(self, handle: Handle) -> None:
        if handle in self._where:
            return
        tenant, level = self._place(handle)
        of_tenant = self._partitions.get(tenant)
        if of_tenant is None:
            of_tenant = self._partitions[tenant] = [None] * self._levels
        partition = of_tenant[level]
        if partition is None:
            partition = of_tenant[level] = _Partition(self._make_order(), tenant, level)
        partition.order.add(handle)
        self._where[handle] = partition
        if not partition.is_dirty:
            partition.is_dirty = True
            self._dirty.append(partition)

    def discard(self, handle: Handle) -> None:
        partition = self._where.pop(handle, None)
        if partition is not None:
            partition.order.discard(handle)
            if not partition.is_dirty:
                partition.is_dirty = True
                self._dirty.append(partition)

    def touch(self, handle: Handle) -> None:
        partition = self._where.get(handle)
        if partition is not None:
            partition.order.touch(handle)
            if partition.order.change is not KeyChange.GROWS:
                self._mark(partition)

    def move(self, handle: Handle) -> None:
        """The unit's tenant or level changed: put it where it belongs now, if it is a member."""
        if handle in self._where:
            self.discard(handle)
            self.add(handle)

    def tenant_changed(self, tenant: Tenant) -> None:
        """The tenant's class changed."""
        for partition in self._partitions.get(tenant, ()):
            if partition is not None:
                self._mark(partition)

    def forget(self, tenant: Tenant) -> None:
        """The tenant is kept no more; it has no units."""
        for partition in self._partitions.pop(tenant, ()):
            if partition is not None:
                assert not partition.order, "a tenant was forgotten while it has evictable units"
                self._withdraw(partition)
                partition.is_dirty = True  # never offered again, even if it is still in the list

    def peek(self) -> tuple[Any, Handle] | None:
        """The key alone does not compare across classes and levels."""
        top = self._first()
        return None if top is None else top.order.peek()

    def pop(self) -> Handle | None:
        partition = self._first()
        if partition is None:
            return None
        handle = partition.order.pop()
        assert handle is not None
        del self._where[handle]
        self._mark(partition)
        return handle

    def clear(self) -> None:
        self._where.clear()
        self._partitions.clear()
        self._dirty.clear()
        for heap in self._heaps:
            heap.clear()

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, handle: object) -> bool:
        return handle in self._where

    def __iter__(self) -> Iterator[Handle]:
        return iter(self._where)

    def check(self) -> None:
        """Debug: every member is in the partition where it belongs, and only there."""
        members = 0
        for of_tenant in self._partitions.values():
            for partition in of_tenant:
                if partition is None:
                    continue
                members += len(partition.order)
                for handle in partition.order:
                    assert self._where.get(handle) is partition, "a unit in a partition it does not belong to"
                    assert self._place(handle) == (partition.tenant, partition.level), "a unit was not moved"
                check = getattr(partition.order, "check", None)
                if check is not None:
                    check()
                if len(partition.order) and not partition.is_dirty:
                    assert partition in self._heap_of(partition), "a partition that is never asked"
        assert members == len(self._where), "a member without a partition"

    def _mark(self, partition: _Partition) -> None:
        if not partition.is_dirty:
            partition.is_dirty = True
            self._dirty.append(partition)

    def _heap_of(self, partition: _Partition) -> LazyHeap[_Partition]:
        return self._heaps[partition.tenant.klass * self._levels + partition.level]

    def _offer(self, partition: _Partition, key: Any) -> None:
        self._withdraw(partition)
        partition.first_key = key
        partition.heap = self._heap_of(partition)
        partition.heap.add(partition)

    def _withdraw(self, partition: _Partition) -> None:
        if partition.heap is not None:
            partition.heap.discard(partition)
            partition.heap = None

    def _settle(self) -> None:
        """Offer every partition that changed under the key of its first unit."""
        for partition in self._dirty:
            if partition.tenant not in self._partitions:
                continue  # forgotten meanwhile
            partition.is_dirty = False
            top = partition.order.peek()
            if top is None:
                self._withdraw(partition)
            elif partition.heap is not self._heap_of(partition) or top[0] != partition.first_key:
                self._offer(partition, top[0])
        self._dirty.clear()

    def _first(self) -> _Partition | None:
        self._settle()
        for heap in self._heaps:
            while (best := heap.peek()) is not None:
                key, partition = best
                top = partition.order.peek()  # the engine may have raised its first unit's key since
                assert top is not None, "a partition became empty without notice"
                if top[0] == key:
                    return partition
                self._offer(partition, top[0])
        return None


def _first_key(partition: _Partition) -> Any:
    return partition.first_key
