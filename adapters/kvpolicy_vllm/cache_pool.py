"""vLLM's free queue and block pool with the policy's choice of victims; everything else is theirs.

The queue *is* vLLM's linked list of all free blocks, in vLLM's order, with its interface and its counts; the policy
only decides which cached block leaves it next. So vLLM's order is there at any moment, for a call that the policy
cannot serve, and for a swap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue

from .cache_guard import CacheGuard

__all__ = ["PolicyBlockPool", "PolicyQueue", "WalkedQueue"]


class PolicyQueue(FreeKVCacheBlockQueue):  # type: ignore[misc]
    """Blocks without cached content go first, as in vLLM; then the policy's victims."""

    _guard: CacheGuard
    #: Up to where somebody has walked the list from its front, if anybody does: see :class:`WalkedQueue`.
    cursor: Any = None

    @classmethod
    def over(cls, queue: Any, guard: CacheGuard) -> None:
        """Let the policy choose what leaves `queue`, vLLM's own, which keeps its blocks and their order. O(1)."""
        queue.__class__ = cls
        queue._guard = guard

    def give_back(self) -> None:
        """Be vLLM's queue again. O(1)."""
        self.cursor = None
        del self._guard
        self.__class__ = FreeKVCacheBlockQueue

    def popleft(self) -> Any:
        return self.popleft_n(1)[0] if self.num_free_blocks else super().popleft()

    def popleft_n(self, n: int) -> list[Any]:
        if n <= 0 or n > self.num_free_blocks:
            return super().popleft_n(n)
        guard = self._guard
        blocks = self._leave_to_engine(n) if guard.is_off else self._first(n)
        if guard.entered is not None:
            guard.serve()
        return blocks

    def _first(self, n: int) -> list[Any]:
        blocks: list[Any] = super().popleft_n(empty) if (empty := self._count_empty(n)) else []
        if len(blocks) == n:
            return blocks
        victims = self._guard.victims(n - len(blocks))
        self._remove_all(victims)
        blocks += victims
        if len(blocks) > n:  # for some there is no use yet: without their contents, they go first
            for block in victims:
                self._guard.pool._maybe_evict_cached_block(block)
            self.prepend_n(blocks[n:])
            del blocks[n:]
        if len(blocks) < n:
            blocks += self._in_stock_order(n - len(blocks))
        return blocks

    def walk(self) -> None:
        """Put the cursor before the first block. O(1)."""
        self.cursor = self.fake_free_list_head
        self.__class__ = WalkedQueue

    def stop_walking(self) -> None:
        self.cursor = None
        self.__class__ = PolicyQueue

    def _remove_all(self, blocks: list[Any]) -> None:
        """As `remove` does with one. All are in the list: the guard checked that they are free.

        What was freed together mostly stands together: such a stretch is taken out whole.
        """
        before = self.fake_free_list_head
        after = before.next_free_block
        for block in blocks:
            if block is not after:
                before.next_free_block, after.prev_free_block = after, before
                before = block.prev_free_block
            after = block.next_free_block
            block.prev_free_block = block.next_free_block = None
        before.next_free_block, after.prev_free_block = after, before
        self.num_free_blocks -= len(blocks)

    def _leave_to_engine(self, n: int) -> list[Any]:
        blocks: list[Any] = super().popleft_n(n)
        if self.cursor is not None and any(block is self.cursor for block in blocks):
            self.cursor = self.fake_free_list_head
        self._guard.dropped([(block, block.block_hash) for block in blocks if block.block_hash is not None])
        return blocks

    def append(self, block: Any) -> None:
        super().append(block)
        self._guard.freed((block,))

    def append_n(self, blocks: list[Any]) -> None:
        super().append_n(blocks)
        self._guard.freed(blocks)

    def _count_empty(self, most: int) -> int:
        """Blocks without content at the front of the list, up to `most`."""
        count, block = 0, self.fake_free_list_head.next_free_block
        while count < most and block.block_hash is None and block is not self.fake_free_list_tail:
            count, block = count + 1, block.next_free_block
        return count

    def _in_stock_order(self, n: int) -> list[Any]:
        blocks: list[Any] = super().popleft_n(n)
        cached = [block for block in blocks if block.block_hash is not None]
        if cached:
            self._guard.lost()
        return blocks


class WalkedQueue(PolicyQueue):
    """While somebody walks the list: the cursor stays in it whatever leaves. A class of its own, since `remove` runs
    for every block that is hit."""

    def remove(self, block: Any) -> None:
        if block is self.cursor:
            self.cursor = block.prev_free_block
        super().remove(block)

    def _remove_all(self, blocks: list[Any]) -> None:
        for block in blocks:
            self.remove(block)


class PolicyBlockPool(BlockPool):  # type: ignore[misc]
    """vLLM's pool, telling the policy what becomes of its blocks. Without a `guard` it is vLLM's pool."""

    guard: CacheGuard | None = None
    block_tokens: int  # set with the policy

    def cache_full_blocks(
        self, request: Any, blocks: list[Any], num_cached_blocks: int, num_full_blocks: int, *args: Any, **kwargs: Any
    ) -> None:
        guard = self.guard
        if guard is None or num_cached_blocks >= num_full_blocks:
            super().cache_full_blocks(request, blocks, num_cached_blocks, num_full_blocks, *args, **kwargs)
        elif (state := guard.admitted(request)) is not None:
            super().cache_full_blocks(request, blocks, num_cached_blocks, num_full_blocks, *args, **kwargs)
            guard.cached(state, blocks, num_cached_blocks, num_full_blocks)

    def touch(self, blocks: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        super().touch(blocks, *args, **kwargs)
        if self.guard is not None:
            self.guard.taken(blocks)
            self.guard.matched(blocks)

    def evict_blocks(self, block_ids: set[int]) -> None:
        guard = self.guard
        if guard is None:
            super().evict_blocks(block_ids)
            return
        before = [(block, block.block_hash) for block in map(self.blocks.__getitem__, sorted(block_ids))]
        super().evict_blocks(block_ids)
        dropped = [(block, old) for block, old in before if old is not None and block.block_hash is None]
        guard.dropped(dropped)
        for block, _ in dropped:
            if block.ref_cnt == 0 and not guard.is_off:  # free and empty: it goes first
                self.free_block_queue.remove(block)
                self.free_block_queue.prepend_n([block])

    def reset_prefix_cache(self) -> bool:
        is_reset: bool = super().reset_prefix_cache()
        if is_reset and self.guard is not None:
            self.guard.cleared()
        return is_reset
