"""The index's meaning by brute force: plain lists, every decision from scratch, no heap and no amortisation.

It keeps its own protections, budgets and tenants; raw facts of a unit (hits, touch, sizes) are read from ``kvp``.
"""

from __future__ import annotations

from typing import Any

from tree import Node

from kvpolicy.eviction import CompiledEviction, EvictionIndex, PolicyClock, RequestInfo


def engine_key(policy: str, node: Node, params: dict[str, Any]) -> Any:
    """SGLang's strategies, from their definitions."""
    used = node.last_access_time
    return {
        "lru": lambda: (used,),
        "lfu": lambda: (node.hit_count, used),
        "fifo": lambda: (node.creation_time, used),
        "filo": lambda: (-node.creation_time, used),
        "mru": lambda: (-used,),
        "slru": lambda: (1 if node.hit_count >= params.get("protected_hits", 2) else 0, used),
        "priority": lambda: (node.priority, used),
    }[policy]()


class Naive:
    """Mirror of one index."""

    def __init__(self, compiled: CompiledEviction, pool_tokens: int, clock: PolicyClock) -> None:
        self.compiled = compiled
        self.pool_tokens = pool_tokens
        self.clock = clock
        self.evictable: list[Node] = []
        self.held: list[Node] = []
        self.resident: list[Node] = []
        self.protection: dict[Node, tuple[int, int | None]] = {}  # rule, expiry
        self.hit_tokens: dict[str | None, int] = {}
        self.first_seen: list[str | None] = []

    # -- what would go first --

    def key(self, node: Node) -> Any:
        if self.compiled.score is not None:
            return (self.compiled.score.evaluate(node.kvp, self.clock), node.kvp.touch_seq, node.kvp.order)
        return engine_key(self.compiled.policy or "lru", node, dict(self.compiled.params))

    def level(self, node: Node) -> int:
        rule = self.protection.get(node, (-1, None))[0]
        return 0 if rule < 0 else self.compiled.rules[rule].level

    def klass(self, node: Node) -> int:
        tenants = self.compiled.tenants
        if tenants is None:
            return 1
        salt = node.kvp.cache_salt
        shares = tenants.named.get(salt, tenants.default) if salt is not None else tenants.default
        resident = sum(other.size for other in self.resident if other.kvp.cache_salt == salt)
        if shares.cap is not None and resident > int(shares.cap * self.pool_tokens):
            return 0
        if shares.floor is not None and self.holds_floor(salt) and resident <= int(shares.floor * self.pool_tokens):
            return 2
        return 1

    def holds_floor(self, salt: str | None) -> bool:
        tenants = self.compiled.tenants
        assert tenants is not None
        if not self.hit_tokens.get(salt):
            return False
        if salt in tenants.named:
            return True
        others = [s for s in self.first_seen if s not in tenants.named and self.hit_tokens.get(s)]
        others.sort(key=lambda s: -self.hit_tokens[s])  # stable: first come first
        return salt in others[: tenants.max_floors]

    def pop(self) -> Node | None:
        if not self.evictable:
            return None
        node = min(self.evictable, key=lambda n: (self.klass(n), self.level(n), self.key(n)))
        self.evictable.remove(node)
        self.held.append(node)
        return node

    # -- rules --

    def run_rules(self, node: Node) -> None:
        self.expire()
        rules = self.compiled.rules
        winner = next((i for i, rule in enumerate(rules) if rule.match(node.kvp, self.clock)), -1)
        if winner < 0 or not rules[winner].is_retain:
            if node in self.protection and self.protection[node][1] is None:
                del self.protection[node]
            return
        rule = rules[winner]
        limit = None if rule.budget_share is None else int(rule.budget_share * self.pool_tokens)
        if limit is not None and node.kvp.depth_tokens > limit:
            self.protection.pop(node, None)
            return
        self.protection[node] = (winner, None if rule.ttl_ms is None else self.clock.now_ms + rule.ttl_ms)
        while limit is not None and self.used_tokens(winner) > limit:
            members = [n for n, (index, _) in self.protection.items() if index == winner]
            del self.protection[min(members, key=self.key)]

    def used_tokens(self, rule: int) -> int:
        path: list[Node] = []
        for member, (index, _) in self.protection.items():
            node: Node | None = member
            while index == rule and node is not None and node.kvp is not None:
                if node not in path:
                    path.append(node)
                node = node.parent
        return sum(node.size for node in path)

    def expire(self) -> None:
        for node, (_, expiry) in list(self.protection.items()):
            if expiry is not None and expiry <= self.clock.now_ms:
                del self.protection[node]


