"""The sequence on a real SGLang under each policy: `python on_sglang.py MODEL POLICY ...`, one TOLD line a policy."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from sequence import POOL_TOKENS, Asked, tell_answers
from subject import Subject, tell


def main() -> None:
    model, *policies = sys.argv[1:]
    for policy in policies:
        with Subject(model, policy, POOL_TOKENS) as subject:
            from kvpolicy_sglang import cache_time

            now = SimpleNamespace(ns=0)
            cache_time.time = SimpleNamespace(monotonic_ns=lambda now=now: now.ns)

            def ask(prompt: list[int], asked: Asked, subject: Any = subject, now: Any = now) -> tuple[int, list[int]]:
                now.ns = (1_000_000 + asked.arrival_s) * 10**9
                answer = subject.generate(prompt, asked.output_tokens, priority=asked.priority)
                return answer["meta_info"]["cached_tokens"], answer["output_ids"]

            told = tell_answers(ask)
            state = subject.state()
            tell(told | {"kvpolicy": state["kvpolicy"], "witness": state["witness"]})


if __name__ == "__main__":
    main()
