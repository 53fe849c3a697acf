"""Groups read off a radix tree against a comparison of tokens, and the choice among them against all choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpolicy.attention.cost import Load, estimate
from kvpolicy.attention.groups import Group, Worth, by_cost, by_thresholds, grouped, shared_segments, with_ancestors
from kvpolicy.attention.measured import CONSTANTS

H200 = CONSTANTS["h200"]
Tokens = tuple[int, ...]


@dataclass(eq=False)
class TreeNode:
    """A radix tree of the test's own: edges of several tokens, split where prompts part."""

    parent: TreeNode | None = None
    edge: Tokens = ()
    children: dict[int, TreeNode] = field(default_factory=dict)
    looked_at: int = 0

    def insert(self, prompt: Tokens) -> TreeNode:
        if not prompt:
            return self
        child = self.children.get(prompt[0])
        if child is None:
            child = self.children[prompt[0]] = TreeNode(self, prompt)
            return child
        same = next((i for i, (a, b) in enumerate(zip(child.edge, prompt, strict=False)) if a != b), None)
        same = min(len(child.edge), len(prompt)) if same is None else same
        if same == len(child.edge):
            return child.insert(prompt[same:])
        upper = TreeNode(self, child.edge[:same], {child.edge[same]: child})  # a split, as radix caches do it
        self.children[prompt[0]] = upper
        child.parent, child.edge = upper, child.edge[same:]
        return upper.insert(prompt[same:])


def tree_of(prompts: Sequence[Tokens], others: Sequence[Tokens] = ()) -> list[TreeNode]:
    """The last node of each prompt, in a tree that also holds what other requests left."""
    root = TreeNode()
    for prompt in (*prompts, *others):
        root.insert(prompt)
    return [root.insert(prompt) for prompt in prompts]


def edge_tokens(node: TreeNode) -> int:
    node.looked_at += 1
    return len(node.edge)


def by_comparison(prompts: Sequence[Tokens]) -> set[tuple[int, int, tuple[int, ...]]]:
    """Runs of positions at which the same requests have the same prefix: (start, end, requests)."""
    runs: dict[tuple[Tokens, tuple[int, ...]], tuple[int, int]] = {}
    for depth in range(max(map(len, prompts), default=0)):
        readers: dict[Tokens, list[int]] = {}
        for request, prompt in enumerate(prompts):
            if len(prompt) > depth:
                readers.setdefault(prompt[: depth + 1], []).append(request)
        for prefix, requests in readers.items():
            if len(requests) > 1:
                before = runs.pop((prefix[:-1], tuple(requests)), (depth, depth))
                runs[(prefix, tuple(requests))] = (before[0], depth + 1)
    return {(start, end, requests) for (_, requests), (start, end) in runs.items()}


def plain(groups: Sequence[Group[TreeNode]]) -> list[tuple[int, int, tuple[int, ...]]]:
    return [(group.start_tokens, group.end_tokens, group.requests) for group in groups]


PROMPT = st.lists(st.integers(0, 2), max_size=12).map(tuple)
PROMPTS = st.lists(PROMPT, max_size=10)


@settings(max_examples=400, deadline=None)
@given(PROMPTS, PROMPTS)
def test_segments_are_what_a_comparison_of_tokens_finds(prompts: list[Tokens], others: list[Tokens]) -> None:
    held = tree_of(prompts, others)
    found = shared_segments(held, edge_tokens)
    assert len(set(plain(found))) == len(found)
    assert set(plain(found)) == by_comparison(prompts)
    # Slots of a segment: the nodes from its last up to where it begins.
    for group in found:
        node, tokens = group.node, list[int]()
        while len(tokens) < group.tokens:
            tokens = [*node.edge, *tokens]
            assert node.parent is not None
            node = node.parent
        for request in group.requests:
            assert tuple(tokens) == prompts[request][group.start_tokens : group.end_tokens]


@settings(max_examples=200, deadline=None)
@given(PROMPTS)
def test_each_token_of_a_request_is_in_one_segment_at_most(prompts: list[Tokens]) -> None:
    found = shared_segments(tree_of(prompts), edge_tokens)
    for request in range(len(prompts)):
        spans = [(g.start_tokens, g.end_tokens) for g in found if request in g.requests]
        assert spans == sorted(spans), "parents before children"
        ends = [0, *(end for _, end in spans)]
        assert [start for start, _ in spans] == ends[: len(spans)], "from the root, without a hole"


