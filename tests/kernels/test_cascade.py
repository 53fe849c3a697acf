"""The cascade's reference against one softmax over everything, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpolicy.attention.groups import by_thresholds, grouped, shared_segments
from kvpolicy.kernels.cascade import Part, State, attend, cascade_attention, merge
from tests.attention.test_groups import TreeNode, edge_tokens, tree_of

DIM, V_DIM = 16, 16
SCALE = 1 / math.sqrt(DIM)


def whole(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One query [query heads, dim] over k, v [tokens, KV heads, dim], head by head, in float64."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[0] // k.shape[1]
    heads = []
    for head in range(q.shape[0]):
        weights = torch.softmax(k[:, head // group] @ q[head] * SCALE, dim=0)
        heads.append(weights @ v[:, head // group])
    return torch.stack(heads)


class Batch:
    """Requests over a pool whose pages lie in random order; slots that nobody holds are poisoned."""

    def __init__(self, prompts: list[tuple[int, ...]], own: list[int], page: int, seed: int, dtype: torch.dtype):
        rng = torch.Generator().manual_seed(seed)
        self.held = tree_of(prompts)
        nodes: dict[TreeNode, torch.Tensor] = {}
        tails: list[torch.Tensor] = []
        pages = iter(torch.randperm(4096, generator=rng).tolist())

        def slots(tokens: int) -> torch.Tensor:
            taken = [next(pages) for _ in range(-(-tokens // page))]
            return torch.tensor([p * page + i for p in taken for i in range(page)][:tokens], dtype=torch.int64)

        for node in self.held:
            up: TreeNode | None = node
            while up is not None and up not in nodes:
                nodes[up] = slots(len(up.edge))
                up = up.parent
        self.nodes = nodes
        tails = [slots(tokens) for tokens in own]
        self.slots = [torch.cat([self.path(node, 0), tail]) for node, tail in zip(self.held, tails, strict=True)]
        self.lengths = [len(prompt) for prompt in prompts]
        heads = (4, 2)
        self.k = torch.full((4096 * page, heads[1], DIM), math.nan, dtype=dtype)
        self.v = torch.full((4096 * page, heads[1], V_DIM), math.nan, dtype=dtype)
        for used in self.slots:
            self.k[used] = torch.randn(len(used), heads[1], DIM, generator=rng).to(dtype) * 2
            self.v[used] = torch.randn(len(used), heads[1], V_DIM, generator=rng).to(dtype)
        self.q = (torch.randn(len(prompts), heads[0], DIM, generator=rng) * 2).to(dtype)

    def path(self, node: TreeNode | None, start: int) -> torch.Tensor:
        """Slots from position `start` to the end of `node`."""
        found: list[torch.Tensor] = []
        while node is not None:
            found.insert(0, self.nodes[node])
            node = node.parent
        return torch.cat(found)[start:]

    def parts(self, min_tokens: int, min_batch: int) -> list[Part]:
        """Groups by the tree, and each request's rest."""
        groups = grouped(shared_segments(self.held, edge_tokens), by_thresholds(min_tokens, min_batch))
        rest = [torch.ones(len(slots), dtype=torch.bool) for slots in self.slots]
        found = []
        for group in groups:
            found.append(Part(group.requests, self.path(group.node, group.start_tokens)))
            for request in group.requests:
                rest[request][group.start_tokens : group.end_tokens] = False
        return [*found, *(Part([i], self.slots[i][keep]) for i, keep in enumerate(rest))]

    def exact(self) -> torch.Tensor:
        return torch.stack([whole(q, self.k[s], self.v[s]) for q, s in zip(self.q, self.slots, strict=True)])


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    prompts = draw(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=24).map(tuple), min_size=1, max_size=6))
    own = draw(st.lists(st.integers(0, 9), min_size=len(prompts), max_size=len(prompts)))
    return Batch(prompts, own, draw(st.sampled_from((1, 4, 16))), draw(st.integers(0, 999)), torch.float64)


