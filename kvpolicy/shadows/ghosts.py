"""The running policy and the candidates, each on a cache of metadata that sees every request: replay's own simulator.

All ghosts start empty at the same moment, so that they can be compared; a policy that comes, goes or takes over in the
server makes all of them start again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvpolicy.compiler import compile_policy
from kvpolicy.language import digest_of, policy_from_flat
from kvpolicy.replay.requests import Request
from kvpolicy.replay.simulator import Eviction, Simulator

from .records import Pages, Record
from .windows import Windows

__all__ = ["Ghosts", "Pool"]


@dataclass(frozen=True, slots=True)
class Pool:
    """What the ghosts share with the server's cache."""

    engine: str  # as the language calls it
    content: str  # of the records: "tokens" or "hashes"
    page_tokens: int
    pool_tokens: int

    @property
    def granularity(self) -> str:
        """Of what is evicted alone."""
        return "page" if self.engine == "vllm" else "node"

    @property
    def ahead_pages(self) -> int:
        """Pages that a request claims beyond what it computes: SGLang prepares the next step before a step ends."""
        return 0 if self.engine == "vllm" else 1


@dataclass(slots=True)
class _Totals:
    """Sums over requests; pairs of tokens are what the quadratic part of a prefill costs."""

    hit_tokens: int = 0
    hit_pairs: int = 0


class _Ghost:
    """One policy."""

    def __init__(self, flat: dict[str, Any], pool: Pool, are_hashes: bool) -> None:
        """Raises PolicyError for a document that is no valid policy."""
        compiled = compile_policy(policy_from_flat(flat, engine=pool.engine), pool.engine)
        self.name, self.digest = compiled.name, digest_of(flat)
        eviction = compiled.eviction
        self.simulator = Simulator(
            Eviction(compiled.name, eviction.make_index, eviction.needs_metadata, compiled.allocator.watermark),
            pool.pool_tokens,
            pool.page_tokens,
            pool.granularity,
            exact_tokens=True,
            has_prefix_hashes=are_hashes,
            ahead_pages=pool.ahead_pages,
        )
        self.whole, self.window, self.closed = _Totals(), _Totals(), _Totals()

    def serve(self, request: Request, pages: Sequence[Hashable], reusable: int, full: Sequence[Hashable]) -> None:
        hit_tokens = self.simulator.request(request, pages, reusable, full)
        hit_pairs = _pairs(hit_tokens)
        for totals in (self.whole, self.window):
            totals.hit_tokens += hit_tokens
            totals.hit_pairs += hit_pairs

    def close_window(self) -> None:
        self.closed, self.window = self.window, _Totals()
        del self.simulator.stats.hit_tokens[:]  # one entry a request
        self.simulator.tree.forget_empty_roots()


@dataclass(slots=True)
class Ghosts:
    """See the module text."""

    pool: Pool
    key: bytes = b""
    active: dict[str, Any] = field(default_factory=dict)  # flattened
    shadows: list[dict[str, Any]] = field(default_factory=list)
    pages: Pages = field(init=False)
    requests: int = 0
    input_tokens: int = 0
    input_pairs: int = 0
    engine_hit_tokens: int = 0
    fault: str = ""
    _ghosts: list[_Ghost] = field(default_factory=list)  # the active one, then the shadows
    _windows: Windows = field(init=False)

    def __post_init__(self) -> None:
        self.pages = Pages(self.pool.content, self.pool.page_tokens, self.key)
        self._windows = Windows(self.pool.page_tokens, self.pool.pool_tokens)

    def start(self, active: dict[str, Any], shadows: list[dict[str, Any]]) -> None:
        """Start all of them on empty caches."""
        self.active, self.shadows = active, shadows
        self.requests = self.input_tokens = self.input_pairs = self.engine_hit_tokens = 0
        self._windows = Windows(self.pool.page_tokens, self.pool.pool_tokens)
        flats = [active, *shadows] if shadows else []
        self._ghosts = [_Ghost(flat, self.pool, self.pages.are_hashes) for flat in flats]

    def serve(self, record: Record, full: Sequence[Hashable]) -> None:
        """One request, whose pages are ``full``."""
        if not self._ghosts:
            return
        tokens, page = record.input_tokens, self.pool.page_tokens
        request = Request(record.arrival_ms, tokens, record.output_tokens, full, full, record.info)
        pages = full[: tokens // page]
        reusable = min(len(pages), (tokens - 1) // page)
        for ghost in self._ghosts:
            ghost.serve(request, pages, reusable, full)
        self.requests += 1
        self.input_tokens += tokens
        self.input_pairs += _pairs(tokens)
        self.engine_hit_tokens += record.hit_tokens
        if self._windows.add(request, reusable, full):
            for ghost in self._ghosts:
                ghost.close_window()

    def report(self) -> dict[str, Any]:
        """For the status, without the ghosts' keys."""
        rows = [self._row(ghost) for ghost in self._ghosts]
        return {
            "requests": self.requests,
            "input_tokens": self.input_tokens,
            "engine_hit_tokens": self.engine_hit_tokens,
            "window": self._windows.closed,
            "active": rows[0] if rows else None,
            "shadows": rows[1:],
        }

    def _row(self, ghost: _Ghost) -> dict[str, Any]:
        active, window = self._ghosts[0].whole, self._windows.closed
        index = ghost.simulator.index
        return {
            "name": ghost.name,
            "digest": ghost.digest,
            "hit_tokens": ghost.whole.hit_tokens,
            "prefill_tokens": self.input_tokens - ghost.whole.hit_tokens,
            "prefill_pairs": self.input_pairs - ghost.whole.hit_pairs,
            "saved_linear": _share(ghost.whole.hit_tokens, self.input_tokens),
            "saved_quadratic": _share(ghost.whole.hit_pairs, self.input_pairs),
            "regret_active_tokens": active.hit_tokens - ghost.whole.hit_tokens,
            "window_hit_tokens": ghost.closed.hit_tokens if window else None,
            "regret_clairvoyant_tokens": window["hit_tokens"] - ghost.closed.hit_tokens if window else None,
            "evicted_tokens": ghost.simulator.stats.evicted_tokens,
            "faults": index.counters.fallbacks,
            "last_fault": index.counters.last_fault or None,
        }


def _pairs(tokens: int) -> int:
    return tokens * (tokens + 1) // 2


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
