"""A run: consecutive blocks of one request's prefix that the policy sees as one handle until they differ.

Nothing here imports vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

from kvpolicy.eviction.base import UnitMeta

__all__ = ["Run", "content_key"]


class Run:
    """A handle of the eviction index; the four engine fields are counters kept here, as vLLM has none of them.

    All blocks are free, or none; each has one copy, unless there is a single one.
    """

    __slots__ = (
        "blocks", "children", "copies", "creation_time", "hashes", "hit_count", "is_free", "kvp", "last_access_time",
        "parent", "priority",
    )  # fmt: skip

    def __init__(self, hashes: list[bytes], blocks: list[Any], parent: Run | None, tick: int, priority: int) -> None:
        self.hashes = hashes  # with the KV cache group's number, as the blocks carry them
        self.blocks = blocks
        self.copies: list[Any] | None = None  # every resident block of the only content, where there are several
        self.parent = parent
        self.children = 0  # resident runs whose prefix ends here
        self.is_free = False  # its blocks have no user
        self.kvp: UnitMeta | None = None
        self.creation_time = tick
        self.last_access_time = tick  # of the last block; by 1 less for each one before it
        self.hit_count = 1  # as SGLang counts: the request that made it, and each one that hit it
        self.priority = priority

    def cut(self, blocks: int) -> Run:
        """Give the first `blocks` to a new run above this one, which keeps its place and its children."""
        upper = Run(self.hashes[:blocks], self.blocks[:blocks], self.parent, self.creation_time, self.priority)
        del self.hashes[:blocks], self.blocks[:blocks]
        upper.children, upper.is_free, upper.hit_count = 1, self.is_free, self.hit_count
        upper.last_access_time = self.last_access_time - len(self.blocks)
        self.parent = upper
        return upper

    def trim(self, blocks: int) -> list[bytes]:
        """Lose the last `blocks`, not all of them; their hashes."""
        going = self.hashes[-blocks:]
        del self.hashes[-blocks:], self.blocks[-blocks:]
        self.last_access_time -= blocks
        return going

    def up_to(self, parent: Run | None) -> Iterator[Run]:
        """This run and those above it, below `parent`."""
        run: Run | None = self
        while run is not parent and run is not None:
            yield run
            run = run.parent

    def count_evictable(self, most: int) -> int:
        """How many blocks from the end, up to `most`, are free and hold their content (the null block never has one)."""
        blocks, hashes = self.blocks[-most:], self.hashes[-most:]
        if [block.block_hash for block in blocks] == hashes and not any([block.ref_cnt for block in blocks]):
            return len(blocks)
        count = 0
        while blocks and not blocks[-1].ref_cnt and blocks.pop().block_hash == hashes.pop():
            count += 1
        return count

    def is_whole(self, resident: Mapping[bytes, list[Any]], free_ids: Set[int]) -> bool:
        """Whether each block is the only one `resident` with its content, and all of them are free or none is."""
        is_free = self.blocks[0].block_id in free_ids
        for block_hash, block in zip(self.hashes, self.blocks, strict=True):
            copies = resident.get(block_hash, ())
            if len(copies) != 1 or copies[0] is not block or (block.block_id in free_ids) is not is_free:
                return False
        return True


def content_key(block_hash: bytes) -> int:
    """The number of a content, equal on every rank."""
    return int.from_bytes(block_hash[:8], "big")
