"""What stays and what goes on a vLLM (tests/inside/keeping.py has the steps, and what each must show).

    python kept.py MODEL TEXT (rules | hints | priorities) POLICY

Tells one object of named observations.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import hinting
import keeping
import msgspec
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
        self,
        prompts: list[list[int]],
        new_tokens: int = 2,
        *,
        priority: int | None = None,
        salt: str | None = None,
        hints: Any = None,
        envelope: Any = None,
    ) -> list[int]:
        # A priority for the policy alone, and hints, as a client of a server gives them.
        own: dict[str, Any] = {}
        arguments: dict[str, Any] = {} if priority is None else {"kvpolicy_priority": priority}
        if envelope is not None and (typed := _typed(envelope)) is not None:
            own["kv_hints"] = typed
        elif (given := hints if hints is not None else envelope) is not None:
            arguments["kv_hints"] = json.dumps(given)
        if arguments:
            own["vllm_xargs"] = arguments
        names = [self.subject.add(prompt, new_tokens, salt=salt, **own) for prompt in prompts]
        return [int(answer.num_cached_tokens) for answer in self.subject.run(names)]

    def pass_time(self, seconds: float) -> None:
        self.subject.now_s += seconds

    def empty(self) -> None:
        assert self.subject.llm.reset_prefix_cache()

    def room(self) -> dict[str, Any]:
        return self.subject.witness()


def _typed(envelope: dict[str, Any]) -> Any:
    """vLLM's own envelope, where this version has one."""
    try:
        from vllm.v1.kv_hints import KvHintsEnvelope
    except ImportError:
        return None
    return msgspec.convert(envelope, KvHintsEnvelope)


STEPS = {
    "rules": (keeping.under_rules, keeping.unadmitted),
    "hints": (hinting.under_hints,),
    "priorities": (keeping.under_priorities,),
}


def main() -> None:
    model, text, which, policy = sys.argv[1:]
    blocks, most = keeping.POOL_TOKENS // BLOCK_TOKENS, keeping.POOL_TOKENS // 2
    with Subject(model, policy, blocks, most, max_num_batched_tokens=CHUNK_TOKENS) as subject:
        client = Client(subject, Path(text))
        seen = {name: value for step in STEPS[which] for name, value in step(client).items()}
        tell({"seen": seen, "witness": subject.witness(), "kvpolicy": subject.status()})


if __name__ == "__main__":
    main()
