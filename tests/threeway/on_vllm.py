"""The sequence on a real vLLM under each policy: `python on_vllm.py MODEL POLICY ...`, one TOLD line a policy."""

from __future__ import annotations

import sys
from typing import Any

from sequence import PAGE_TOKENS, POOL_TOKENS, Asked, tell_answers
from subject import Subject, tell


def main() -> None:
    model, *policies = sys.argv[1:]
    for policy in policies:
        with Subject(model, policy, POOL_TOKENS // PAGE_TOKENS, POOL_TOKENS) as subject:

            def ask(prompt: list[int], asked: Asked, subject: Any = subject) -> tuple[int, list[int]]:
                subject.now_s = float(1_000_000 + asked.arrival_s)
                own = {} if asked.priority is None else {"vllm_xargs": {"kvpolicy_priority": asked.priority}}
                answer = subject.ask(prompt, asked.output_tokens, **own)
                return answer.num_cached_tokens, list(answer.outputs[0].token_ids)

            tell(tell_answers(ask) | {"kvpolicy": subject.status(), "witness": subject.witness()})


if __name__ == "__main__":
    main()
