"""The small cache of a test: the replay's simulator, which remembers what was evicted and proves its invariants.

Invariants, whatever a policy says: the pool is never over-committed, no budget is exceeded, no unit in use is evicted,
any need that the evictable tokens can meet is met, every evictable unit goes when everything must, and no policy fault
is papered over by a fallback.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from kvpolicy.eviction.base import RequestInfo
from kvpolicy.eviction.envelope import Action, Envelope
from kvpolicy.language.policy_tests import NOBODY, UNPROTECTED, Event
from kvpolicy.replay.pages import Pager
from kvpolicy.replay.requests import Request
from kvpolicy.replay.simulator import GRANULARITIES, Eviction, Simulator
from kvpolicy.replay.tree import Node, PrefixTree, common_prefix

__all__ = ["SmallCache", "Victim", "Violation"]

Path = tuple[str, ...]
#: A token is its segment's number and its place in the segment.
_SEGMENT_BITS = 24
_PLACE = (1 << _SEGMENT_BITS) - 1


class Violation(Exception):
    """An invariant does not hold: the fault is kvpolicy's (or a patched index's), not the test's."""


@dataclass(frozen=True, slots=True)
class Victim:
    """One eviction: which prefix ended in the unit, and the rule that had protected it."""

    path: Path
    tokens: int
    rule: str  # UNPROTECTED: none
    during: int  # how many events there had been


class _Tree(PrefixTree):
    """Tells the cache of each eviction while index and path still know the victim."""

    def __init__(self, cache: SmallCache, granularity: str) -> None:
        super().__init__(GRANULARITIES[granularity], cache._was_split)
        self._cache = cache

    def remove(self, node: Node) -> Node:
        self._cache.record(node)
        return super().remove(node)

    @property
    def roots(self) -> list[tuple[str | None, Node]]:
        """(tenant, root) of every namespace."""
        return [(cast("tuple[str | None, str | None]", name)[0], root) for name, root in self._roots.items()]


