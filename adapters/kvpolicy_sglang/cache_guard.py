"""Between the engine and the eviction index: no policy fault passes, and no evictable leaf is lost.

The engine calls these methods from inside its scheduler. Policy code (a score, a rule, an algorithm) may raise in any
of them; the guard counts the fault, leaves the engine's own bookkeeping as it was, and lets the caller serve that one
call in the engine's order. A fault depends on the same inputs on every tensor-parallel rank, so all ranks fall back
alike.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kvpolicy.eviction.base import KeyChange

from . import content

if TYPE_CHECKING:
    from kvpolicy.eviction.base import RequestInfo, UnitMeta
    from kvpolicy.runtime.active import ActivePolicy

__all__ = ["EvictionGuard", "LeafFeed", "timed"]

logger = logging.getLogger("kvpolicy")


class EvictionGuard:
    """One cache's eviction index behind a fault barrier. Methods mirror the index and never raise."""

    def __init__(self, active: ActivePolicy, index: Any, *, page_tokens: int = 1) -> None:
        self.active = active
        self.page_tokens = page_tokens
        self.use(index)
        #: Whether the engine's own order serves, whatever the index holds.
        self.is_off = False
        #: Evictable leaves the index refused, oldest first; they are offered again at the next walk.
        self._refused: dict[Any, None] = {}
        self._in_walk = False
        self._warned = False
        #: Tokens of this walk that are needed; beyond them, protected units are spared. None: all are.
        self._needed_tokens: int | None = None
        self._walk_tokens = 0
        #: Whether the last walk ended because only protected units were left, none of them needed.
        self.spared = False

    def use(self, index: Any) -> None:
        """Drive `index` from now on; between two walks."""
        self.index = index
        #: With metadata, a leaf is offered to the index only once it carries some.
        self.needs_metadata: bool = index.needs_metadata
        self.meta: Callable[[Any], UnitMeta | None] = index.meta

    @property
    def observes_touches(self) -> bool:
        """Whether the engine's own changes of a leaf's key must be told: keys that can fall are lost in a heap
        otherwise."""
        return self.index.change is KeyChange.SHRINKS

    # -- membership --

    def add(self, node: Any) -> None:
        if self.needs_metadata and self.meta(node) is None:
            self._refused[node] = None  # stamped right after it is linked in; see cache_metadata
            return
        try:
            self.index.add(node)
        except Exception:
            self._refused[node] = None
            self.fault("add", "the policy failed on a leaf that became evictable")

    def discard(self, node: Any) -> None:
        if self._refused:
            self._refused.pop(node, None)
        try:
            self.index.discard(node)
        except Exception:
            self.fault("discard", "the policy failed on a leaf that is evictable no more")

    def reset(self) -> None:
        self._refused.clear()
        self._in_walk = False
        try:
            self.index.reset(self.active.pool_tokens)
        except Exception:
            self.fault("reset", "the policy failed to start afresh after a cache flush")

    def stamped(self, node: Any, leaves: LeafFeed) -> None:
        """`node` carries its metadata now: offer it if it is evictable."""
        self._refused.pop(node, None)
        if node in leaves:
            self.add(node)

    # -- one eviction walk --

    def begin(self) -> bool:
        """Open a walk; False: serve this call in the engine's order."""
        if self.is_off:
            return False
        if self._refused:
            for node in list(self._refused):
                del self._refused[node]
                self.add(node)
        try:
            self.index.begin()
        except Exception:
            self.fault("evict", "the policy failed to start an eviction")
            return False
        self._in_walk = True
        self._walk_tokens, self.spared = 0, False
        return True

    def pop(self, is_victim: Callable[[Any], bool]) -> tuple[Any, bool]:
        """`(next victim or None, fault)`; None also where the rest is spared. What the policy proposes is validated.

        The caller frees what it gets; that is accounted here.
        """
        try:
            while True:
                node = self.index.pop()
                if node is None:
                    return None, False
                if is_victim(node):
                    break
                self.index.discard(node)  # stale: not a leaf, locked, or gone
            if self._spares(node):
                self.spared = True
                return None, False  # offered again once the walk ends
        except Exception:
            self.fault("evict", "the policy failed to name a victim")
            return None, True
        self._walk_tokens += len(node.key)
        try:
            meta = self.meta(node)
            if self.index.ghosts is not None and meta is not None and meta.content_key is None:
                meta.content_key = self.content_key(node)  # the lower half of a split has none yet
            depth_tokens = 0 if meta is None else meta.depth_tokens
            self.index.evicted(node, len(node.key), depth_tokens, node.id)  # ids count nodes: equal on every rank
        except Exception:
            self.fault("account", "the policy failed to account for a victim")
        return node, False

    def _spares(self, node: Any) -> bool:
        needed = self._needed_tokens
        return needed is not None and self._walk_tokens >= needed and self.index.is_protected(node)

    @contextmanager
    def sparing_beyond(self, needed_tokens: int) -> Iterator[None]:
        """Walks within the block take protected units only as far as `needed_tokens` go."""
        self._needed_tokens = needed_tokens
        try:
            yield
        finally:
            self._needed_tokens = None

    def end(self) -> None:
        if not self._in_walk:
            return
        self._in_walk = False
        try:
            self.index.end()
            survived = self.index.counters.fallbacks
        except Exception:
            self.fault("evict", "the policy failed to finish an eviction")
            return
        if survived and not self._warned:  # the index counts these itself, and answered in the engine's order
            self._warned = True
            logger.warning("kvpolicy: the policy failed: %s (further ones are counted only)", self._last_fault())

    # -- metadata; only for policies that need it --

    def arrive(self, arrival_ms: int | None) -> None:
        """One request reached the scheduler; equal on every rank."""
        self.index.clock.arrive(arrival_ms)

    def admit(self, info: RequestInfo, depth_tokens: int, size_tokens: int) -> bool:
        """Whether the request may leave anything in the cache; a fault admits it, as stock does."""
        try:
            return bool(self.index.admit(info, depth_tokens, size_tokens))
        except Exception:
            self.fault("admit", "the policy failed to decide an admission")
            return True

    def insert(
        self, node: Any, parent: Any, info: RequestInfo, size_tokens: int, depth_tokens: int, is_output: bool
    ) -> bool:
        try:
            content_key = self.content_key(node) if self.index.needs_content_key else None
            self.index.insert(node, parent, info, size_tokens, depth_tokens, is_output, content_key)
        except Exception:
            self.fault("insert", "the policy failed on a new unit")
            return False
        if (ghosts := self.index.ghosts) is not None and ghosts.found_tokens:
            content.ask_below(ghosts, self.meta(node), node, self.page_tokens)
        return True

    def content_key(self, node: Any) -> int | None:
        """None where it fails and evictions are remembered: that then ends, and nothing else."""
        try:
            return content.key_of(node, self.page_tokens)
        except Exception as error:
            if self.index.ghosts is None:
                raise
            self.index.ghosts.stop(error)
            return None

    def touch(self, node: Any, info: RequestInfo) -> None:
        try:
            self.index.touch(node, info)
        except Exception:
            self.fault("touch", "the policy failed on a hit")

    def split(self, upper: Any, lower: Any, upper_tokens: int) -> bool:
        try:
            self.index.split(upper, lower, upper_tokens)
        except Exception:
            self.fault("split", "the policy failed on a split")
            return False
        return True

    def is_prompt(self, node: Any) -> None:
        """The unit turned out to hold no generated token."""
        try:
            self.index.is_prompt(node)
        except Exception:
            self.fault("split", "the policy failed on a split")

    def remove(self, node: Any) -> None:
        try:
            self.index.remove(node)
        except Exception:
            self.fault("remove", "the policy failed on a removed unit")

    def touched(self, node: Any) -> None:
        """The engine changed what an evictable leaf's key is made of."""
        try:
            self.index.touched(node)
        except Exception:
            self.fault("touch", "the policy failed on a touched leaf")

    # -- faults and figures --

    def _last_fault(self) -> str:
        return str(self.index.counters.last_fault)

    def fault(self, reason: str, message: str) -> None:
        self.active.note_fallback(reason, f"{message}; the engine's order serves instead")

    def lost(self) -> None:
        """The index ran dry while evictable leaves remain: the engine's order finishes the call."""
        try:
            raise RuntimeError("the eviction index holds fewer leaves than the engine")
        except RuntimeError:
            self.fault("lost", "the index ran dry before the demand was met")


