"""One order out of many: a tenant's units at one protection level each, and which of these partitions gives the next
victim.

Partitions go by their tenant's class, then by level, then by the key of their first unit. The key that a partition is
offered under is a lower bound of it, re-read when the partition comes up; so the choice costs O(log partitions), and
what happens in partitions that are not next costs nothing. Orders without keys are looked at whenever they changed. A
partition that is alone is never compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

from kvpolicy.eviction.base import Handle, KeyChange, Order
from kvpolicy.eviction.heap import LazyHeap
from kvpolicy.eviction.tenants import WITHIN_FLOOR, Tenant

__all__ = ["PartitionedOrder"]

#: Partitions whose first key is evaluated afresh for each victim, where keys move with the clock.
REFRESHED = 8


class _Partition:
    __slots__ = ("first_key", "heap", "is_dirty", "level", "of", "order", "tenant")

    def __init__(self, of: object, order: Order[Handle], tenant: Tenant, level: int) -> None:
        self.of = of  # the members' metadata may still name a partition of an order before
        self.order = order
        self.tenant = tenant
        self.level = level
        self.is_dirty = False
        self.heap: LazyHeap[_Partition] | None = None  # where it is offered, under
        self.first_key: Any = None


class PartitionedOrder:
    """``place(handle)`` gives the tenant and the level of a unit when it is added; :meth:`move` when either changed.

    Where keys move with the clock, a partition may wait a while before it is compared by its current key: the
    ``REFRESHED`` that have waited longest are, for each victim.
    """

    change = KeyChange.GROWS
    is_keyed = False

    def __init__(
        self,
        make_order: Callable[[], Order[Handle]],
        levels: int,
        place: Callable[[Handle], tuple[Tenant, int]],
    ) -> None:
        self._make_order = make_order
        self._levels = levels
        self._place = place
        self._members = 0
        self._era = object()  # of all partitions since the last `clear`
        self._partitions: dict[Tenant, list[_Partition | None]] = {}
        self._count = 0  # of partitions
        self._alone: _Partition | None = None  # where there is one only
        self._dirty: list[_Partition] = []
        self._last: tuple[_Partition, int] | None = None  # where the last victim came from, and its tenant's class
        self._is_dynamic = False
        #: The partitions of each class and level by the key of their first unit; in victim order.
        self._heaps: list[LazyHeap[_Partition]] = [
            LazyHeap(_first_key, KeyChange.GROWS) for _ in range((WITHIN_FLOOR + 1) * levels)
        ]

    def add(self, handle: Handle) -> None:
        if self._where(handle) is not None:
            return
        tenant, level = self._place(handle)
        of_tenant = self._partitions.get(tenant)
        if of_tenant is None:
            of_tenant = self._partitions[tenant] = [None] * self._levels
        partition = of_tenant[level]
        if partition is None:
            partition = of_tenant[level] = self._new_partition(tenant, level)
        key = partition.order.add(handle)
        handle.kvp.partition = partition
        self._members += 1
        self._changed(partition, key)

    def _new_partition(self, tenant: Tenant, level: int) -> _Partition:
        partition = _Partition(self._era, self._make_order(), tenant, level)
        self._is_dynamic = partition.order.change is KeyChange.DYNAMIC
        self._count += 1
        alone, self._alone = self._alone, partition if self._count == 1 else None
        if alone is not None:
            self._mark(alone)
        return partition

    def discard(self, handle: Handle) -> None:
        partition = self._where(handle)
        if partition is not None:
            handle.kvp.partition = None
            self._members -= 1
            partition.order.discard(handle)
            if not partition.order.is_keyed:
                self._mark(partition)

    def touch(self, handle: Handle) -> None:
        partition = self._where(handle)
        if partition is not None:
            self._changed(partition, partition.order.touch(handle))

    def move(self, handle: Handle) -> None:
        """The unit's tenant or level changed: put it where it belongs now, if it is a member."""
        if self._where(handle) is not None:
            self.discard(handle)
            self.add(handle)

    def tenant_changed(self, tenant: Tenant) -> None:
        """The tenant's class changed."""
        for partition in self._partitions.get(tenant, ()):
            if partition is not None and partition.heap is not None:
                self._offer(partition, partition.first_key)

    def forget(self, tenant: Tenant) -> None:
        """The tenant is kept no more; it has no units."""
        for partition in self._partitions.pop(tenant, ()):
            if partition is not None:
                assert not partition.order, "a tenant was forgotten while it has evictable units"
                self._withdraw(partition)
                partition.is_dirty = True  # never offered again, even if it is still in the list
                self._count -= 1
                if partition is self._alone:
                    self._alone = None

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
        handle.kvp.partition = None
        self._members -= 1
        self._last = (partition, partition.tenant.klass)
        if not partition.order.is_keyed:
            self._mark(partition)
        return handle

    def precedes(self, handle: Handle, victim: Handle) -> bool:
        """Only within the partition that gave the victim, while its tenant's class is what it was."""
        if self._last is None:
            return False
        partition, klass = self._last
        tenant = partition.tenant
        return (
            tenant.klass == klass
            and self._place(handle) == (tenant, partition.level)
            and partition.order.precedes(handle, victim)
        )

    def sweep(self, handle: Handle, most: int) -> int:
        """As far as the run's own partition goes; a tenant whose class changes on the way is the caller's business."""
        return 1 if self._last is None else self._last[0].order.sweep(handle, most)

    def clear(self) -> None:
        self._last = self._alone = None
        self._members, self._count, self._era = 0, 0, object()
        for partition in self._each():
            partition.order.clear()  # the members' metadata names it
        self._partitions.clear()
        self._dirty.clear()
        for heap in self._heaps:
            heap.clear()

    def __len__(self) -> int:
        return self._members

    def __contains__(self, handle: Any) -> bool:
        return self._where(handle) is not None

    def __iter__(self) -> Iterator[Handle]:
        return chain.from_iterable(partition.order for partition in self._each())

    def check(self) -> None:
        """Debug: every member is in the partition where it belongs, and only there."""
        members = 0
        for partition in self._each():
            members += len(partition.order)
            for handle in partition.order:
                assert self._where(handle) is partition, "a unit in a partition it does not belong to"
                assert self._place(handle) == (partition.tenant, partition.level), "a unit was not moved"
            check = getattr(partition.order, "check", None)
            if check is not None:
                check()
            top = partition.order.peek()
            assert self._alone is None or self._alone is partition, "a partition that is not alone"
            if top is not None and not partition.is_dirty and partition is not self._alone:
                assert partition in self._heap_of(partition), "a partition that is never asked"
                assert not partition.order.is_keyed or partition.first_key <= top[0], "a first key was missed"
        assert members == self._members, "a member without a partition"

    def _where(self, handle: Handle) -> _Partition | None:
        """The partition of a member, None for others."""
        meta = handle.kvp
        partition: _Partition | None = None if meta is None else meta.partition
        return partition if partition is not None and partition.of is self._era else None

    def _each(self) -> Iterator[_Partition]:
        for of_tenant in self._partitions.values():
            yield from filter(None, of_tenant)

    def _changed(self, partition: _Partition, key: Any) -> None:
        """A unit of the partition was offered under ``key``; ``None``: there is no telling."""
        if partition is self._alone:
            return
        if not partition.order.is_keyed:
            self._mark(partition)
        elif key is not None and (partition.heap is None or key < partition.first_key):
            self._offer(partition, key)

    def _mark(self, partition: _Partition) -> None:
        if not partition.is_dirty and partition is not self._alone:
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

    def _reread(self, partition: _Partition) -> None:
        """Offer the partition under the present key of its first unit, or not at all."""
        top = partition.order.peek()
        if top is None:
            self._withdraw(partition)
        elif partition.heap is None or top[0] < partition.first_key:
            self._offer(partition, top[0])
        else:
            partition.first_key = top[0]

    def _refresh(self, heap: LazyHeap[_Partition]) -> None:
        """Evaluate the partitions that have waited longest: offering one puts it at the end of the iteration."""
        for partition in list(islice(heap, REFRESHED)):
            top = partition.order.peek()
            assert top is not None, "a partition became empty without notice"
            self._offer(partition, top[0])

    def _first(self) -> _Partition | None:
        if (alone := self._alone) is not None:
            return alone if alone.order else None
        for partition in self._dirty:
            if partition.tenant in self._partitions:  # not forgotten meanwhile
                partition.is_dirty = False
                self._reread(partition)
        self._dirty.clear()
        for heap in self._heaps:
            if len(heap) == 1:  # nothing to compare it with
                (partition,) = heap
                if partition.order:
                    return partition
            if self._is_dynamic:
                self._refresh(heap)
            while (best := heap.peek()) is not None:
                key, partition = best
                top = partition.order.peek()
                if top is None:
                    self._withdraw(partition)
                elif top[0] == key:
                    return partition
                else:  # it rose: the heap will see
                    partition.first_key = top[0]
        return None


def _first_key(partition: _Partition) -> Any:
    return partition.first_key
