"""KVP320 to KVP326: the `tests:` section."""

from __future__ import annotations

from kvpolicy.language.codes.base import Code, codes

__all__ = ["POLICY_TESTS"]


def _test(steps: str, head: str = "pool: 256") -> str:
    return f"eviction: {{policy: lru}}\ntests:\n  - name: a prompt stays\n    {head}\n    steps:\n{steps}"


POLICY_TESTS = codes(
    Code(
        "KVP320",
        "step cannot be read",
        "A step is an event as text, or a mapping of expectations. An event is `[+DURATION] PATH`, with `-> OUTPUT`, "
        "`xN`, `every DURATION`, `for DURATION`, `tenant=`, `priority=`, `session=`, `lora=` and `hit` after it, or a "
        "`flood NxTOKENS`. Time moves only with a request.",
        bad=_test("      - sys:64/ana:32\n      - +10s\n      - sys/ana hit all\n"),
        good=_test("      - sys:64/ana:32\n      - +10s sys/ana hit all\n"),
    ),
    Code(
        "KVP321",
        "segment without one length",
        "Every segment of a path is a run of tokens of one length: write it at its first use (`sys:64`) or declare it "
        "in `segments`, where `turn: 64` holds for turn1, turn2, ... too.",
        bad=_test("      - sys/ana:32\n      - sys hit all\n"),
        good=_test("      - sys:64/ana:32\n      - sys hit all\n"),
    ),
    Code(
        "KVP322",
        "expectation of what no step does",
        "An expectation names a prefix or a tenant that no step before it requests: it would hold, or fail, for no "
        "reason of the policy's.",
        bad=_test("      - sys:64/ana:32\n      - resident: [sys/anna]\n"),
        good=_test("      - sys:64/ana:32\n      - resident: [sys/ana]\n"),
    ),
    Code(
        "KVP323",
        "expectation of an unknown rule",
        "`protected` and `evicted_tokens` name rules of this policy (after `extends`); `evicted_tokens` also knows "
        "`unprotected`.",
        bad=_test("      - sys:64/ana:32\n      - evicted_tokens: {opening: 0}\n"),
        good=_test("      - sys:64/ana:32\n      - evicted_tokens: {unprotected: 0}\n"),
    ),
    Code(
        "KVP324",
        "test expects nothing",
        "Without a `hit` or an expectation only the invariants are checked, whatever the policy does.",
        bad=_test("      - sys:64/ana:32\n"),
        good=_test("      - sys:64/ana:32\n      - sys/ana hit all\n"),
    ),
    Code(
        "KVP325",
        "test name given twice",
        "The name says which test failed.",
        bad=_test("      - sys:64 hit 0\n") + "  - name: a prompt stays\n    pool: 64\n    steps: [sys:64 hit none]\n",
        good=_test("      - sys:64 hit 0\n") + "  - name: and another\n    pool: 64\n    steps: [sys:64 hit none]\n",
    ),
    Code(
        "KVP326",
        "test out of proportion",
        "A test is a small cache: its pool holds at least one page, and pool and prompts stay below 4Mi tokens. Shares "
        "of the pool (budgets, floors) mean the same in a small one.",
        bad=_test("      - sys:64 hit none\n", "pool: 8Mi"),
        good=_test("      - sys:64 hit none\n", "pool: 8Ki"),
    ),
)
