"""A page-aligned prefix tree whose leaves are the units of eviction.

``node`` granularity is SGLang's radix tree: a new suffix is one node, split where a later request diverges, and
evicted whole. ``page`` granularity is the same tree with nodes of one page each, as vLLM's blocks and most simulators
have it. Of a locked path only the end carries the lock: its ancestors have a child, and only leaves are evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice

from kvpolicy.eviction.base import UnitMeta

__all__ = ["Node", "PrefixTree", "common_prefix"]


class Node:
    """A run of pages, and the handle that the eviction index sees.

    ``last_access_time``, ``creation_time``, ``hit_count`` and ``priority`` are what SGLang keeps under these names; the
    times are a counter, not seconds.
    """

    __slots__ = (
        "birth_ms",
        "children",
        "creation_time",
        "hit_count",
        "key",
        "kvp",
        "last_access_time",
        "lock",
        "pages",
        "parent",
        "priority",
        "touch_ms",
    )

    def __init__(self, key: Sequence[Hashable], parent: Node | None, tick: float, now_ms: int, priority: int) -> None:
        self.key = key
        self.pages = len(key)
        self.parent = parent
        self.children: dict[Hashable, Node] = {}
        self.lock = 0  # running requests that end here
        self.kvp: UnitMeta | None = None
        self.last_access_time = tick
        self.creation_time = tick
        self.hit_count = 0
        self.priority = priority
        self.birth_ms = self.touch_ms = now_ms

    def __lt__(self, other: Node) -> bool:
        """SGLang's tie-break, for orders that compare handles."""
        return self.last_access_time < other.last_access_time


class PrefixTree:
    """The resident pages. It knows nothing of policies; the simulator tells the index what changes."""

    def __init__(self, max_node_pages: int | None, on_split: Callable[[Node, Node], None] | None = None) -> None:
        self.max_node_pages = max_node_pages
        self.on_split = on_split  # (upper, lower), after a cut
        self.pages = 0  # resident
        self.nodes = 0
        self.ticks = 0.0  # the counter behind access and creation times
        self._roots: dict[Hashable, Node] = {}

    def root(self, namespace: Hashable = None) -> Node:
        """Where prefixes of one namespace (cache salt and adapter) start; namespaces share nothing."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Node((), None, 0.0, 0, 0)
        return root

    def descend(self, node: Node, pages: Sequence[Hashable], at: int, limit: int) -> tuple[list[Node], int]:
        """Follow ``pages[at:limit]`` down from ``node``: the nodes passed, and how many pages are resident in all.

        A node that is left in its middle is split there, as SGLang's match does.
        """
        path: list[Node] = []
        append = path.append
        if self.max_node_pages == 1:
            for page in islice(pages, at, limit):
                child = node.children.get(page)
                if child is None:
                    break
                append(child)
                node = child
            return path, at + len(path)
        while at < limit:
            child = node.children.get(pages[at])
            if child is None:
                break
            size = child.pages
            if size > 1 and (at + size > limit or child.key != pages[at : at + size]):
                shared = common_prefix(child.key, pages[at : min(at + size, limit)])
                append(self.split(child, shared))
                return path, at + shared
            at += size
            append(child)
            node = child
        return path, at

    def split(self, node: Node, pages: int) -> Node:
        """Cut ``node`` after its first ``pages`` pages: the new ancestor half. ``node`` keeps identity and lock.

        As in SGLang the half that was not asked for counts as touched by the cut.
        """
        parent = node.parent
        assert parent is not None
        assert 0 < pages < node.pages
        upper = Node(node.key[:pages], parent, node.last_access_time, node.touch_ms, node.priority)
        upper.creation_time, upper.birth_ms, upper.hit_count = node.creation_time, node.birth_ms, node.hit_count
        node.key = node.key[pages:]
        node.pages = len(node.key)
        node.parent = upper
        self.ticks += 1.0
        node.last_access_time = self.ticks
        upper.children[node.key[0]] = node
        parent.children[upper.key[0]] = upper
        self.nodes += 1
        if self.on_split is not None:
            self.on_split(upper, node)
        return upper

    def extend(self, parent: Node, pages: Sequence[Hashable], now_ms: int, priority: int) -> list[Node]:
        """Hang ``pages`` below ``parent``: one node, or a chain of nodes of ``max_node_pages``."""
        step = self.max_node_pages or len(pages)
        made: list[Node] = []
        tick = self.ticks
        for at in range(0, len(pages), step):
            tick += 1.0
            node = Node(pages[at : at + step], parent, tick, now_ms, priority)
            parent.children[pages[at]] = node
            made.append(node)
            parent = node
        self.ticks = tick
        self.pages += len(pages)
        self.nodes += len(made)
        return made

    def remove(self, node: Node) -> Node:
        """Take a leaf out; its parent."""
        parent = node.parent
        assert parent is not None
        assert not node.children
        del parent.children[node.key[0]]
        self.pages -= node.pages
        self.nodes -= 1
        return parent

    def forget_empty_roots(self) -> None:
        """Forget namespaces that hold nothing and that nobody uses: there may be one a request."""
        for namespace in [each for each, root in self._roots.items() if not root.children and not root.lock]:
            del self._roots[namespace]

    def walk(self) -> Iterator[Node]:
        """Every resident node, for checks."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(node.children.values())

    def check(self) -> None:
        """Debug: links, keys and counts agree."""
        pages = nodes = 0
        for node in self.walk():
            assert node.parent is not None
            assert node.parent.children[node.key[0]] is node, "a child its parent does not know"
            assert node.pages == len(node.key) > 0
            assert self.max_node_pages is None or node.pages <= self.max_node_pages
            pages, nodes = pages + node.pages, nodes + 1
        assert (pages, nodes) == (self.pages, self.nodes), "pages or nodes were counted wrong"


def common_prefix(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Length of the common prefix; compares slices, so that long runs cost one comparison in C."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