class Twin(EvictionIndex):
    """The real index and its naive mirror under one hood: every victim is compared."""

    def __init__(self, compiled: CompiledEviction, pool_tokens: int) -> None:
        self.real = compiled.make_index(pool_tokens)
        self.clock = self.real.clock
        self.naive = Naive(compiled, pool_tokens, self.clock)

    def add(self, handle: Any) -> None:
        self.real.add(handle)
        if handle not in self.naive.evictable and handle not in self.naive.held:
            self.naive.evictable.append(handle)

    def discard(self, handle: Any) -> None:
        self.real.discard(handle)
        for members in (self.naive.evictable, self.naive.held):
            if handle in members:
                members.remove(handle)

    def touched(self, handle: Any) -> None:
        self.real.touched(handle)

    def insert(
        self,
        handle: Any,
        parent: Any,
        request: RequestInfo,
        size_tokens: int,
        depth_tokens: int,
        is_output: bool = False,
        content_key: int | None = None,
    ) -> None:
        self.real.insert(handle, parent, request, size_tokens, depth_tokens, is_output, content_key)
        if handle.kvp is None:
            return
        self.naive.resident.append(handle)
        if request.cache_salt not in self.naive.first_seen:
            self.naive.first_seen.append(request.cache_salt)
        self.naive.run_rules(handle)

    def touch(self, handle: Any, request: RequestInfo) -> None:
        self.real.touch(handle, request)
        if handle.kvp is not None:
            salt = handle.kvp.cache_salt
            self.naive.hit_tokens[salt] = self.naive.hit_tokens.get(salt, 0) + handle.size
            self.naive.run_rules(handle)

    def split(self, upper: Any, lower: Any, upper_tokens: int) -> None:
        self.real.split(upper, lower, upper_tokens)
        if lower.kvp is not None:
            self.naive.resident.append(upper)
            if lower in self.naive.protection:
                self.naive.protection[upper] = self.naive.protection[lower]

    def remove(self, handle: Any) -> None:
        self.real.remove(handle)
        if handle in self.naive.resident:
            self.naive.resident.remove(handle)
            self.naive.protection.pop(handle, None)
            self._forget(handle.kvp.cache_salt)

    def _forget(self, salt: str | None) -> None:
        """A tenant without units loses its place and its hits, unless it is named or holds a floor."""
        tenants = self.naive.compiled.tenants
        if tenants is None or any(node.kvp.cache_salt == salt for node in self.naive.resident):
            return
        if salt not in tenants.named and not self.naive.holds_floor(salt):
            self.naive.first_seen.remove(salt)
            self.naive.hit_tokens.pop(salt, None)

    def follow(self, victim: Any, handle: Any) -> bool:
        if handle not in self.naive.evictable and handle not in self.naive.held:
            self.naive.evictable.append(handle)
        goes_next = self.real.follow(victim, handle)
        if goes_next:
            expected = self.naive.pop()
            assert handle is expected, f"the index says {handle} goes next, brute force says {expected}"
        return goes_next

    def begin(self) -> None:
        self.real.begin()
        self.naive.expire()

    def pop(self) -> Any:
        got, expected = self.real.pop(), self.naive.pop()
        assert got is expected, f"the index says {got}, brute force says {expected}"
        return got

    def evicted(self, handle: Any, size_tokens: int, depth_tokens: int = 0, identity: int = 0) -> None:
        self.real.evicted(handle, size_tokens, depth_tokens, identity)

    def end(self) -> None:
        self.real.end()
        self.naive.evictable += self.naive.held
        self.naive.held.clear()

    def check(self) -> None:
        self.real.check()
        assert self.real.counters.fallbacks == 0, self.real.counters.last_fault
        members = list(self.real._order)
        assert len(members) == len(self.naive.evictable)
        assert set(members) == set(self.naive.evictable)
        for node in self.naive.resident:
            rule = self.naive.protection.get(node, (-1, None))[0]
            assert node.kvp.rule == rule, f"{node}: protected by {node.kvp.rule}, brute force says {rule}"
