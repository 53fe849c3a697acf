"""One policy, one capacity: the engines' sequence of calls (match, lock, evict, insert, unlock) on a prefix tree.

The policy is the compiled object that the engines run, and the index is theirs too; nothing here decides a victim.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import cast

from kvpolicy.eviction import EvictionIndex, RequestInfo
from kvpolicy.eviction.watermark import Watermark
from kvpolicy.replay.pages import number_of
from kvpolicy.replay.requests import Request
from kvpolicy.replay.statistics import RunStatistics
from kvpolicy.replay.tree import Node, PrefixTree

__all__ = ["GRANULARITIES", "Eviction", "Simulator"]

_UNBOUNDED_TOKENS = 1 << 60

#: granularity -> largest node in pages
GRANULARITIES: dict[str, int | None] = {"node": None, "page": 1}


@dataclass(frozen=True, slots=True)
class Eviction:
    """What a run takes from a compiled policy."""

    name: str
    make_index: Callable[[int], EvictionIndex]  # pool tokens -> a fresh index
    needs_metadata: bool = True
    watermark: tuple[float, float] | None = None  # shares of the pool: free below the first evicts up to the second


class Simulator:
    """Replays requests one after the other. ``capacity_tokens`` ``None`` is the infinite cache; ``exact_tokens`` says
    that the trace knows real tokens, so that the room a request takes while it runs is the engine's. Where they come as
    hashes all the same, ``has_prefix_hashes``: a page names all that comes before it. ``ahead_pages``: what a running
    request claims beyond the tokens it computes; vLLM nothing."""

    def __init__(
        self,
        eviction: Eviction,
        capacity_tokens: int | None,
        page_tokens: int,
        granularity: str = "node",
        *,
        hold_running: bool = False,
        exact_tokens: bool = False,
        has_prefix_hashes: bool | None = None,
        ahead_pages: int = 1,
    ) -> None:
        self.eviction = eviction
        self.page_tokens = page_tokens
        self.capacity_pages: int | None = None if capacity_tokens is None else capacity_tokens // page_tokens
        self._metadata = eviction.needs_metadata
        self.index = eviction.make_index(capacity_tokens or _UNBOUNDED_TOKENS)
        self.tree = PrefixTree(GRANULARITIES[granularity], self._was_split)
        self.stats = RunStatistics()
        self.watermark: Watermark | None = None
        if eviction.watermark is not None and self.capacity_pages is not None:
            self.watermark = Watermark.of_pool(*eviction.watermark, self.capacity_pages)
        self._hold_running = hold_running
        self._exact_tokens = exact_tokens
        self._has_hashes = not exact_tokens if has_prefix_hashes is None else has_prefix_hashes
        self._ahead_pages = ahead_pages
        self._running: list[tuple[int, int, Node]] = []  # (end in ms, order, end of the locked path)

    def request(self, request: Request, pages: Sequence[Hashable], reusable: int, full: Sequence[Hashable]) -> int:
        """Serve one request: its hit tokens.

        ``pages`` are the prompt's, of which the first ``reusable`` may come from the cache; ``full`` those of prompt
        and output. The order of calls is the engines': the hit is counted and admission decided after the prefill.
        """
        index, tree, stats, info, page_tokens = self.index, self.tree, self.stats, request.info, self.page_tokens
        index.clock.arrive(request.arrival_ms)
        now_ms = index.clock.now_ms
        if self._running:
            self._finish_until(now_ms)
        root = tree.root((info.cache_salt, info.lora))
        path, matched = tree.descend(root, pages, 0, reusable)
        held = path[-1] if path else root
        self._lock(held)
        room = self._make_prefill_room(request, len(full), matched)
        self._count_reuse(path, now_ms)
        if self._metadata:
            self._freshen(path)  # before rules weigh it against the other members of a budget
            for node in reversed(path):
                index.touch(node, info)
        depth, new = len(pages) * page_tokens, (len(pages) - matched) * page_tokens
        private = 0  # pages that the request holds outside the tree
        if not self._metadata or index.admit(info, depth, new):
            at = self._cache(root, path, full, matched, len(pages), room, request)
            room -= at - matched
        else:
            self._bring_up(path)
            private = len(pages) - matched
            at = -1
            stats.refused_tokens += (len(full) - matched) * page_tokens
        held = self._hold(held, path)
        if self._exact_tokens and request.output_tokens:
            room = self._make_room_by_steps(private, request)
        if at == len(pages) < len(full):
            self._cache(root, path, full, at, len(full), room, request, is_output=True)
            held = self._hold(held, path)
        if self._hold_running and request.duration_ms:
            heapq.heappush(self._running, (request.arrival_ms + request.duration_ms, index.clock.request_seq, held))
        else:
            self._unlock(held)
        hit_tokens = min(matched * page_tokens, request.input_tokens)
        stats.hit_tokens.append(hit_tokens)
        stats.touched_pages += len(pages)
        return hit_tokens

    def check(self) -> None:
        """Debug: the tree is sound and the pool was never over-committed."""
        self.tree.check()
        assert self.capacity_pages is None or self.tree.pages <= self.capacity_pages, (
            "more resident than the pool holds"
        )

    # -- room --

    def _make_prefill_room(self, request: Request, full_pages: int, matched: int) -> int:
        """Make the room that must be free before the prompt can run: of hash rows, for all the request leaves behind.

        Of real tokens, what SGLang asks for (mem_cache/allocation.py): the tokens to compute, one page more where pages
        hold several, and the first decode step, which the overlap scheduler prepares before it sees the prefill's end.
        """
        if not self._exact_tokens:
            return self._make_room(full_pages - matched)
        page = self.page_tokens
        new = request.input_tokens - matched * page
        if page > 1:
            return self._make_room(-(-new // page) + self._ahead_pages)
        room = self._make_room(new)
        return self._make_room(new + 1) if request.output_tokens else room

    def _make_room_by_steps(self, private: int, request: Request) -> int:
        """Make the room that must be free beside the cached prompt and ``private`` pages, decode step by decode step,
        the step prepared ahead too."""
        page, tokens = self.page_tokens, request.input_tokens
        cached = tokens // page
        need = private - (-tokens // page) - cached + self._ahead_pages
        last = private - (-(tokens + request.output_tokens - 1) // page) - cached + self._ahead_pages
        if self.watermark is None:
            return self._make_room(last)
        room = self._make_room(need)
        while need < last:
            need = min(last, max(need, room - self.watermark.low_pages) + 1)  # the steps in between leave `low` free
            room = self._make_room(need)
        return room

    def _make_room(self, need: int) -> int:
        """Evict until ``need`` pages are free, or as many as can be; the free pages."""
        if self.capacity_pages is None:
            return need
        free = self.capacity_pages - self.tree.pages
        lacking = max(0, need - free)
        demand = lacking
        if self.watermark is not None:
            demand = self.watermark.demand_pages(free, need, self.tree.pages)
        if not demand:
            return free
        evicted = self._evict(demand, lacking)
        if self.watermark is not None:
            self.watermark.note(evicted, lacking)
        return free + evicted

    def _evict(self, pages: int, needed_pages: int) -> int:
        """Evict until ``pages`` are freed, beyond ``needed_pages`` only what nothing protects. The pages freed."""
        index, tree, stats, page_tokens = self.index, self.tree, self.stats, self.page_tokens
        pop, follow = cast("Callable[[], Node | None]", index.pop), index.follow
        is_protected = index.is_protected
        evicted, remove, cut = index.evicted, index.remove, tree.remove
        now_ms = index.clock.now_ms
        idle = stats.idle_at_eviction.add
        started = perf_counter()
        freed, victims, last_ms, last_tokens = 0, 0, -1, 0
        index.begin()
        victim = pop()
        while victim is not None:
            if freed >= needed_pages and is_protected(victim):
                break
            size = victim.pages * page_tokens
            freed += victim.pages
            victims += 1
            if victim.touch_ms != last_ms:
                if last_tokens:
                    idle(now_ms - last_ms, last_tokens)
                last_ms, last_tokens = victim.touch_ms, 0
            last_tokens += size
            parent = cut(victim)
            evicted(victim, size, victim.kvp.depth_tokens if victim.kvp is not None else 0)
            remove(victim)
            is_leaf = not parent.children and not parent.lock and parent.parent is not None
            is_next = is_leaf and follow(victim, parent)
            if freed >= pages:
                break
            victim = parent if is_next else pop()
        index.end()
        if last_tokens:
            idle(now_ms - last_ms, last_tokens)
        stats.evict_s += perf_counter() - started
        stats.evict_calls += 1
        stats.victims += victims
        stats.evicted_tokens += freed * page_tokens
        return freed

    # -- nodes --

    def _cache(
        self,
        root: Node,
        path: list[Node],
        full: Sequence[Hashable],
        start: int,
        stop: int,
        room: int,
        request: Request,
        is_output: bool = False,
    ) -> int:
        """Make ``full[start:stop]`` resident below ``path``, which grows by it; where it ends, for want of room maybe
        earlier. What is resident already, though it was not reusable, is not kept twice."""
        tree, index, stats = self.tree, self.index, self.stats
        page_tokens, info, now_ms = self.page_tokens, request.info, self.index.clock.now_ms
        parent = path[-1] if path else root
        more, at = tree.descend(parent, full, start, stop)
        self._bring_up(more if is_output else path + more)
        path += more
        fits = min(stop, at + room)
        stats.truncated_tokens += (stop - fits) * page_tokens
        if fits <= at:
            return at
        parent = path[-1] if path else root
        if not parent.children and not parent.lock:
            index.discard(parent)  # a leaf beyond the locked path gets a child
        end = at
        for node in tree.extend(parent, full[at:fits], now_ms, info.priority or 0):
            node.hit_count = 1
            end += node.pages
            if self._metadata:
                above = None if parent is root else parent
                key = self._content_key(info, above, full, end - node.pages) if index.needs_content_key else None
                index.insert(node, above, info, node.pages * page_tokens, end * page_tokens, is_output, key)
            path.append(node)
            parent = node
        return fits

    def _content_key(self, info: RequestInfo, above: Node | None, full: Sequence[Hashable], at: int) -> int:
        """What a unit that begins with page ``at`` is known by: its namespace and all pages up to there. Pages are
        numbers, or tuples of them, so it is equal in every run."""
        prefix: Hashable
        if self._has_hashes:
            prefix = full[at]
        elif above is not None and above.kvp is not None and self.tree.max_node_pages == 1:
            prefix = (above.kvp.content_key, full[at])
        else:
            prefix = tuple(full[: at + 1])
        if info.cache_salt is not None or info.lora is not None:
            prefix = (number_of(repr((info.cache_salt, info.lora))), prefix)
        return hash(prefix)

    def _was_split(self, upper: Node, lower: Node) -> None:
        if self._metadata:
            self.index.split(upper, lower, upper.pages * self.page_tokens)
        elif not lower.children and not lower.lock:
            self.index.touched(lower)

    def _bring_up(self, path: list[Node]) -> None:
        """The path is the most recent one, and was used once more."""
        self._freshen(path)
        for node in path:
            node.hit_count += 1

    def _freshen(self, path: list[Node]) -> None:
        """The path is the most recent one, its end more recent than its top."""
        tick = self.tree.ticks
        for node in path:
            tick += 1.0
            node.last_access_time = tick
        self.tree.ticks = tick

    def _count_reuse(self, path: list[Node], now_ms: int) -> None:
        last_ms, pages, add = -1, 0, self.stats.reuse_gap.add
        for node in path:
            if node.touch_ms != last_ms:
                if pages:
                    add(now_ms - last_ms, pages * self.page_tokens)
                last_ms, pages = node.touch_ms, 0
            pages += node.pages
            node.touch_ms = now_ms
        if pages:
            add(now_ms - last_ms, pages * self.page_tokens)

    # -- locks --

    def _hold(self, held: Node, path: list[Node]) -> Node:
        """Move the lock to the path's end; the node that carries it."""
        end = path[-1] if path else held
        if end is not held:
            self._lock(end)
            self._unlock(held)
        return end

    def _lock(self, node: Node) -> None:
        node.lock += 1
        if node.lock == 1 and node.parent is not None and not node.children:
            self.index.discard(node)

    def _unlock(self, node: Node) -> None:
        node.lock -= 1
        if not node.lock and node.parent is not None and not node.children:
            self.index.add(node)

    def _finish_until(self, now_ms: int) -> None:
        while self._running and self._running[0][0] <= now_ms:
            self._unlock(heapq.heappop(self._running)[2])
