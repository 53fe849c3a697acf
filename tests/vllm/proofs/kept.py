"""What stays and what goes on a vLLM (tests/inside/keeping.py has the steps, and what each must show).

    python kept.py MODEL TEXT (rules | priorities) POLICY

Tells one object of named observations.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keeping
from subject import Subject, tell

BLOCK_TOKENS = 32
CHUNK_TOKENS = 128


class Client(keeping.Client):
    prompt_tokens, flood_prompt_tokens, long_prompt_tokens = 100, 66, 230  # a request has at most half the pool here
    cached_figure = "cached_blocks"

    def __init__(self, subject: Subject, text: Path) -> None:
        super().__init__(subject.llm.get_tokenizer().encode(text.read_text()[:4000]))
        self.subject = subject

    def at_once(
        self, prompts: list[list[int]], new_tokens: int = 2, *, priority: int | None = None, salt: str | None = None
    ) -> list[int]:
        # A priority for the policy alone, as a client of a server gives it.
        own: dict[str, Any] = {} if priority is None else {"vllm_xargs": {"kvpolicy_priority": priority}}
        names = [self.subject.add(prompt, new_tokens, salt=salt, **own) for prompt in prompts]
        return [int(answer.num_cached_tokens) for answer in self.subject.run(names)]

    def pass_time(self, seconds: float) -> None:
        self.subject.now_s += seconds

    def empty(self) -> None:
        assert self.subject.llm.reset_prefix_cache()

    def room(self) -> dict[str, Any]:
        return self.subject.witness()


STEPS = {"rules": (keeping.under_rules, keeping.unadmitted), "priorities": (keeping.under_priorities,)}


def main() -> None:
    model, text, which, policy = sys.argv[1:]
    blocks, most = keeping.POOL_TOKENS // BLOCK_TOKENS, keeping.POOL_TOKENS // 2
    with Subject(model, policy, blocks, most, max_num_batched_tokens=CHUNK_TOKENS) as subject:
        client = Client(subject, Path(text))
        seen = {name: value for step in STEPS[which] for name, value in step(client).items()}
        tell({"seen": seen, "witness": subject.witness(), "kvpolicy": subject.status()})


if __name__ == "__main__":
    main()
