"""What the engines do differently, each as one change to the replay. docs/engines.md explains them by these names."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from kvpolicy.eviction.base import RequestInfo
from kvpolicy.replay.pages import Pager
from kvpolicy.replay.requests import Request
from kvpolicy.replay.simulator import Eviction, Simulator
from kvpolicy.replay.tree import Node, PrefixTree
from tests.threeway.sequence import PAGE_TOKENS, POOL_TOKENS, sequence

__all__ = ["COPIES", "LAST_TOKEN", "NODES", "ROOM", "replayed"]

#: SGLang evicts a leaf of its tree whole, however many pages it has; vLLM a block, replay in page mode a page.
NODES = "whole leaves go"
#: vLLM takes a block when a token needs it. SGLang, and so replay, asks for a page more than the tokens need, and has
#: the next decode step prepared.
ROOM = "room is taken when it is needed"
#: vLLM caches what was computed. SGLang 0.5.20's overlap scheduler has run one step more when a request ends.
LAST_TOKEN = "the last output token is not cached"
#: vLLM's own queue lets spare copies of a block age like any content. Under our index they go first, and in SGLang,
#: and so in replay, there are none.
COPIES = "spare copies stay"


def replayed(eviction: Eviction, mechanisms: frozenset[str], told: dict[str, Any]) -> list[int]:
    """The cached tokens of each request by replay's page mode with `mechanisms`, for the prompts and outputs told."""
    kind = _KINDS[ROOM in mechanisms, COPIES in mechanisms]
    granularity = "node" if NODES in mechanisms else "page"
    simulator = kind(eviction, POOL_TOKENS, PAGE_TOKENS, granularity, exact_tokens=True)
    pager, cached = Pager(1, PAGE_TOKENS), []
    for asked, prompt, output in zip(sequence(), told["prompts"], told["outputs"], strict=True):
        whole = [*prompt, *(output[:-1] if LAST_TOKEN in mechanisms else output)]
        info = RequestInfo(priority=asked.priority)
        request = Request(asked.arrival_s * 1000, len(prompt), len(output), prompt, whole, info)
        pages, full = pager.pages(prompt, len(prompt)), pager.pages(whole, len(whole))
        cached.append(simulator.request(request, pages, pager.reusable(len(pages), len(prompt)), full))
        simulator.check()
    assert simulator.stats.evicted_tokens > 3 * POOL_TOKENS, "the case is no test of eviction"
    return cached


class _AsNeeded(Simulator):
    """ROOM: blocks are taken one at a time, as tokens reach them."""

    def _make_prefill_room(self, request: Request, full_pages: int, matched: int) -> int:
        return self._make_room(-(-request.input_tokens // self.page_tokens) - matched)

    def _make_room_by_steps(self, private: int, request: Request) -> int:
        page = self.page_tokens
        blocks = -(-(request.input_tokens + request.output_tokens - 1) // page)
        return self._make_room(private + blocks - request.input_tokens // page)


class _WithCopies(Simulator):
    """COPIES: where a prompt ends with a cached block, that block is computed again, into a copy that stays.

    The copy is a leaf beside the original. The original has the later of the two ages, since it does not matter which
    of two equal blocks is the older one; it goes last, and leaves its content to a copy that is left.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.copies: dict[Node, Node] = {}  # original -> copy
        self.tree = _Tree(1, self._was_split)
        self.tree.copies = self.copies

    def _count_reuse(self, path: list[Node], now_ms: int) -> None:
        super()._count_reuse(path, now_ms)
        for node in path:  # a hit uses the block that was cached first
            if node in self.copies:
                self.copies[node].last_access_time = node.last_access_time
                self.index.touched(self.copies[node])

    def _cache(
        self, root: Node, path: list[Node], full: Sequence[Hashable], start: int, stop: int, room: int,
        request: Request, is_output: bool = False,
    ) -> int:  # fmt: skip
        parent = path[-1] if path else root
        original = None if is_output or start + 1 != stop else parent.children.get(full[start])
        age = original.last_access_time if original is not None else 0.0
        at = super()._cache(root, path, full, start, stop, room, request, is_output)
        if original is not None:
            assert original not in self.copies, "two copies of one block are not modelled"
            (copy,) = self.tree.extend(parent, [("copy of", full[start])], 0, 0)
            copy.last_access_time = age
            self.copies[original] = copy
            self.index.add(copy)
        return at


class _Tree(PrefixTree):
    copies: dict[Node, Node]

    def remove(self, node: Node) -> Node:
        parent = super().remove(node)
        copy = self.copies.pop(node, None)
        if copy is not None:  # it holds the content now
            del parent.children[copy.key[0]]
            copy.key = node.key
            parent.children[copy.key[0]] = copy
        for original, copy in list(self.copies.items()):
            if copy is node:
                del self.copies[original]
        return parent


class _AsNeededWithCopies(_WithCopies, _AsNeeded):
    pass


#: by whether room is taken as needed, and whether there are copies
_KINDS = {
    (False, False): Simulator,
    (True, False): _AsNeeded,
    (False, True): _WithCopies,
    (True, True): _AsNeededWithCopies,
}
