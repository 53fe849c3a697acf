"""First tests are recorded from what a policy does: they pass for it, and fail for one that does otherwise."""

from __future__ import annotations

import pytest

from kvpolicy.language import load_text
from kvpolicy.policytest.load import prepare
from kvpolicy.policytest.run import run_tests
from kvpolicy.policytest.starter import starter_tests
from kvpolicy.replay.recommend import candidates
from kvpolicy.replay.search import render_policy

from .conftest import HEADER

LRU = "eviction: {policy: lru}\n"
HITS = "eviction: {score: 50 * log1p(hits) - idle_requests}\n"
RETAIN = """\
eviction:
  policy: lru
  rules:
    - {name: reused, match: hits >= 2, retain: {weight: 4, ttl: 60s, budget: 25%}}
"""


def failures(text: str) -> list[str]:
    result = load_text(text.encode(), "p.yaml")
    assert result.policy is not None, result.diagnostics
    return [f.expected for outcome in run_tests(result, prepare(result, "sglang")[0]) for f in outcome.failures]


@pytest.mark.parametrize("policy", [LRU, HITS, RETAIN], ids=["lru", "hits", "retain"])
def test_they_hold_for_the_policy_and_for_no_other(policy: str) -> None:
    text = HEADER + policy
    tests = starter_tests(text)
    assert failures(text + tests) == []
    for other in {LRU, HITS, RETAIN} - {policy}:
        if "reused" not in tests or "reused" in other:  # a rule that does not exist is an error, found before any run
            assert failures(HEADER + other + tests), f"tests of\n{policy}pass for\n{other}"


def test_they_say_what_the_policy_does() -> None:
    tests = starter_tests(HEADER + RETAIN)
    assert "after 40 one-off prompts a prefix that came back 5 times is still there and one used once is gone" in tests
    assert "60 s after its last use a prefix is not protected any more" in tests
    assert "protected: {returned: reused}" in tests
    assert "of three that are not in use, once goes first" in tests


@pytest.mark.parametrize("candidate", candidates(7, 12), ids=lambda c: c.name)
def test_every_kind_of_candidate_gets_some(candidate) -> None:
    text = render_policy(candidate, ["evidence"])
    tests = starter_tests(text)
    assert tests.count("- name:") >= 2
    assert failures(text + tests) == []


def test_a_policy_with_errors_gets_none() -> None:
    with pytest.raises(ValueError, match="KVP302"):
        starter_tests(HEADER + "eviction: {policy: lri}\n")
