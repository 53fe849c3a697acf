"""A rule that protects less than one page protects nothing, and `check` says so."""

from __future__ import annotations

from math import inf

import pytest

from kvpolicy.facts import report
from kvpolicy.facts.short_prefix import deepest_match_tokens
from tests.facts.test_report import codes, found, policy

RULE = "eviction: {policy: lru, rules: [{name: keep, match: %s, retain: {weight: 1, budget: 20%%}}]}"


@pytest.mark.parametrize(
    ("match", "deepest"),
    [
        ("depth_tokens <= 100", 100),
        ("depth_tokens < 100", 99),
        ("100 >= depth_tokens and hits >= 3", 100),
        ("0 < depth_tokens <= 64", 64),
        ("depth_tokens == 32", 32),
        ("depth_tokens <= 64 or depth_tokens <= 256", 256),
        ("depth_tokens <= 64 or hits > 2", inf),
        ("depth_tokens >= 64", inf),
        ("not depth_tokens > 64", inf),
        ("hits >= 2", inf),
        ("depth_tokens <= 64 * 2", inf),
    ],
)
def test_deepest_match(match: str, deepest: float) -> None:
    assert deepest_match_tokens(match) == deepest


@pytest.mark.parametrize(
    ("engine", "gpu", "depth", "warns"),
    [
        ("vllm==0.32.0", "cpu", 127, True),
        ("vllm==0.32.0", "cpu", 128, False),
        ("vllm==0.32.0", "h200", 16, False),
        ("sglang==0.5.23", "h200", 1, False),
        ("sglang==0.5.23", "b200", 63, True),
    ],
)
def test_a_rule_below_one_page_warns(engine: str, gpu: str, depth: int, warns: bool) -> None:
    items = report(policy(RULE % f"depth_tokens <= {depth}"), engine=engine, gpu=gpu)
    assert ("KVP525" in codes(items)) == warns
    if warns:
        assert found(items, "KVP525").severity == "warning"
        assert (found(items, "KVP525").data or {})["deepest_match_tokens"] == depth
