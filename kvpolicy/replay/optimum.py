"""The proven most hit tokens of any cache on a small case, as a maximum-weight packing of keep-or-drop intervals.

Keeping a page from one use to the next earns its tokens at the second; between requests at most as many pages are kept
as the pool holds. That is interval scheduling on `capacity` machines, whose linear program has integral corners (the
constraint matrix is an interval matrix, hence totally unimodular), and which a minimum-cost flow along the requests
solves exactly. It asks less than a prefix tree does (a page may be kept without its ancestors), so nothing that evicts
from a tree, by node or by page, with or without knowing the future, hits more.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from kvpolicy.replay.clairvoyant import Paths, TraceRecord

__all__ = ["MAX_INTERVALS", "optimum"]

#: Above this many intervals the flow takes too long to be printed beside a replay.
MAX_INTERVALS = 2000


def optimum(record: TraceRecord, paths: Paths, capacity_tokens: int) -> int | None:
    """The most hit tokens with a pool of ``capacity_tokens``; ``None`` when the case is not small."""
    intervals = _intervals(record, paths)
    if len(intervals) > MAX_INTERVALS:
        return None
    return _pack(intervals, len(paths.kept), capacity_tokens // record.page_tokens)


def _intervals(record: TraceRecord, paths: Paths) -> list[tuple[int, int, int, int]]:
    """(first request, second request, pages, tokens a page earns) of every run between two uses.

    All pages of a run earn a full page's tokens but the last page of a prompt, which may be partly filled.
    """
    last: dict[int, int] = {}
    found: list[tuple[int, int, int, int]] = []
    page_tokens = record.page_tokens
    for at, runs in enumerate(paths.kept):
        asked = paths.asked[at]
        depth = 0
        for place, run in enumerate(runs):
            size = paths.pages[run]
            depth += size
            if place < asked and run in last:
                since = last[run]
                short = max(0, depth * page_tokens - record.input_tokens[at])
                if short:
                    found.append((since, at, 1, page_tokens - short))
                    size -= 1
                if size:
                    found.append((since, at, size, page_tokens))
            last[run] = at
    return found


def _pack(intervals: Sequence[tuple[int, int, int, int]], requests: int, capacity: int) -> int:
    """Most weight of intervals of which at no point more than ``capacity`` overlap: successive shortest paths."""
    graph: list[list[int]] = [[] for _ in range(requests)]
    head: list[int] = []
    room: list[int] = []
    cost: list[int] = []

    def edge(tail: int, to: int, width: int, price: int) -> None:
        for a, b, w, p in ((tail, to, width, price), (to, tail, 0, -price)):
            graph[a].append(len(head))
            head.append(b)
            room.append(w)
            cost.append(p)

    for at in range(requests - 1):
        edge(at, at + 1, capacity, 0)
    for first, second, pages, tokens in intervals:
        edge(first, second, pages, -tokens)
    potential = _longest_first(graph, head, room, cost, requests)
    earned, rest = 0, capacity
    while rest:
        distance = [1 << 62] * requests
        came = [-1] * requests
        distance[0] = 0
        heap = [(0, 0)]
        while heap:
            far, node = heappop(heap)
            if far > distance[node]:
                continue
            for e in graph[node]:
                if room[e]:
                    to = head[e]
                    through = far + cost[e] + potential[node] - potential[to]
                    if through < distance[to]:
                        distance[to], came[to] = through, e
                        heappush(heap, (through, to))
        for node in range(requests):
            potential[node] += distance[node]
        gain = -(potential[requests - 1] - potential[0])
        if gain <= 0:
            break
        width, node = rest, requests - 1
        while node:
            width = min(width, room[came[node]])
            node = head[came[node] ^ 1]
        node = requests - 1
        while node:
            room[came[node]] -= width
            room[came[node] ^ 1] += width
            node = head[came[node] ^ 1]
        earned += gain * width
        rest -= width
    return earned


def _longest_first(
    graph: list[list[int]], head: list[int], room: list[int], cost: list[int], requests: int
) -> list[int]:
    """Shortest distances from the first request; edges go forward in time only, so one sweep is enough."""
    distance = [0] * requests
    for node in range(1, requests):
        distance[node] = 1 << 62
    for node in range(requests):
        for e in graph[node]:
            if room[e] and distance[node] + cost[e] < distance[head[e]]:
                distance[head[e]] = distance[node] + cost[e]
    return distance
