"""A run: consecutive blocks of one request's prefix that the policy sees as one handle until they differ.

Nothing here imports vLLM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import repeat
from operator import attrgetter, is_
from typing import Any

from kvpolicy.eviction.base import UnitMeta

__all__ = ["Run", "Runs", "block_hash_of", "content_key", "content_keys"]


#: What the property `block_hash` of a block gives, without a call of Python's for every block.
block_hash_of = attrgetter("_block_hash")
_ref_cnt = attrgetter("ref_cnt")


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
        """How many blocks from the end, up to `most`, are free and hold their content; the null block never does."""
        blocks, hashes = self.blocks, self.hashes
        if most < len(blocks):
            blocks, hashes = blocks[-most:], hashes[-most:]
        if list(map(block_hash_of, blocks)) == hashes and not any(map(_ref_cnt, blocks)):
            return len(blocks)
        blocks, hashes, count = blocks[:], hashes[:], 0
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


class Runs(dict[bytes, Run]):
    """The runs of one pool, each under all of its contents, and the cutting of them, of which `index` is told."""

    def __init__(self, index: Any) -> None:
        """`index`: an EvictionIndex, or what stands for one."""
        super().__init__()
        self.index = index

    def each(self) -> list[Run]:
        """All runs, parents first: a dict keeps the order of creation."""
        return list(dict.fromkeys(self.values()))

    def cut(self, run: Run, units: int) -> Run:
        """Leave the run its units from that one on, and return the new run of the first `units` above it."""
        upper = run.cut(units)
        self.update(dict.fromkeys(upper.hashes, upper))
        key = content_key(run.hashes[0]) if self.index.needs_content_key else None
        self.index.divide(upper, run, len(run.blocks), key)
        return upper

    def divide(self, run: Run, units: int) -> Run:
        """For the index: leave the run its last `units`."""
        return self.cut(run, len(run.blocks) - units)

    def shatter(self, run: Run) -> None:
        while len(run.blocks) > 1:
            self.cut(run, 1)

    def covered(self, run: Run, blocks: Sequence[Any], at: int) -> tuple[Run, int]:
        """The run of which `blocks[at]` and those after it are the first units, cut to them, and where they end."""
        if run.hashes[0] != blocks[at].block_hash:
            self.cut(run, run.hashes.index(blocks[at].block_hash))
        end = at + len(run.hashes)
        if end > len(blocks) or blocks[end - 1].block_hash != run.hashes[-1]:
            end = at + 1  # as far as they agree; a hash names the whole prefix, so this is rare
            while end < len(blocks) and blocks[end].block_hash == run.hashes[end - at]:
                end += 1
            run = self.cut(run, end - at)
        return run, end

    def covered_from_end(self, run: Run, blocks: Sequence[Any], at: int) -> tuple[Run, int]:
        """The same for blocks in reverse, `blocks[at]` being the last unit. Of contents with copies it is one unit."""
        end = at + len(run.blocks)
        if end <= len(blocks) and all(map(is_, reversed(run.blocks), blocks[at:end])):
            return run, end
        last = run.hashes.index(blocks[at].block_hash)
        first, end = last, at + 1
        while first and end < len(blocks) and run.blocks[first - 1] is blocks[end]:
            first, end = first - 1, end + 1
        if last + 1 < len(run.blocks):
            run = self.cut(run, last + 1)
        if first:
            self.cut(run, first)
        return run, end

    def ending_at(self, block_hash: bytes | None) -> Run | None:
        """The run whose last unit is that content, cut there if need be."""
        run = None if block_hash is None else self.get(block_hash)
        if run is None or block_hash is None or run.hashes[-1] == block_hash:
            return run
        return self.cut(run, run.hashes.index(block_hash) + 1)

    def alone(self, block_hash: bytes) -> Run:
        """That content as a run of its own."""
        run = self.ending_at(block_hash)
        assert run is not None
        if len(run.blocks) > 1:
            self.cut(run, len(run.blocks) - 1)
        return run

    def has_parent(self, run: Run) -> bool:
        """Whether what the run continues is still resident."""
        return run.parent is not None and self.get(run.parent.hashes[-1]) is run.parent

    def enter(self, run: Run) -> None:
        """Put a new run under its contents, of which the first is new; it loses those from the first known one on."""
        holders = list(map(self.setdefault, run.hashes, repeat(run)))  # in one pass: it runs for every block
        if holders.count(run) < len(holders):
            known = next(at for at, holder in enumerate(holders) if holder is not run)
            for block_hash, holder in zip(run.trim(len(holders) - known), holders[known:], strict=True):
                if holder is run:
                    del self[block_hash]

    def forget(self, hashes: Sequence[bytes]) -> None:
        for block_hash in hashes:
            del self[block_hash]


def content_key(block_hash: bytes) -> int:
    """The number of a content, equal on every rank."""
    return int.from_bytes(block_hash[:8], "big")


def content_keys(hashes: Sequence[bytes]) -> list[int]:
    """Those of many. In one piece: it runs for every block."""
    number = int.from_bytes
    return [number(block_hash[:8], "big") for block_hash in hashes]
