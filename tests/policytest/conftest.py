"""Short ways to run the tests of a policy text."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvpolicy.language import load_text
from kvpolicy.policytest.load import prepare
from kvpolicy.policytest.run import Outcome, run_tests

HEADER = "apiVersion: kvpolicy/v1\nkind: KVPolicy\n"
LRU = "eviction: {policy: lru}\n"
HOT = """\
eviction:
  policy: lru
  rules:
    - {name: hot, match: hits >= 1, retain: {weight: 2, ttl: 10s, budget: 50%}}
    - {name: out, match: request.priority < 0, admit: never}
"""


def one_test(*steps: str, head: str = "pool: 64", policy: str = HOT) -> str:
    lines = "".join(f"      - {step}\n" for step in steps)
    return f"{HEADER}{policy}tests:\n  - name: one\n    {head}\n    steps:\n{lines}"


@pytest.fixture
def outcomes() -> Callable[..., list[Outcome]]:
    """Run one test of some steps: the outcome of each granularity."""

    def run(*steps: str, head: str = "pool: 64", policy: str = HOT) -> list[Outcome]:
        result = load_text(one_test(*steps, head=head, policy=policy).encode(), "p.yaml")
        assert result.policy is not None, [str(d) for d in result.diagnostics]
        return list(run_tests(result, prepare(result, "sglang")[0]))

    return run


@pytest.fixture
def failures(outcomes) -> Callable[..., list[tuple[str, str]]]:
    """(expected, got) of what does not hold, by node."""

    def run(*steps: str, **more: str) -> list[tuple[str, str]]:
        return [(f.expected, f.got) for f in outcomes(*steps, **more)[0].failures]

    return run
