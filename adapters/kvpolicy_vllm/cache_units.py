"""What vLLM's prefix cache holds, as units that a policy can evict: the content of one block each, in a prefix tree.

A unit is a *content*, named by the block's hash. vLLM does not deduplicate: two requests that compute the same tokens
side by side leave two blocks of one hash. Of such copies all but one are *surplus*: evicting one loses nothing, so free
ones go before any unit. A unit with a single resident block is on offer while that block is free and no cached block
continues it; so a parent never goes before its children.

Nothing here imports vLLM. Blocks are its `KVCacheBlock`s: compared by identity, never by `==`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from kvpolicy.eviction.base import RequestInfo, UnitMeta
from kvpolicy.eviction.index import EvictionIndex

__all__ = ["CachedUnits", "Unit"]

_NOBODY = RequestInfo()


class Unit:
    """A handle of the eviction index; the four engine fields are counters kept here, as vLLM has none of them."""

    __slots__ = (
        "block", "children", "copies", "creation_time", "hash", "hit_count", "is_free", "kvp", "last_access_time",
        "parent", "priority",
    )  # fmt: skip

    def __init__(self, block_hash: bytes, block: Any, parent: Unit | None, tick: int, priority: int) -> None:
        self.hash = block_hash  # with the KV cache group's number, as the block carries it
        self.block = block
        self.copies: list[Any] | None = None  # every resident block of this content, where there are several
        self.parent = parent
        self.children = 0  # resident units whose prefix ends here
        self.is_free = False  # its only block has no user
        self.kvp: UnitMeta | None = None
        self.creation_time = self.last_access_time = tick
        self.hit_count = 1  # as SGLang counts: the request that made it, and each one that hit it
        self.priority = priority


class CachedUnits:
    """Every cached content of one block pool, and which of them the index offers.

    `block_tokens` is the size of a block. Not safe against faults: `cache_guard` is.
    """

    def __init__(self, index: EvictionIndex, block_tokens: int) -> None:
        self.index = index
        self.block_tokens = block_tokens
        self.units: dict[bytes, Unit] = {}
        #: Free blocks whose content is resident elsewhere too, by number, oldest first: a dict is slow at its front.
        self.surplus: OrderedDict[int, Any] = OrderedDict()
        self.free_units = 0  # with `is_free`
        self._tick = 0

    # -- what the pool tells --

    def cached(self, blocks: Sequence[Any], start: int, stop: int, info: RequestInfo, prompt_tokens: int) -> None:
        """`blocks[start:stop]` of one request got their hashes; null or skipped blocks among them have none."""
        units, tokens = self.units, self.block_tokens
        stamp = self._stamp if self.index.needs_metadata else None
        priority = info.priority or 0
        parent = units.get(blocks[start - 1].block_hash) if start else None
        self._tick += 1
        for at in range(start, stop):
            block = blocks[at]
            block_hash = block.block_hash
            if block_hash is None:
                parent = None
                continue
            unit = units.get(block_hash)
            if unit is None:
                units[block_hash] = unit = Unit(block_hash, block, parent, self._tick, priority)
                if parent is not None:
                    self._add_child(parent)
                if stamp is not None:
                    depth_tokens = (at + 1) * tokens
                    stamp(unit, parent, info, depth_tokens, depth_tokens > prompt_tokens)
            else:
                self._add_copy(unit, block)
            parent = unit

    def hit(self, blocks: Sequence[Any], info: RequestInfo) -> None:
        """One request's match reached the end of `blocks`: its blocks from the root on, in use now."""
        units, index = self.units, self.index
        path = []
        parent = None
        for block in blocks:
            unit = units.get(block.block_hash)
            if unit is not None:
                if unit.parent is None and parent is not None:  # was adopted, or lost its parent
                    unit.parent = parent
                    self._add_child(parent)
                path.append(unit)
            parent = unit
        for unit in path:  # before rules weigh them against the other members of a budget
            self._tick += 1
            unit.last_access_time = self._tick
        if index.needs_metadata:
            for unit in reversed(path):
                index.touch(unit, info)
        priority = info.priority or 0
        for unit in path:
            unit.hit_count += 1
            if priority > unit.priority:
                unit.priority = priority

    def freed(self, blocks: Sequence[Any]) -> None:
        """The blocks lost their last user, in this order (vLLM frees a request's last block first)."""
        units, add, surplus = self.units, self.index.add, self.surplus
        self._tick += len(blocks)
        tick = self._tick + 1
        for block in blocks:
            tick -= 1  # the end of a request's path is its most recent part, as in a prefix tree
            unit = units.get(block.block_hash)
            if unit is None:
                if block.block_hash is None:  # content of the engine's own; it goes when no unit is left
                    continue
                unit = self._adopt(block)
            unit.last_access_time = tick
            if unit.copies is not None:
                surplus[block.block_id] = block
            else:
                unit.is_free = True
                self.free_units += 1
                if not unit.children:
                    add(unit)

    def taken(self, block: Any) -> None:
        """A free block got a user."""
        if self.surplus and self.surplus.pop(block.block_id, None) is not None:
            return
        unit = self.units.get(block.block_hash)
        if unit is not None and unit.is_free:
            unit.is_free = False
            self.free_units -= 1
            if not unit.children:
                self.index.discard(unit)

    def gone(self, block: Any, block_hash: bytes) -> None:
        """The block's content is no longer cached."""
        unit = self.units.get(block_hash)
        if unit is None:
            return
        if unit.copies is None:
            if unit.block is block and (above := self._remove(unit)) is not None:
                self.index.add(above)
            return
        unit.copies = copies = [copy for copy in unit.copies if copy is not block]
        unit.block = copies[0]
        self.surplus.pop(block.block_id, None)
        if len(copies) == 1:
            unit.copies = None
            if self.surplus.pop(unit.block.block_id, None) is not None:
                unit.is_free = True
                self.free_units += 1
                if not unit.children:
                    self.index.add(unit)

    def dropped(self, blocks: Iterable[tuple[Any, bytes]]) -> None:
        """The engine threw these blocks' contents out, whatever continues them: `(block, hash it had)`."""
        orphans = False
        for block, block_hash in blocks:
            unit = self.units.get(block_hash)
            orphans |= unit is not None and unit.children > 0
            self.gone(block, block_hash)
        if orphans:
            for unit in self.units.values():
                if unit.parent is not None and self.units.get(unit.parent.hash) is not unit.parent:
                    unit.parent = None
                    if unit.kvp is not None:
                        unit.kvp.parent = None

    def victims(self, count: int) -> list[Any]:
        """Up to `count` free blocks whose contents go next; they are no longer units of this cache.

        Every proposal of the policy is checked: free, the only copy, childless, and still holding its content.
        """
        blocks: list[Any] = []
        while self.surplus and len(blocks) < count:
            block = next(iter(self.surplus.values()))
            self.gone(block, block.block_hash)
            blocks.append(block)
        if len(blocks) == count:
            return blocks
        index, tokens, remove = self.index, self.block_tokens, self._remove
        pop, evicted, follow = index.pop, index.evicted, index.follow
        index.begin()
        unit: Any = None
        while len(blocks) < count:
            if unit is None and (unit := pop()) is None:
                break
            block = unit.block
            if not unit.is_free or unit.children or block.ref_cnt or block.is_null or block.block_hash != unit.hash:
                index.discard(unit)
                unit = None
                continue
            meta = unit.kvp
            evicted(unit, tokens, 0 if meta is None else meta.depth_tokens, block.block_id)
            blocks.append(block)
            above = remove(unit)
            unit = above if above is not None and follow(unit, above) else None
        index.end()
        return blocks

    # -- whole --

    def clear(self) -> None:
        """The engine emptied its prefix cache."""
        self.units.clear()
        self.surplus.clear()
        self.free_units = 0
        self.index.reset()

    def rebuild(self, blocks: Iterable[Any], free: Iterable[Any], before: CachedUnits | None = None) -> None:
        """Make this agree with the pool, whatever happened: all its `blocks`, and the `free` ones, first out first.

        Contents not known yet are taken over from `before`, or adopted without a request. vLLM keeps no parents, so an
        adopted unit has none until a request's match passes it; until then its age keeps it behind its children.
        """
        if before is not None:
            self._take_over(before)
        resident: dict[bytes, list[Any]] = {}
        for block in blocks:
            if block.block_hash is not None and not block.is_null:
                resident.setdefault(block.block_hash, []).append(block)
        for unit in [unit for unit in self.units.values() if unit.hash not in resident]:
            del self.units[unit.hash]
            unit.is_free = False
            self.index.remove(unit)
        self.surplus.clear()
        unknown = [copies[0] for block_hash, copies in resident.items() if block_hash not in self.units]
        for block in sorted(unknown, key=self._depth_tokens):  # parents are older than their children
            self._adopt(block)
        for block_hash, copies in resident.items():
            unit = self.units[block_hash]
            unit.block, unit.copies = copies[0], copies if len(copies) > 1 else None
            unit.is_free, unit.children = False, 0
        for unit in self.units.values():
            parent = unit.parent
            if parent is not None and self.units.get(parent.hash) is parent:
                parent.children += 1
            else:
                unit.parent = None
        evictable = []
        for block in free:
            if block.block_hash is None or block.ref_cnt:
                continue
            unit = self.units[block.block_hash]
            self._tick += 1
            unit.last_access_time = self._tick
            if unit.copies is not None:
                self.surplus[block.block_id] = block
            else:
                unit.is_free = True
                if not unit.children:
                    evictable.append(unit)
        self.free_units = sum(unit.is_free for unit in self.units.values())
        self.index.rebuild(evictable)

    def check(self, blocks: Iterable[Any]) -> None:
        """Debug: AssertionError unless this agrees with the pool's `blocks`."""
        resident: dict[bytes, list[Any]] = {}
        for block in blocks:
            if block.block_hash is not None and not block.is_null:
                resident.setdefault(block.block_hash, []).append(block)
        assert resident.keys() == self.units.keys(), "a content without a unit, or a unit without its content"
        children: dict[bytes, int] = {}
        surplus = set()
        for block_hash, copies in resident.items():
            unit = self.units[block_hash]
            assert unit.hash == block_hash
            known = [unit.block] if unit.copies is None else unit.copies
            assert {id(copy) for copy in known} == {id(copy) for copy in copies}, "a copy was missed"
            if len(copies) > 1:
                surplus |= {copy.block_id for copy in copies if not copy.ref_cnt}
            assert unit.is_free == (len(copies) == 1 and not copies[0].ref_cnt), (
                "a unit is free or not, and nobody knows"
            )
            assert (unit in self.index) == (unit.is_free and not unit.children), "a unit wrongly on offer, or not"
            if unit.parent is not None and self.units.get(unit.parent.hash) is unit.parent:
                children[unit.parent.hash] = children.get(unit.parent.hash, 0) + 1
        assert surplus == self.surplus.keys(), "free copies were miscounted"
        assert self.free_units == sum(unit.is_free for unit in self.units.values()), "free units were miscounted"
        for block_hash, unit in self.units.items():
            assert unit.children == children.get(block_hash, 0), "children were miscounted"
        self.index.check()

    # -- inner --

    def _add_child(self, parent: Unit) -> None:
        parent.children += 1
        if parent.is_free and parent.children == 1:
            self.index.discard(parent)

    def _add_copy(self, unit: Unit, block: Any) -> None:
        if unit.copies is None:
            if unit.block is block:
                return
            unit.copies = [unit.block, block]
            if unit.is_free:  # the content is in use again, in another block: this one is spare
                unit.is_free = False
                self.free_units -= 1
                self.index.discard(unit)
                self.surplus[unit.block.block_id] = unit.block
        elif all(copy is not block for copy in unit.copies):
            unit.copies.append(block)

    def _adopt(self, block: Any) -> Unit:
        """A content that was cached without telling us: before the policy came, or by a path of the engine's own."""
        self._tick += 1
        unit = Unit(block.block_hash, block, None, self._tick, 0)
        self.units[block.block_hash] = unit
        if self.index.needs_metadata:
            self._stamp(unit, None, _NOBODY, self._depth_tokens(block), False)
        return unit

    def _depth_tokens(self, block: Any) -> int:
        return block.block_hash_num_tokens or self.block_tokens

    def _take_over(self, before: CachedUnits) -> None:
        """Make another policy's units this one's: parents first, with what was recorded of each."""
        clock, index = before.index.clock, self.index
        index.clock.request_seq, index.clock.now_ms = clock.request_seq, clock.now_ms
        self.units, self._tick = before.units, before._tick
        if index.needs_metadata:
            for unit in self.units.values():  # a dict keeps the order of creation, which is parents first
                old: UnitMeta | None = unit.kvp
                if old is None:
                    self._stamp(unit, unit.parent, _NOBODY, self.block_tokens, False)
                    continue
                info = RequestInfo(old.cache_salt, old.request_priority, old.session_id, old.lora)
                self._stamp(unit, unit.parent, info, old.depth_tokens, old.is_output)
                meta: UnitMeta | None = unit.kvp
                if meta is not None:
                    meta.hits, meta.reuse_gap_s = old.hits, old.reuse_gap_s
                    meta.birth_seq, meta.birth_ms = old.birth_seq, old.birth_ms
                    meta.touch_seq, meta.touch_ms = old.touch_seq, old.touch_ms

    def _stamp(self, unit: Unit, parent: Unit | None, info: RequestInfo, depth_tokens: int, is_output: bool) -> None:
        key = int.from_bytes(unit.hash[:8], "big") if self.index.needs_content_key else None
        self.index.insert(unit, parent, info, self.block_tokens, depth_tokens, is_output, key)

    def _remove(self, unit: Unit) -> Unit | None:
        """Forget the unit; its parent, if that is evictable now."""
        del self.units[unit.hash]
        self.free_units -= unit.is_free
        unit.is_free = False
        self.index.remove(unit)
        parent = unit.parent
        if parent is None:
            return None
        parent.children -= 1
        return parent if parent.is_free and not parent.children else None
