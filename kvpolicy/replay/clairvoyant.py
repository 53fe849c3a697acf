"""What no policy can beat: the infinite cache, and a greedy clairvoyant that evicts the page used farthest from now.

Both work on one record of the whole trace: a tree that never evicts. When the last request is in, its nodes are the
runs of pages that are only ever asked for together: one node stands for all of its pages, resident up to some page.

The clairvoyant evicts single pages, leaves first, and keeps out a page whose next use is farther than that of anything
it would displace. A page's next use is never later than its descendants', so a farthest page is always found among the
leaves, and leaves-first costs nothing: where all pages hold equally many tokens this is Belady's MIN with bypass, hence
the most hit tokens that any policy of either granularity can reach (a node evicted whole is some pages evicted). Where
some pages are partly filled, `optimum.py` has the proven bound.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from heapq import heappop, heappush

from kvpolicy.replay.requests import Request
from kvpolicy.replay.statistics import Histogram
from kvpolicy.replay.tree import Node, PrefixTree

__all__ = ["TraceRecord", "clairvoyant"]

_NEVER = 1 << 60


class TraceRecord:
    """Every request of a trace as a path in a tree that keeps all. Grows with the trace's distinct content."""

    def __init__(self, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self.input_tokens = array("q")
        self.infinite_hit_tokens = array("q")
        self.reuse_gaps = Histogram()  # time since the last use, weighted by tokens
        self._tree = PrefixTree(None)
        self._asked: list[Node] = []  # end of what each request could reuse
        self._kept: list[Node] = []  # end of what each request leaves behind

    def add(self, request: Request, reusable: int, full: Sequence[Hashable]) -> None:
        """Record one request; arguments as for `Simulator.request`."""
        tree = self._tree
        root = tree.root((request.info.cache_salt, request.info.lora))
        path, at = tree.descend(root, full, 0, reusable)
        for node in path:
            self.reuse_gaps.add(max(0, request.arrival_ms - node.touch_ms), node.pages * self.page_tokens)
            node.touch_ms = request.arrival_ms
        self.input_tokens.append(request.input_tokens)
        self.infinite_hit_tokens.append(min(at * self.page_tokens, request.input_tokens))
        end = path[-1] if path else root
        if at < reusable:
            end = tree.extend(end, full[at:reusable], request.arrival_ms, 0)[-1]
            at = reusable
        self._asked.append(end)
        path, at = tree.descend(end, full, at, len(full))
        end = path[-1] if path else end
        if at < len(full):
            end = tree.extend(end, full[at:], request.arrival_ms, 0)[-1]
        self._kept.append(end)

    @property
    def distinct_pages(self) -> int:
        return self._tree.pages

    def paths(self) -> Paths:
        """The record as plain numbers, final: later splits would change the runs."""
        return Paths(self._tree, self._asked, self._kept)


class Paths:
    """Runs by number, parents before children; per request the path of runs, and when each is asked for next."""

    def __init__(self, tree: PrefixTree, asked: list[Node], kept: list[Node]) -> None:
        number: dict[Node, int] = {}
        self.pages: list[int] = []
        self.parent: list[int] = []

        def path_of(end: Node) -> list[int]:
            nodes = []
            node: Node | None = end
            while node is not None and node.parent is not None:
                nodes.append(node)
                node = node.parent
            above = -1
            runs = []
            for node in reversed(nodes):
                run = number.get(node)
                if run is None:
                    run = number[node] = len(self.pages)
                    self.pages.append(node.pages)
                    self.parent.append(above)
                runs.append(run)
                above = run
            return runs

        self.asked = [len(path_of(end)) for end in asked]  # runs at the front of `kept` that the request could reuse
        self.kept = [array("q", path_of(end)) for end in kept]
        self.next_use = [array("q") for _ in kept]
        following = [_NEVER] * len(self.pages)
        for at in range(len(kept) - 1, -1, -1):
            runs = self.kept[at]
            self.next_use[at] = array("q", [following[run] for run in runs])
            for run in runs[: self.asked[at]]:
                following[run] = at


def clairvoyant(record: TraceRecord, paths: Paths, capacity_tokens: int) -> array[int]:
    """Hit tokens of each request under the greedy clairvoyant with a pool of ``capacity_tokens``."""
    page_tokens, capacity = record.page_tokens, capacity_tokens // record.page_tokens
    size, parent = paths.pages, paths.parent
    resident = [0] * len(size)  # pages of each run, from its front
    children = [0] * len(size)  # runs below with anything resident
    key = [_NEVER] * len(size)  # next use
    stamp = [-1] * len(size)  # the request that protects the run while it is inserted
    heap: list[tuple[int, int]] = []  # (-next use, -run); an entry is stale when the key moved or the run is no leaf
    used = 0
    hits = array("q")
    for at, runs in enumerate(paths.kept):
        uses, asked = paths.next_use[at], paths.asked[at]
        matched = 0
        for place in range(asked):
            run = runs[place]
            if not resident[run]:
                break
            matched += resident[run]
            key[run] = uses[place]
            if resident[run] < size[run]:
                break
        hits.append(min(matched * page_tokens, record.input_tokens[at]))
        last = -1
        for run in runs:
            if not resident[run]:
                break
            stamp[run] = at
            last = run
        for place, run in enumerate(runs):
            missing = size[run] - resident[run]
            if not missing:
                continue
            key[run] = uses[place]
            above = parent[run]
            stuck = False
            while missing:
                take = min(missing, capacity - used)
                if not take:
                    freed = _evict(heap, key, resident, children, stamp, at, uses[place], missing, parent)
                    if not freed:
                        stuck = True
                        break
                    used -= freed
                    continue
                if not resident[run] and above >= 0:
                    children[above] += 1
                resident[run] += take
                stamp[run] = at
                last = run
                used += take
                missing -= take
            if stuck:
                break
        if last >= 0 and not children[last]:
            heappush(heap, (-key[last], -last))
    return hits


def _evict(
    heap: list[tuple[int, int]],
    key: list[int],
    resident: list[int],
    children: list[int],
    stamp: list[int],
    now: int,
    wanted_use: int,
    pages: int,
    parent: list[int],
) -> int:
    """Free up to ``pages`` pages at the tail of the leaf used last, if that is after ``wanted_use``; how many."""
    while heap:
        negative, minus = heap[0]
        run = -minus
        if not resident[run] or children[run] or key[run] != -negative or stamp[run] == now:
            heappop(heap)  # a run of the current path is pushed again when the request is through
            continue
        if key[run] <= wanted_use:
            return 0
        freed = min(pages, resident[run])
        resident[run] -= freed
        if not resident[run]:
            heappop(heap)
            above = parent[run]
            if above >= 0:
                children[above] -= 1
                if not children[above] and resident[above] and stamp[above] != now:
                    heappush(heap, (-key[above], -above))
        return freed
    return 0
