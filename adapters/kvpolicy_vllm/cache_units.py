"""What vLLM's prefix cache holds, as units that a policy can evict: the content of one block each, in a prefix tree.

A unit is a *content*, named by the block's hash. vLLM does not deduplicate: two requests that compute the same tokens
side by side leave two blocks of one hash. Of such copies all but one are *surplus*: evicting one loses nothing, so free
ones go before any unit. A unit with a single resident block is on offer while that block is free and no cached block
continues it; so a parent never goes before its children.

What one request cached at once is one *run*, a single handle of the index: its units are in use, free and hit together,
and go from the end. A run is cut where that is no longer so.

Nothing here imports vLLM. Blocks are its `KVCacheBlock`s: compared by identity, never by `==`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from kvpolicy.eviction.base import RequestInfo
from kvpolicy.eviction.index import EvictionIndex

from .cache_runs import Run, Runs, block_hash_of, content_key, content_keys

__all__ = ["CachedUnits"]

_NOBODY = RequestInfo()
_block_id = attrgetter("block_id")


class CachedUnits:
    """Every cached content of one block pool, and which of them the index offers.

    `block_tokens` is the size of a block. Not safe against faults: `cache_guard` is.
    """

    def __init__(self, index: EvictionIndex, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.runs = Runs(index)
        #: Free blocks whose content is resident elsewhere too, by number, oldest first: a dict is slow at its front.
        self.surplus: OrderedDict[int, Any] = OrderedDict()
        self._tick = 0
        self.use(index)

    def use(self, index: Any) -> None:
        """Tell `index` from now on: an :class:`EvictionIndex`, or what stands for one during a swap and after it."""
        self.index = self.runs.index = index
        index.divider = self.runs.divide
        # What holds as long as it is told: asked for once.
        self._needs_events, self._needs_content_key = index.needs_events, index.needs_content_key
        self._takes_runs, self._names_units = index.takes_runs, index.names_units

    # -- what the pool tells --

    def cached(self, blocks: Sequence[Any], start: int, stop: int, info: RequestInfo, prompt_tokens: int) -> None:
        """`blocks[start:stop]` of one request got their hashes; null or skipped blocks among them have none."""
        runs, index = self.runs, self.index
        cached = list(blocks[start:stop])
        hashes = list(map(block_hash_of, cached))
        prompt_end = prompt_tokens // self.block_tokens  # output begins with the block that holds its first token
        above = blocks[start - 1].block_hash if start else None
        at = start
        while at < stop:
            block_hash = hashes[at - start]
            if block_hash is None or block_hash in runs:
                if block_hash is not None:
                    self._add_copy(block_hash, cached[at - start])
                above = block_hash
                at += 1
                continue
            is_output = at >= prompt_end
            end = (stop if is_output else min(stop, prompt_end)) - start
            new = hashes[at - start : end]
            if None in new:
                del new[new.index(None) :]
            keys: Sequence[int] = ()
            if not self._takes_runs:
                del new[1:]
            elif self._names_units and len(new) > 1:
                keys = content_keys(new)
                del new[index.alike(keys) :]
            self._tick += len(new)
            own = cached[at - start : at - start + len(new)]
            run = Run(new, own, runs.ending_at(above), self._tick, info.priority or 0)
            runs.enter(run)
            if run.parent is not None:
                self._add_child(run.parent)
            at, above = at + len(new), new[-1]
            if self._needs_events:
                self._stamp(run, info, at * self.block_tokens, is_output, keys[1 : len(new)])

    def hit(self, blocks: Sequence[Any], info: RequestInfo) -> None:
        """One request's match reached the end of `blocks`: its blocks from the root on, in use now."""
        path, parent, at = [], None, 0
        while at < len(blocks):
            run = self.runs.get(blocks[at].block_hash)
            if run is None:
                at += 1
            else:
                run, at = self.runs.covered(run, blocks, at)
                if run.parent is None and parent is not None:  # was adopted, or lost its parent
                    run.parent = parent
                    self._add_child(parent)
                path.append(run)
            parent = run
        for run in path:  # before rules weigh them against the other members of a budget
            self._tick += len(run.blocks)
            run.last_access_time = self._tick
        used = []
        for run in reversed(path):
            parent = run.parent
            self.index.touch(run, info)
            used += run.up_to(parent)  # rules may have divided it
        priority = info.priority or 0
        for run in used:
            run.hit_count += 1
            if priority > run.priority:
                run.priority = priority

    def freed(self, blocks: Sequence[Any]) -> None:
        """The blocks lost their last user, in this order (vLLM frees a request's last block first)."""
        self._tick += len(blocks)
        tick, at = self._tick, 0  # the end of a request's path is its most recent part, as in a prefix tree
        while at < len(blocks):
            block = blocks[at]
            run = self.runs.get(block.block_hash)
            if run is None:
                if block.block_hash is None:  # content of the engine's own; it goes when no unit is left
                    at += 1
                    continue
                run = self._adopt(block)
            if run.copies is not None:
                run.last_access_time = tick - at
                self.surplus[block.block_id] = block
                at += 1
                continue
            run, end = self.runs.covered_from_end(run, blocks, at)
            run.last_access_time = tick - at
            run.is_free = True
            if not run.children:
                self.index.add(run)
            at = end

    def taken(self, *blocks: Any) -> None:
        """Free blocks got a user, those of one request in the order of its prompt; others among them had one."""
        at = 0
        while at < len(blocks):
            block = blocks[at]
            run = self.runs.get(block.block_hash)
            if run is None or not run.is_free:  # in use, or a copy to spare
                self.surplus.pop(block.block_id, None)
                at += 1
                continue
            run, at = self.runs.covered(run, blocks, at)
            run.is_free = False
            if not run.children:
                self.index.discard(run)

    def gone(self, block: Any, block_hash: bytes) -> None:
        """The block's content is no longer cached."""
        if block_hash not in self.runs:
            return
        unit = self.runs.alone(block_hash)
        if unit.copies is None:
            if unit.blocks[0] is block and (above := self._remove(unit)) is not None:
                self.index.add(above)
            return
        unit.copies = copies = [copy for copy in unit.copies if copy is not block]
        unit.blocks[0] = copies[0]
        self.surplus.pop(block.block_id, None)
        if len(copies) == 1:
            unit.copies = None
            if self.surplus.pop(copies[0].block_id, None) is not None:
                unit.is_free = True
                if not unit.children:
                    self.index.add(unit)

    def dropped(self, blocks: Iterable[tuple[Any, bytes]]) -> None:
        """The engine threw these blocks' contents out, whatever continues them: `(block, hash it had)`."""
        orphans = False
        for block, block_hash in blocks:
            orphans |= block_hash in self.runs and self.runs.alone(block_hash).children > 0
            self.gone(block, block_hash)
        if orphans:
            for run in self.runs.each():
                if not self.runs.has_parent(run):
                    run.parent = None
                    self.index.orphaned(run)

    def victims(self, count: int, ahead: int = 0) -> list[Any]:
        """Up to `count` free blocks whose contents go next; they are no longer units of this cache. Up to `ahead` more
        follow, as long as no rule and no floor protects what goes.

        Every proposal of the policy is checked: free, the only copy, childless, and still holding its content.
        """
        blocks: list[Any] = []
        while self.surplus and len(blocks) < count:
            block = next(iter(self.surplus.values()))
            self.gone(block, block.block_hash)
            blocks.append(block)
        if len(blocks) == count and not ahead:
            return blocks
        index = self.index
        index.begin()
        run: Any = None
        total = count + ahead
        while len(blocks) < total:
            if run is None and (run := index.pop()) is None:
                break
            if len(blocks) >= count and index.is_protected(run):
                break
            most = min(len(run.blocks), total - len(blocks))
            units = 0 if run.children or not run.is_free else run.count_evictable(index.sweep(run, most))
            if not units:
                index.discard(run)
                run = None
                continue
            is_whole = units == len(run.blocks)
            going = run.blocks[::-1] if is_whole else run.blocks[: -units - 1 : -1]
            index.evicted(run, units * self.block_tokens, None, sum(map(_block_id, going)), units)
            if index.ghosts is not None:
                index.ghosts.name(content_keys(run.hashes if is_whole else run.hashes[-units:]))
            blocks += going
            if is_whole:
                above = self._remove(run)
                run = above if above is not None and index.follow(run, above) else None
            else:
                self._trim(run, units)
                if len(blocks) < total:
                    index.reoffer(run)
                run = None
        index.end()
        return blocks

    def free_units(self) -> int:
        """Contents that nobody uses, copies to spare included."""
        return len(self.surplus) + sum(len(run.blocks) for run in self.runs.each() if run.is_free)

    def found(self, block: Any, tick: int) -> Run | None:
        """A block with content that was there before this; the run if it is a new one. Repeating it does no harm.

        `tick` is its age, below those of all that happened since.
        """
        if block.block_hash not in self.runs:
            run = self._adopt(block)
            run.last_access_time, run.is_free = tick, not block.ref_cnt
            return run
        self._add_copy(block.block_hash, block)
        if self.runs[block.block_hash].copies is not None and not block.ref_cnt:
            self.surplus[block.block_id] = block
        return None

    def leave_room_for_age(self, ticks: int) -> None:
        """Let what happens from now on be younger than that many blocks found."""
        self._tick += ticks

    # -- whole --

    def clear(self) -> None:
        """The engine emptied its prefix cache."""
        self.runs.clear()
        self.surplus.clear()
        self.index.reset()

    def rebuild(self, blocks: Iterable[Any], free: Iterable[Any]) -> None:
        """Make this agree with the pool, whatever happened: all its `blocks`, and the `free` ones, first out first.

        Contents not known yet are adopted without a request. vLLM keeps no parents, so an adopted unit has none until
        a request's match passes it; until then its age keeps it behind its children.
        """
        resident = _by_content(blocks)
        free = [block for block in free if block.block_hash is not None and not block.ref_cnt]
        free_ids = {block.block_id for block in free}
        for run in self.runs.each():
            if not run.is_whole(resident, free_ids):
                self.runs.shatter(run)
        for run in self.runs.each():
            if run.hashes[0] not in resident:
                self.runs.forget(run.hashes)
                run.is_free = False
                self.index.remove(run)
        self.surplus.clear()
        unknown = [copies[0] for block_hash, copies in resident.items() if block_hash not in self.runs]
        for block in sorted(unknown, key=self.depth_tokens):  # parents are older than their children
            self._adopt(block)
        for run in self.runs.each():
            run.is_free, run.children = False, 0
            if len(run.blocks) == 1:
                copies = resident[run.hashes[0]]
                run.blocks[0], run.copies = copies[0], copies if len(copies) > 1 else None
        for run in self.runs.each():
            if self.runs.has_parent(run):
                run.parent.children += 1
            else:
                run.parent = None
        evictable: dict[Run, None] = {}
        for block in free:
            run = self.runs[block.block_hash]
            self._tick += 1
            run.last_access_time = self._tick
            if run.copies is not None:
                self.surplus[block.block_id] = block
            else:
                run.is_free = True
                if not run.children:
                    evictable[run] = None
        self.index.rebuild(evictable)

    def check(self, blocks: Iterable[Any], *, is_off: bool = False) -> None:
        """Debug: AssertionError unless this agrees with the pool's `blocks`; `is_off`: and offers nothing."""
        resident = _by_content(blocks)
        assert resident.keys() == self.runs.keys(), "a content without a unit, or a unit without its content"
        children: dict[Run, int] = {}
        surplus = set()
        for run in self.runs.each():
            assert all(self.runs[block_hash] is run for block_hash in run.hashes), "a content in another run"
            meta = self.index.meta(run)
            assert meta is None or meta.units == len(run.blocks), "a run longer or shorter than the index thinks"
            for block_hash, block in zip(run.hashes, run.blocks, strict=True):
                copies = resident[block_hash]
                known = [block] if run.copies is None else run.copies
                assert {id(copy) for copy in known} == {id(copy) for copy in copies}, "a copy was missed"
                if len(copies) > 1:
                    surplus |= {copy.block_id for copy in copies if not copy.ref_cnt}
                is_free = len(copies) == 1 and not copies[0].ref_cnt
                assert run.is_free == is_free, "a unit is free or not, and nobody knows"
            is_evictable = run.is_free and not run.children and not is_off
            assert (run in self.index) == is_evictable, "a unit wrongly on offer, or not"
            if self.runs.has_parent(run):
                children[run.parent] = children.get(run.parent, 0) + 1
        assert surplus == self.surplus.keys(), "free copies were miscounted"
        for run in self.runs.each():
            assert run.children == children.get(run, 0), "children were miscounted"
        self.index.check()

    # -- inner --

    def _add_child(self, parent: Run) -> None:
        parent.children += 1
        if parent.is_free and parent.children == 1:
            self.index.discard(parent)

    def _add_copy(self, block_hash: bytes, block: Any) -> None:
        run = self.runs[block_hash]
        if run.copies is None:
            if run.blocks[run.hashes.index(block_hash)] is block:
                return
            unit = self.runs.alone(block_hash)
            unit.copies = [unit.blocks[0], block]
            if unit.is_free:  # the content is in use again, in another block: this one is spare
                unit.is_free = False
                self.index.discard(unit)
                self.surplus[unit.blocks[0].block_id] = unit.blocks[0]
        elif all(copy is not block for copy in run.copies):
            run.copies.append(block)

    def _adopt(self, block: Any) -> Run:
        """A content that was cached without telling us: before the policy came, or by a path of the engine's own."""
        self._tick += 1
        run = Run([block.block_hash], [block], None, self._tick, 0)
        self.runs[block.block_hash] = run
        if self._needs_events:
            self._stamp(run, _NOBODY, self.depth_tokens(block), False, ())
        return run

    def depth_tokens(self, block: Any) -> int:
        """From the root to the block's end, as far as vLLM says."""
        return block.block_hash_num_tokens or self.block_tokens

    def _stamp(self, run: Run, info: RequestInfo, depth_tokens: int, is_output: bool, following: Sequence[int]) -> None:
        index = self.index
        key = content_key(run.hashes[0]) if self._needs_content_key else None
        if not following and index.ghosts is not None and key in index.ghosts.contents:
            following = content_keys(run.hashes[1:])
        index.insert(run, run.parent, info, self.block_tokens, depth_tokens, is_output, key, len(run.blocks), following)

    def _trim(self, run: Run, units: int) -> None:
        """Forget the last `units`, not all of them."""
        going = run.trim(units)
        self.runs.forget(going)
        self.index.trim(run, units, content_key(going[0]) if self._needs_content_key else None)

    def _remove(self, run: Run) -> Run | None:
        """Forget the run; its parent, if that is evictable now."""
        self.runs.forget(run.hashes)
        run.is_free = False
        self.index.remove(run)
        parent = run.parent
        if parent is None:
            return None
        parent.children -= 1
        return parent if parent.is_free and not parent.children else None


def _by_content(blocks: Iterable[Any]) -> dict[bytes, list[Any]]:
    """The resident blocks of each content."""
    resident: dict[bytes, list[Any]] = {}
    for block in blocks:
        if block.block_hash is not None and not block.is_null:
            resident.setdefault(block.block_hash, []).append(block)
    return resident
