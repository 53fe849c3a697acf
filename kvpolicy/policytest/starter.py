"""First tests for a policy that has none: small cases, run now, and what the policy did in them as expectations.

They hold today by construction. Their worth is that they say in words what the policy does, and fail when it changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from kvpolicy.language import LoadResult, load_text
from kvpolicy.policytest.load import prepare
from kvpolicy.policytest.run import run_tests

__all__ = ["starter_tests"]

_HEAD = (
    "    pool: 4Ki\n    page_size: 16\n    granularity: both\n    segments: {returned: 256, once: 256, other: 256}\n"
)
_RETURNS = 5
_FLOODS = (40, 400)  # one-off prompts of 128 tokens: a little more than the pool, and many times the pool
_WARM = ["once", f"+1s returned x{1 + _RETURNS} every 1s"]


def starter_tests(policy_text: str) -> str:
    """A ``tests:`` section for the policy, to be put behind its text. ValueError: the policy has errors."""
    result = load_text(policy_text.encode(), "policy.yaml")
    if result.policy is None:
        raise ValueError("\n".join(map(str, result.diagnostics)))
    tests = [*_floods(policy_text), *_expiry(policy_text, result), *_order(policy_text)]
    return (
        "tests:  # recorded from what the policy does; where it should do otherwise, change the policy\n"
        + "\n".join(tests)
    )


def _floods(policy: str) -> Iterator[str]:
    for prompts in _FLOODS:
        steps = [*_WARM, *_protected(policy, _WARM), f"+1s flood {prompts}x128"]
        expected, fates = [], []
        for name, what in (("returned", f"a prefix that came back {_RETURNS} times"), ("once", "one used once")):
            fate = next((f for f in ("resident", "evicted") if _holds(policy, [*steps, f"{f}: [{name}]"])), None)
            if fate is not None:
                expected.append(f"{fate}: [{name}]")
                fates.append(f"{what} {'is still there' if fate == 'resident' else 'is gone'}")
        if expected:
            yield _test(f"after {prompts} one-off prompts {' and '.join(fates)}", [*steps, *expected])


def _expiry(policy: str, result: LoadResult) -> Iterator[str]:
    """One test for the first ttl: what is protected is let go at its end."""
    assert result.policy is not None
    rules = result.policy.eviction.rules if result.policy.eviction is not None else ()
    ttls = [rule.retain.ttl_ms for rule in rules if rule.retain is not None and rule.retain.ttl_ms is not None]
    before = _protected(policy, _WARM)
    if ttls and before:
        seconds = -(-ttls[0] // 1000)
        steps = [*_WARM, *before, f"+{seconds}s other", "unprotected: [returned]"]
        if _holds(policy, steps):
            yield _test(f"{seconds} s after its last use a prefix is not protected any more", steps)


def _order(policy: str) -> Iterator[str]:
    steps = ["other", "+1s returned x3 every 1s", "+1s once", "+1s other hit all"]
    for order in permutations(("other", "returned", "once")):
        expected = f"next: [{', '.join(order)}]"
        if _holds(policy, [*steps, expected]):
            yield _test(f"of three that are not in use, {order[0]} goes first", [*steps, expected])
            return


def _protected(policy: str, steps: Sequence[str]) -> list[str]:
    """The expectation that a rule protects ``returned``, if one does."""
    result = load_text(policy.encode(), "policy.yaml")
    rules = result.policy.eviction.rules if result.policy is not None and result.policy.eviction is not None else ()
    candidates = (f"protected: {{returned: {rule.name}}}" for rule in rules if rule.retain is not None)
    return [found for found in candidates if _holds(policy, [*steps, found])][:1]


def _test(name: str, steps: Sequence[str]) -> str:
    lines = "".join(f"      - {step}\n" for step in steps)
    return f"  - name: {name}\n{_HEAD}    steps:\n{lines}"


def _holds(policy: str, steps: Sequence[str]) -> bool:
    """Whether every expectation holds, by node and by page."""
    result = load_text(f"{policy}tests:\n{_test('a case', steps)}".encode(), "policy.yaml")
    if result.policy is None:
        raise ValueError("\n".join(map(str, result.diagnostics)))
    return not any(outcome.failures for outcome in run_tests(result, prepare(result, "sglang")[0]))
