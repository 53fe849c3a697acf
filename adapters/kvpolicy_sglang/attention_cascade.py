"""Decode steps of SGLang's FlashInfer backend that read shared prefixes once: which steps, and with what.

Before a step, the radix tree says which of its requests share a prefix, and the policy's word (thresholds, or a cost
model) whether reading it once pays. If so, the backend is given another decode wrapper for this step, which runs our
kernel; nothing else of the backend changes. Steps without such a group are the backend's own, as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kvpolicy.attention.cost import Constants, Heads
from kvpolicy.attention.groups import Group, Worth, by_cost, by_thresholds, grouped, shared_segments, with_ancestors
from kvpolicy.kernels.cascade_steps import CascadeTables, Shared
from kvpolicy.kernels.cascade_triton import cascade_attention

__all__ = ["CascadeWrapper", "Chooser", "Reads", "Steps", "worth_of"]

#: After so many steps of the same requests, their own tokens have grown enough to ask the cost model again.
_ASK_AGAIN_STEPS = 64


class CascadeWrapper:
    """Stands where FlashInfer's decode wrapper stands, as far as a decode step calls it."""

    def __init__(self, tables: CascadeTables) -> None:
        self.tables = tables

    def forward(
        self,
        q: torch.Tensor,
        kv_cache: tuple[torch.Tensor, torch.Tensor],
        sm_scale: float,
        logits_soft_cap: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
    ) -> torch.Tensor:
        """`[requests, q heads, dim]` of attention over the step that was staged. ValueError: heads or a pool that the
        kernel does not read."""
        k, v = (side.view(-1, *side.shape[-2:]) for side in kv_cache)
        return cascade_attention(
            q, k, v, self.tables.pages, 1, self.tables.plan, sm_scale, logits_soft_cap or 0.0,
            1.0 if k_scale is None else k_scale, 1.0 if v_scale is None else v_scale,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reads:
    """What a step reads, for the cost model."""

    requests: int
    read_tokens: int
    distinct_tokens: int
    entries: int


class Chooser:
    """What of a step's requests is read once.

    `node_of` turns a request's `last_node` into the tree's node, None where the tree knows nothing of it. The answer
    for the same requests on the same nodes is kept: most steps ask nothing new. It depends on the tree and the batch
    alone, so ranks agree.
    """

    def __init__(self, node_of: Callable[[Any], Any], worth: Callable[[Reads], Worth]) -> None:
        self._node_of, self._worth = node_of, worth
        self._reqs: list[Any] = []
        self._nodes: list[Any] = []
        self._age = 0
        self._groups: list[Group[Any]] = []

    def groups(self, reqs: Sequence[Any]) -> list[Group[Any]]:
        """In the order of parents before children; the same list object while nothing changed."""
        nodes = [self._node_of(getattr(req, "last_node", None)) for req in reqs]
        if nodes == self._nodes and self._age < _ASK_AGAIN_STEPS and list(reqs) == self._reqs:
            self._age += 1
            return self._groups
        self._reqs, self._nodes, self._age = list(reqs), nodes, 0
        segments = shared_segments(nodes, lambda node: len(node.key))
        if not segments:
            self._groups = []
            return self._groups
        read_tokens = sum(len(req.origin_input_ids) + len(req.output_ids) for req in reqs)
        twice = sum((len(segment.requests) - 1) * segment.tokens for segment in segments)
        reads = Reads(len(reqs), read_tokens, read_tokens - twice, read_tokens)
        found = with_ancestors(segments, grouped(segments, self._worth(reads)))
        if found != self._groups:  # the tables hold what was found before: keep it where it is equal
            self._groups = found
        return self._groups


def worth_of(word: Any, constants: Constants, heads: Heads, layers: int) -> Callable[[Reads], Worth]:
    """From the policy's word: `auto`, or an object with `min_shared_tokens` and `min_batch`."""
    if word == "auto":
        return lambda reads: by_cost(constants, heads, reads, layers)
    fixed = by_thresholds(word.min_shared_tokens, word.min_batch)
    return lambda _reads: fixed


class Steps:
    """The tables of every batch size."""

    def __init__(self, q_heads: int, kv_heads: int, row_tokens: int, device: torch.device) -> None:
        self._heads = (q_heads, kv_heads)
        self._row_tokens, self._device = row_tokens, device
        self._tables: dict[int, CascadeTables] = {}
        self._grouped: dict[int, list[Group[Any]]] = {}  # what each says is shared

    def stage(
        self,
        groups: list[Group[Any]],
        req_to_token: torch.Tensor,
        rows: torch.Tensor,
        lens: torch.Tensor,
        pages: torch.Tensor,
    ) -> CascadeTables:
        """What a captured step reads, in the tables of its batch size, always the same ones. Its slots go to `pages`
        (int32, as long as the engine's own index of as many requests), which other steps may overwrite."""
        requests = len(rows)
        if requests not in self._tables:
            # The engine's table of slots is some tokens wider than a context may be, its index is not.
            longest = min(self._row_tokens, pages.numel() // requests)
            self._tables[requests] = CascadeTables(requests, *self._heads, longest, self._device, pages)
        tables = self._tables[requests]
        if self._grouped.get(requests) is not groups:
            tables.group(_shared(groups))
            self._grouped[requests] = groups
        tables.stage(req_to_token, rows, lens)
        return tables

    def stage_once(
        self, groups: list[Group[Any]], req_to_token: torch.Tensor, rows: torch.Tensor, lens: torch.Tensor, longest: int
    ) -> CascadeTables:
        """What a step outside graphs reads, in tables of its own: batches there can be larger than any graph's.
        `longest`: tokens of the longest context, at least."""
        longest = 1 << (longest - 1).bit_length()
        tables = CascadeTables(len(rows), *self._heads, min(longest, self._row_tokens), self._device)
        tables.group(_shared(groups))
        tables.stage(req_to_token, rows, lens)
        return tables


def _shared(groups: Sequence[Group[Any]]) -> list[Shared]:
    return [Shared(one.start_tokens, one.tokens, one.requests) for one in groups]