@settings(max_examples=60, deadline=None)
@given(batches(), st.integers(1, 8), st.integers(2, 4))
def test_equal_to_one_softmax(batch: Batch, min_tokens: int, min_batch: int) -> None:
    """Nested groups, shuffled pages, poison in every slot that is not read and in what is written."""
    out = torch.full_like(batch.q, math.nan)
    lse = cascade_attention(batch.q, batch.k, batch.v, batch.parts(min_tokens, min_batch), SCALE, out)
    torch.testing.assert_close(out, batch.exact(), rtol=1e-12, atol=1e-12)
    assert torch.isfinite(lse).all()


def agents(dtype: torch.dtype, seed: int) -> Batch:
    """Two sessions of an agent: nested groups of 24, 16 and 12 requests... and requests of their own."""
    agent = tuple([0, 1] * 200)
    prompts = [(*agent, *([session] * 100), 2 + i) for i in range(8) for session in (0, 1)] + [(*agent, 9)] * 4
    return Batch(prompts, [37] * len(prompts), 16, seed, dtype)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_worse_than_without_groups(dtype: torch.dtype, seed: int) -> None:
    """The error against float64 on the same stored numbers, beside that of one pass a request."""
    batch = agents(dtype, seed)
    errors = []
    for min_batch in (2, 10**6):
        parts = batch.parts(16, min_batch)
        assert (len(parts) > len(batch.slots)) == (min_batch == 2)
        out = torch.full_like(batch.q, math.nan)
        cascade_attention(batch.q, batch.k, batch.v, parts, SCALE, out)
        exact = batch.exact()
        errors.append(((out.double() - exact).norm() / exact.norm()).item())
    with_groups, without = errors
    assert with_groups <= 1.2 * without + 1e-7
    assert with_groups < (1e-6 if dtype == torch.float32 else 4e-3)


def test_a_wrong_merge_is_seen() -> None:
    """What the comparison is there for: parts merged by plain averages, and a segment read by too few requests."""
    batch = agents(torch.float64, 1)
    exact = batch.exact()
    parts = batch.parts(16, 2)
    states = [attend(batch.q[list(p.requests)], batch.k[p.slots], batch.v[p.slots], SCALE) for p in parts]
    average, seen = torch.zeros_like(batch.q), torch.zeros(len(batch.q), 1, 1)
    for part, state in zip(parts, states, strict=True):
        average[list(part.requests)] += state.out
        seen[list(part.requests)] += 1
    assert ((average / seen - exact).norm() / exact.norm()).item() > 0.1
    short = [Part(parts[0].requests[:-1], parts[0].slots), *parts[1:]]
    out = torch.empty_like(batch.q)
    cascade_attention(batch.q, batch.k, batch.v, short, SCALE, out)
    assert not torch.allclose(out, exact, rtol=1e-6)


def test_merge_over_nothing() -> None:
    q = torch.randn(2, 4, DIM, dtype=torch.float64)
    k, v = torch.randn(3, 2, DIM, dtype=torch.float64), torch.randn(3, 2, V_DIM, dtype=torch.float64)
    nothing, some = attend(q, k[:0], v[:0], SCALE), attend(q, k, v, SCALE)
    for merged in (merge(nothing, some), merge(some, nothing)):
        torch.testing.assert_close(merged.out, some.out)
        torch.testing.assert_close(merged.lse, some.lse)
    empty: State = merge(nothing, nothing)
    assert (empty.out == 0).all()
    assert (empty.lse == -math.inf).all()


def test_scores_beyond_the_range_of_exp() -> None:
    """The larger score decides, without overflow, whichever part it is in."""
    q = torch.full((1, 2, DIM), 30.0)
    k = torch.cat([torch.full((1, 2, DIM), 30.0), torch.full((1, 2, DIM), -30.0)])
    v = torch.stack([torch.ones(2, V_DIM), torch.zeros(2, V_DIM)])
    for order in ((0, 1), (1, 0)):
        out = torch.full((1, 2, V_DIM), math.nan)
        cascade_attention(q, k, v, [Part([0], torch.tensor([i])) for i in order], 1.0, out)
        assert (out == 1).all()
