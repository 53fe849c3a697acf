"""A small prefix tree that drives an index the way an engine does: leaves that are not locked are evictable."""

from __future__ import annotations

from typing import Any

from kvpolicy.eviction import EvictionIndex, RequestInfo

ANYBODY = RequestInfo()


class Node:
    """The engine's object for one unit, under SGLang's field names."""

    def __init__(self, name: str, parent: Node | None, size: int) -> None:
        self.name = name
        self.parent = parent
        self.children: list[Node] = []
        self.size = size
        self.locks = 0
        self.kvp: Any = None
        self.last_access_time = 0.0
        self.creation_time = 0.0
        self.hit_count = 0
        self.priority = 0

    def __repr__(self) -> str:
        return self.name


class Tree:
    """``index.clock`` advances one request and 1000 ms with each insert and touch."""

    def __init__(self, index: EvictionIndex) -> None:
        self.index = index
        self.root = Node("root", None, 0)
        self.nodes: list[Node] = []
        self.victims: list[Node] = []
        self.swept = 0  # victims of the last walk that followed their child
        self._time = 0.0
        self._names = 0

    # -- state --

    def is_evictable(self, node: Node) -> bool:
        return not node.children and node.locks == 0 and node in self.nodes

    def evictable(self) -> list[Node]:
        return [node for node in self.nodes if self.is_evictable(node)]

    def path(self, node: Node) -> list[Node]:
        """From the node up to below the root."""
        path = []
        while node is not self.root:
            path.append(node)
            assert node.parent is not None
            node = node.parent
        return path

    def depth(self, node: Node) -> int:
        return sum(above.size for above in self.path(node))

    # -- what an engine does --

    def arrive(self, seconds: float = 1.0) -> None:
        self.index.clock.arrive(self.index.clock.now_ms + int(1000 * seconds))

    def insert(
        self,
        parent: Node | None = None,
        size: int = 1,
        request: RequestInfo = ANYBODY,
        name: str | None = None,
        is_output: bool = False,
        content_key: int | None = None,
        seconds: float = 1.0,
        arrives: bool = True,
    ) -> Node:
        """``arrives``: by a new request, not the latest one."""
        if arrives:
            self.arrive(seconds)
        parent = parent or self.root
        self._names += 1
        node = Node(name or f"n{self._names}", parent, size)
        node.priority = request.priority or 0
        node.last_access_time = node.creation_time = self._tick()
        node.hit_count = 1
        self.nodes.append(node)
        self.index.discard(parent)
        parent.children.append(node)
        above = None if parent is self.root else parent
        self.index.insert(node, above, request, size, self.depth(node), is_output, content_key)
        self._refresh(node)
        return node

    def touch(self, node: Node, request: RequestInfo = ANYBODY, *, lock: bool = True, seconds: float = 1.0) -> None:
        """A request matches down to the node's end; ``lock``: and runs and finishes on it."""
        self.arrive(seconds)
        path = self.path(node)
        if lock:
            self.lock(node)
        now = self._tick()
        for i, above in enumerate(path):
            above.last_access_time = now - i * 1e-5
            above.hit_count += 1
            above.priority = max(above.priority, request.priority or 0)
            self.index.touch(above, request)
        if lock:
            self.unlock(node)

    def split(self, node: Node, upper_size: int) -> Node:
        assert 0 < upper_size < node.size
        assert node.parent is not None
        self._names += 1
        upper = Node(f"{node.name}^{self._names}", node.parent, upper_size)
        upper.hit_count, upper.priority, upper.creation_time = node.hit_count, node.priority, node.creation_time
        upper.last_access_time, node.last_access_time = self._tick(), self._tick()
        upper.locks = node.locks
        node.parent.children[node.parent.children.index(node)] = upper
        node.parent = upper
        node.size -= upper_size
        upper.children.append(node)
        self.nodes.append(upper)
        self.index.split(upper, node, upper_size)
        self.index.touched(node)
        return upper

    def lock(self, node: Node) -> None:
        for above in self.path(node):
            above.locks += 1
            self.index.discard(above)

    def unlock(self, node: Node) -> None:
        for above in self.path(node):
            above.locks -= 1
            self._refresh(above)

    def evict(self, tokens: int, *, sweeps: bool = False) -> list[Node]:
        """One walk until that many tokens are free, or nothing is evictable; ``sweeps``: up the path of each victim,
        as long as its parent goes next."""
        index, freed, victims = self.index, 0, []
        self.swept = 0
        index.begin()
        following: Node | None = None
        while freed < tokens:
            node: Any = following or index.pop()
            if node is None:
                break
            assert self.is_evictable(node), f"{node} is not evictable"
            index.evicted(node, node.size, self.depth(node))
            parent, following = node.parent, None
            self._remove(node, refresh=not sweeps)
            if sweeps and parent is not self.root and self.is_evictable(parent) and index.follow(node, parent):
                following = parent
                self.swept += 1
            freed += node.size
            victims.append(node)
        index.end()
        self.victims += victims
        return victims

    def next_victims(self) -> list[Node]:
        """What a walk over everything would propose, without evicting."""
        self.index.begin()
        order = []
        while (node := self.index.pop()) is not None:
            order.append(node)
        self.index.end()
        return order

    def _remove(self, node: Node, refresh: bool = True) -> None:
        assert node.parent is not None
        self.nodes.remove(node)
        node.parent.children.remove(node)
        self.index.discard(node)
        self.index.remove(node)
        if refresh and node.parent is not self.root:
            self._refresh(node.parent)

    def _refresh(self, node: Node) -> None:
        if self.is_evictable(node):
            self.index.add(node)
        else:
            self.index.discard(node)

    def _tick(self) -> float:
        self._time += 1.0
        return self._time
