"""Which running requests share a prefix, read off the radix tree itself, and which of it is worth one pass for all.

Every running request holds a node of the tree: the end of what the tree knows of its context. Requests share exactly
the nodes on both their paths to the root, so no token is ever compared. Nodes that are held by the same requests form
one segment; a segment held by several is a group's shared part, and segments nest: requests of one agent share its
instructions, those of one session more.

Attention does not mind in which parts a context is read (the parts are merged by log-sum-exp), so each segment is
judged by itself: worth a pass where reading it once beats reading it for every request, merge included. All together
must then repay what a cascade costs by existing, once a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from kvpolicy.attention.cost import Constants, Heads, Reads, flat_ms

__all__ = ["Group", "Node", "Worth", "by_cost", "by_thresholds", "grouped", "shared_segments", "with_ancestors"]


class Node(Protocol):
    """A node of a radix tree, as far as it is looked at. Nodes are told apart by identity, so an engine that hands out
    ids (SGLang's unified cache) is asked for its nodes first.
    """

    @property
    def parent(self) -> Node | None:
        """None for the root."""


N = TypeVar("N", bound=Node)


@dataclass(frozen=True, slots=True)
class Group(Generic[N]):
    """A segment of the tree ``[start_tokens, end_tokens)`` from the root, and the requests that read all of it."""

    node: N  # the segment's last; its slots are those of the nodes from here up to `start_tokens`
    start_tokens: int
    end_tokens: int
    requests: tuple[int, ...]  # positions in the batch, ascending

    @property
    def tokens(self) -> int:
        return self.end_tokens - self.start_tokens


@dataclass(frozen=True, slots=True)
class Worth:
    """What a pass over a segment saves, in any one unit; a cascade is made where all of it exceeds ``fixed``."""

    saved: Callable[[int, int], float]  # (requests, tokens) -> saving of one segment; not above 0: not worth it
    fixed: float = 0.0


def by_thresholds(min_shared_tokens: int, min_batch: int) -> Worth:
    """The policy's own words: segments of so many tokens that so many requests read."""
    return Worth(lambda requests, tokens: 1.0 if tokens >= min_shared_tokens and requests >= min_batch else 0.0)


def by_cost(constants: Constants, heads: Heads, load: Reads, layers: int) -> Worth:
    """By the cost model, in milliseconds a step over ``layers``.

    Were a cascade made with no group at all, its slower kernel for requests' own tokens would read everything: what
    that costs above the flat kernels is ``fixed``, and a segment saves what it takes from that kernel. Every pass over
    a segment is charged a merge for each of its requests, so one group costs what :func:`estimate` says.
    """
    size = heads.token_bytes / constants.heads.token_bytes
    cascade = constants.cascade

    def saved(requests: int, tokens: int) -> float:
        spared_ns = (cascade.unique_ns - cascade.read_ns) * requests - cascade.shared_ns
        reading_ns = size * spared_ns * tokens
        return layers * (reading_ns - cascade.request_ns * requests) / 1e6

    ungrouped_ms = cascade.launch_us / 1e3 + size * cascade.unique_ns * load.read_tokens / 1e6
    plans_ms = constants.plan_cascade.ms(load) - constants.plan_flat.ms(load)
    return Worth(saved, layers * (ungrouped_ms - min(flat_ms(constants, load, heads))) + plans_ms)


def grouped(segments: Sequence[Group[N]], worth: Worth) -> list[Group[N]]:
    """The segments to read once a group, in the order given; none where all they save does not repay a cascade.

    Savings of segments do not touch each other, so this is the best choice there is under ``worth``.
    """
    savings = [worth.saved(len(segment.requests), segment.tokens) for segment in segments]
    if sum(saving for saving in savings if saving > 0) <= worth.fixed:
        return []
    return [segment for segment, saving in zip(segments, savings, strict=True) if saving > 0]


def with_ancestors(segments: Sequence[Group[N]], chosen: Sequence[Group[N]]) -> list[Group[N]]:
    """``chosen`` and every segment above one of them, in the order of ``segments`` (parents before children).

    What a request has of its own then begins where its groups end, in one piece. A segment above is shared by at least
    as many, so what it costs to read once is little.
    """
    above: dict[int, Group[N]] = {}  # the last segment so far on each request's path
    parents: list[Group[N] | None] = []
    for segment in segments:
        parents.append(above.get(segment.requests[0]))
        above.update(dict.fromkeys(segment.requests, segment))
    wanted = dict.fromkeys(chosen)
    kept = []
    for segment, parent in zip(reversed(segments), reversed(parents), strict=True):
        if segment in wanted:
            kept.append(segment)
            if parent is not None:
                wanted[parent] = None
    return kept[::-1]


def shared_segments(held: Sequence[N | None], tokens_of: Callable[[N], int]) -> list[Group[N]]:
    """All segments that two requests or more read, parents before children.

    ``held``: the last node of each running request, None for one that the tree knows nothing of; ``tokens_of``: tokens
    of a node's own edge (0 for the root). Each node on a path is visited once, however many requests pass it: the work
    is the nodes held and the sizes of the segments. No set is iterated and nothing is ordered by identity: ranks with
    equal trees and batches get equal groups.
    """
    ends: dict[N, list[int]] = {}  # requests that hold the node itself
    children: dict[N, int] = {}  # of a node on some path: those that are on a path too
    for position, node in enumerate(held):
        if node is not None:
            ends.setdefault(node, []).append(position)
            _climb(node, children)
    upwards, members = _members(ends, children)
    start: dict[N, int] = {}  # where the node's segment and the node itself begin and end, from the root
    end: dict[N, int] = {}
    found = []
    for node in reversed(upwards):
        parent = _parent(node)
        above = 0 if parent is None else end[parent]
        end[node] = above + tokens_of(node)
        # Who reads a node reads its parent: as many on both means the same ones.
        goes_on = parent is not None and len(members[parent]) == len(members[node])
        start[node] = start[parent] if goes_on and parent is not None else above
        is_last = children[node] != 1 or node in ends
        if is_last and len(members[node]) > 1 and end[node] > start[node]:
            found.append(Group(node, start[node], end[node], tuple(sorted(members[node]))))
    return found


def _climb(node: N, children: dict[N, int]) -> None:
    """Enter a path into ``children``, as far up as no path before it came."""
    if node in children:
        return
    children[node] = 0
    parent = _parent(node)
    while parent is not None:
        is_known = parent in children
        children[parent] = children.get(parent, 0) + 1
        if is_known:
            return
        parent = _parent(parent)


def _members(ends: dict[N, list[int]], children: dict[N, int]) -> tuple[list[N], dict[N, list[int]]]:
    """(nodes, children before parents; the requests that read each). Nodes of one segment hold one list."""
    waiting = dict(children)
    members: dict[N, list[int]] = {}
    upwards: list[N] = []
    ready = [node for node, count in children.items() if count == 0]
    while ready:
        node = ready.pop()
        upwards.append(node)
        here = ends.get(node, [])
        if children[node]:
            here = members[node] if not here else members[node] + here
        members[node] = here
        parent = _parent(node)
        if parent is None:
            continue
        if children[parent] == 1:
            members[parent] = here
        else:
            members.setdefault(parent, []).extend(here)
        waiting[parent] -= 1
        if waiting[parent] == 0:
            ready.append(parent)
    return upwards, members


def _parent(node: N) -> N | None:
    return node.parent  # type: ignore[return-value]  # nodes of one tree are of one type