class SmallCache(Simulator):
    """Runs events one by one. ``lengths`` are the tokens of every segment."""

    def __init__(
        self, eviction: Eviction, pool_tokens: int, page_tokens: int, granularity: str, lengths: dict[str, int]
    ) -> None:
        super().__init__(eviction, pool_tokens, page_tokens, granularity, hold_running=True)
        self._has_hashes = False  # pages are tokens: equal ones may follow different prefixes
        self.small_tree = _Tree(self, granularity)
        self.tree = self.small_tree
        self.victims: list[Victim] = []
        self.held: set[Path] = set()  # every prefix that was complete in the cache at some time
        self._lengths = lengths
        self._pager = Pager(1, page_tokens)
        self._segments: dict[str, int] = {}  # name -> number
        self._names: list[str] = []
        self._now_ms = 0
        self._events = 0
        self._floods = 0

    # -- events --

    def run(self, event: Event) -> int:
        """The hit tokens of the event's last request. Raises Violation."""
        self._now_ms += event.after_ms
        self._events += 1
        who = RequestInfo(event.tenant, event.priority, event.session, event.lora)
        hit = 0
        for number in range(event.repeat):
            info = replace(who, hints=self._hints(event))
            self._now_ms += event.every_ms if number else 0
            if event.flood_tokens is not None:
                self._floods += 1
                prompt: list[int] = self._tokens_of(f"flood {self._floods}", event.flood_tokens)
                output: list[int] = []
            else:
                prompt = [token for s in event.path for token in self._tokens_of(s.name, self._lengths[s.name])]
                output = self._tokens_of(event.output.name, self._lengths[event.output.name]) if event.output else []
            hit = self._serve(event, info, prompt, output)
            if event.flood_tokens is None:
                self._remember(event.names)
        try:
            self.check()
            self.index.check()
        except AssertionError as error:
            raise Violation(str(error) or "an inner check failed") from None
        if self.index.counters.fallbacks:
            raise Violation(f"a fault inside the policy: {self.index.counters.last_fault}")
        return hit

    def _hints(self, event: Event) -> Envelope | None:
        """What one of the event's requests asks for itself."""
        name = f"step {self._events}"
        actions: list[Action] = []
        if event.expire:
            actions.append(Action(name, "expire"))
        if event.retain_ms is not None:
            actions.append(Action(name, "retain", ttl_ms=event.retain_ms, tokens=event.retain_tokens))
        if event.demote:
            actions.append(Action(name, "demote"))
        if event.hint_class is not None:
            actions.append(Action(name, "class", class_name=event.hint_class))
        return Envelope(tuple(actions)) if actions else None

    def drain(self) -> Iterator[Victim]:
        """Evict unit by unit what can be evicted. Raises Violation when something evictable is left over."""
        while True:
            seen = len(self.victims)
            try:
                self._evict(1, 1)
            except AssertionError as error:
                raise Violation(str(error) or "a victim that has children") from None
            if len(self.victims) == seen:
                break
            yield self.victims[-1]
        if left := self.tree.pages - self._pages_in_use():
            raise Violation(f"starved: {left * self.page_tokens} evictable tokens are never offered as victims")

    def _serve(self, event: Event, info: RequestInfo, prompt: list[int], output: list[int]) -> int:
        full = [*prompt, *output]
        request = Request(self._now_ms, len(prompt), len(output), prompt, full, info, event.lasts_ms)
        pages, all_pages = self._pager.pages(prompt, len(prompt)), self._pager.pages(full, len(full))
        try:
            return self.request(request, pages, len(pages), all_pages)
        except AssertionError as error:
            raise Violation(str(error) or "the tree is broken") from None

    def _make_room(self, need: int) -> int:
        free = super()._make_room(need)
        if free < need and (left := self.tree.pages - self._pages_in_use()):
            page = self.page_tokens
            raise Violation(
                f"not live: a request needs {need * page} tokens and got {free * page}, "
                f"while {left * page} evictable tokens are left"
            )
        return free

    def _pages_in_use(self) -> int:
        """Pages on the path of a running request."""
        used: dict[Node, None] = {}
        for node in self.tree.walk():
            at: Node | None = node if node.lock else None
            while at is not None and at.parent is not None and at not in used:
                used[at] = None
                at = at.parent
        return sum(node.pages for node in used)

    # -- what is where --

    def resident_tokens(self, path: Path) -> int:
        """Tokens of the path that are in the cache, by whichever tenant."""
        return max((depth for depth, _ in self._found(path)), default=0)

    def is_complete(self, path: Path) -> bool:
        return self.resident_tokens(path) >= self._tokens(path) // self.page_tokens * self.page_tokens

    def is_gone(self, path: Path) -> bool:
        """Whether no whole page of the path's last segment is there."""
        return self.resident_tokens(path) - self._tokens(path[:-1]) < self.page_tokens

    def rules_of(self, path: Path) -> set[str]:
        """The rules that protect the units in which the path ends now; UNPROTECTED for none. Empty: not there."""
        self.index.begin()  # protections whose time is over end when a walk begins
        self.index.end()
        whole = self._tokens(path) // self.page_tokens * self.page_tokens
        found = (self.index.rule_of(node) for depth, node in self._found(path) if node is not None and depth >= whole)
        return {rule or UNPROTECTED for rule in found}

    def tenant_tokens(self) -> dict[str, int]:
        """Resident tokens by tenant."""
        held: dict[str, int] = {}
        for salt, root in self.small_tree.roots:
            stack, pages = list(root.children.values()), 0
            while stack:
                node = stack.pop()
                pages += node.pages
                stack.extend(node.children.values())
            tenant = salt or NOBODY
            held[tenant] = held.get(tenant, 0) + pages * self.page_tokens
        return held

    def evicted_tokens(self) -> dict[str, int]:
        """By the rule that had protected them."""
        lost: dict[str, int] = {}
        for victim in self.victims:
            lost[victim.rule] = lost.get(victim.rule, 0) + victim.tokens
        return lost

    # -- inner --

    def record(self, node: Node) -> None:
        """The tree is about to lose a unit."""
        if node.parent is None or node.parent.children.get(node.key[0]) is not node:
            raise Violation("a unit that is gone was evicted again")
        if node.lock or node.children:
            raise Violation("a unit in use, by a running request or a longer prefix, was evicted")
        rule = self.index.rule_of(node) or UNPROTECTED
        self.victims.append(Victim(self._path_of(node), node.pages * self.page_tokens, rule, self._events))

    def _tokens_of(self, name: str, tokens: int) -> list[int]:
        number = self._segments.get(name)
        if number is None:
            number = self._segments[name] = len(self._names)
            self._names.append("flood" if " " in name else name)
        start = number << _SEGMENT_BITS
        return list(range(start, start + tokens))

    def _tokens(self, path: Path) -> int:
        return sum(self._lengths[name] for name in path)

    def _pages_of(self, path: Path) -> Sequence[object]:
        tokens = [token for name in path for token in self._tokens_of(name, self._lengths[name])]
        return self._pager.pages(tokens, len(tokens))

    def _found(self, path: Path) -> Iterator[tuple[int, Node | None]]:
        """For each namespace: the resident tokens of the path, and the unit in which they end."""
        pages = self._pages_of(path)
        for _, root in self.small_tree.roots:
            node, at = root, 0
            while at < len(pages) and (child := node.children.get(pages[at])) is not None:
                node = child
                shared = common_prefix(child.key, pages[at : at + child.pages])
                at += shared
                if shared < child.pages:
                    break
            if at:
                yield at * self.page_tokens, node

    def _remember(self, names: Path) -> None:
        depth = self.resident_tokens(names)
        for end in range(1, len(names) + 1):
            tokens = self._tokens(names[:end])
            if depth >= tokens // self.page_tokens * self.page_tokens:
                self.held.add(names[:end])

    def _path_of(self, node: Node) -> Path:
        """The names of the segments from the root to the unit's end."""
        runs: list[Sequence[object]] = []
        at: Node | None = node
        while at is not None:
            runs.append(at.key)
            at = at.parent
        names: list[str] = []
        for run in reversed(runs):
            for page in run:
                for token in page if isinstance(page, tuple) else (page,):
                    if not token & _PLACE:
                        names.append(self._names[token >> _SEGMENT_BITS])
        return tuple(names)