def test_each_node_is_looked_at_once() -> None:
    """A thousand requests below one long path: the path is walked once, not a thousand times."""
    shared = tuple(range(200))
    prompts = [(*shared[: i % 200 + 1], 1000 + i) for i in range(1000)]
    held = tree_of(prompts)
    shared_segments(held, edge_tokens)
    nodes = set[TreeNode]()
    for node in held:
        up: TreeNode | None = node
        while up is not None and up not in nodes:
            nodes.add(up)
            up = up.parent
    assert len(nodes) > 1000
    assert all(node.looked_at == 1 for node in nodes)


def test_requests_without_a_node_and_an_empty_batch() -> None:
    (a, b) = tree_of([(1, 2, 3), (1, 2, 4)])
    assert plain(shared_segments([None, a, None, b], edge_tokens)) == [(0, 2, (1, 3))]
    assert shared_segments([], edge_tokens) == []
    assert shared_segments([None, a], edge_tokens) == []


def test_nested_groups() -> None:
    """An agent's instructions, two sessions on it, and a request whose whole prompt is another's prefix."""
    agent, one, two = (9,) * 50, (1,) * 20, (2,) * 30
    prompts = [(*agent, *one, 7), (*agent, *two, 7), (*agent, *one, 8), (*agent, *two), (*agent, 5)]
    found = shared_segments(tree_of(prompts), edge_tokens)
    assert sorted(plain(found)) == [(0, 50, (0, 1, 2, 3, 4)), (50, 70, (0, 2)), (50, 80, (1, 3))]
    assert plain(grouped(found, by_thresholds(40, 2))) == [(0, 50, (0, 1, 2, 3, 4))]
    assert grouped(found, by_thresholds(40, 6)) == []


@settings(max_examples=200, deadline=None)
@given(PROMPTS, st.integers(0, 20), st.integers(1, 9))
def test_the_choice_is_the_best_of_all(prompts: list[Tokens], fixed: int, price: int) -> None:
    """Over every subset of the segments, and no cascade at all."""
    found = shared_segments(tree_of(prompts), edge_tokens)[:8]
    worth = Worth(lambda requests, tokens: float(requests * tokens - price * tokens - requests), float(fixed))

    def gain(groups: Sequence[Group[TreeNode]]) -> float:
        return sum(worth.saved(len(g.requests), g.tokens) for g in groups) - worth.fixed if groups else 0.0

    chosen = grouped(found, worth)
    best = max(gain(subset) for n in range(len(found) + 1) for subset in combinations(found, n))
    assert gain(chosen) == pytest.approx(best)


@pytest.mark.parametrize("batch", [8, 16, 32, 64, 128, 256])
@pytest.mark.parametrize("shared", [512, 2048, 8192, 32768])
def test_one_group_is_judged_as_the_cost_model_does(batch: int, shared: int) -> None:
    load = Load(batch, shared, 256, 16)
    worth = by_cost(H200, H200.heads, load, layers=32)
    gain = worth.saved(batch, shared) - worth.fixed
    assert gain == pytest.approx(estimate(H200, load, H200.heads).gain_ms(32))
    node = TreeNode()
    made = grouped([Group(node, 0, shared, tuple(range(batch)))], worth)
    assert bool(made) == (gain > 0 and worth.saved(batch, shared) > 0)


def test_a_request_that_shares_little_stays_out() -> None:
    """128 requests over 32k tokens are worth a pass; two of them that share 64 more are not."""

    @dataclass(frozen=True)
    class Reads:
        requests: int = 128
        read_tokens: int = 128 * (32768 + 512)
        distinct_tokens: int = 32768 + 128 * 512
        entries: int = 128 * (32768 + 512) // 16

    node = TreeNode()
    large = Group(node, 0, 32768, tuple(range(128)))
    small = Group(node, 32768, 32832, (3, 4))
    assert grouped([large, small], by_cost(H200, H200.heads, Reads(), layers=32)) == [large]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple), min_size=2, max_size=7), st.randoms())
def test_with_its_ancestors_a_choice_leaves_no_gap(prompts: list[tuple[int, ...]], rng: Random) -> None:
    """Each request's groups follow one another from the first token on, and nothing that nobody needs is added."""
    segments = shared_segments(tree_of(prompts), edge_tokens)
    chosen = [segment for segment in segments if rng.random() < 0.4]
    kept = with_ancestors(segments, chosen)
    assert [segment for segment in segments if segment in kept] == kept
    assert all(segment in kept for segment in chosen)
    for segment in kept:
        assert any(
            one in chosen and set(one.requests) <= set(segment.requests) and one.end_tokens >= segment.end_tokens
            for one in kept
        )
    for request in range(len(prompts)):
        reached = 0
        for segment in kept:
            if request in segment.requests:
                assert segment.start_tokens == reached
                reached = segment.end_tokens