def timed(active: ActivePolicy, evict: Callable[..., Any]) -> Callable[..., Any]:
    """`evict` with its calls counted and their duration reported (never acted upon)."""

    @functools.wraps(evict)
    def timed_evict(*args: Any, **kwargs: Any) -> Any:
        start_s = time.perf_counter()
        try:
            return evict(*args, **kwargs)
        finally:
            active.observe_evict(time.perf_counter() - start_s)

    return timed_evict


class LeafFeed(set[Any]):
    """The engine's own set of evictable leaves, telling the index of every change.

    It stays a true `set` with the engine's content, so that the engine's sanity checks and its own eviction order keep
    working. (`set.add(self, ...)` instead of `super()`: this runs at every lock and unlock.)
    """

    def __init__(self, guard: EvictionGuard, leaves: Iterable[Any] = ()) -> None:
        super().__init__()
        self._guard = guard
        for node in leaves:
            self.add(node)

    def add(self, node: Any) -> None:
        if node not in self:
            set.add(self, node)
            self._guard.add(node)

    def discard(self, node: Any) -> None:
        if node in self:
            set.discard(self, node)
            self._guard.discard(node)

    def remove(self, node: Any) -> None:
        set.remove(self, node)
        self._guard.discard(node)

    def clear(self) -> None:
        super().clear()
        self._guard.reset()
