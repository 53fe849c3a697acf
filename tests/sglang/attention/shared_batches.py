"""Batches whose requests share a prefix, in a real scheduler, with a cascade and without.

python shared_batches.py MODEL (stock | POLICY) ...
"""

from __future__ import annotations

import random
import sys
from typing import Any

from subject import Subject, tell

VOCABULARY, NEW_TOKENS = 100, 12


def workload() -> tuple[list[list[int]], list[list[list[int]]]]:
    """(what is cached first, batches): two groups, one of them with a longer prefix for some; then nothing shared."""
    rng = random.Random(7)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(10, VOCABULARY) for _ in range(count)]

    common, deeper, other = tokens(90), tokens(50), tokens(70)
    prefixes = [common, common + deeper, other]
    shared = [[*prefix, *tokens(rng.randrange(1, 20))] for prefix in prefixes for _ in range(3)]
    return prefixes, [shared, [tokens(rng.randrange(30, 60)) for _ in range(4)]]


def measure(subject: Subject) -> dict[str, Any]:
    prefixes, batches = workload()
    for prefix in prefixes:
        subject.generate(prefix, 1)
    answers = [subject.generate(batch, NEW_TOKENS, return_logprob=True) for batch in batches]
    state = subject.state()
    return {
        "output_ids": [[answer["output_ids"] for answer in batch] for batch in answers],
        "logprobs": [
            [[step[0] for step in answer["meta_info"]["output_token_logprobs"]] for answer in batch]
            for batch in answers
        ],
        "cached": [[answer["meta_info"]["cached_tokens"] for answer in batch] for batch in answers],
        "kvpolicy": state.get("kvpolicy"),
    }


def main() -> None:
    model, *cases = sys.argv[1:]
    for case in cases:
        policy = None if case == "stock" else case
        more = {"attention_backend": "torch_native"} if policy is None else {}
        with Subject(model, policy, 4096, disable_overlap_schedule=False, **more) as subject:
            tell(measure(subject))


if __name__ == "__main__":
    main()
