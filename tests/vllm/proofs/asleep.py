"""An engine that sleeps and wakes between two rounds of the same prompts, on a pool that holds a third of them.

    python asleep.py MODEL (stock | POLICY) (sleep | pause | keep) [ENGINE_ARGUMENT=VALUE ...]

`sleep` needs a GPU: weights move to the host, the KV cache's memory is given back. `pause` is what vLLM does to the
scheduler and its block pool before that, and runs anywhere. `keep` is the fault: a pool whose contents outlive their
memory. Each round: the prompts one at a time, then all at once.
Tells one object.
"""

from __future__ import annotations

import ast
import random
import sys
from typing import Any

from subject import Subject, tell

BLOCK_TOKENS = 32
BLOCKS, PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 24, 12, 130, 40


def ask_all(subject: Subject, prompts: list[list[int]]) -> dict[str, Any]:
    alone = [subject.ask(prompt, 4) for prompt in prompts]
    again = subject.ask(prompts[-1], 4)
    together = subject.run([subject.add(prompt, NEW_TOKENS) for prompt in prompts])
    status = subject.status()
    return {
        "output_ids": [list(answer.outputs[0].token_ids) for answer in alone],
        "first_cached": alone[0].num_cached_tokens,
        "again_cached": again.num_cached_tokens,
        "together_tokens": [len(answer.outputs[0].token_ids) for answer in together],
        "evictions": sum(status["evictions"].values()) if status else 0,
    }


def main() -> None:
    model, policy, how, *more = sys.argv[1:]
    given = {name: ast.literal_eval(value) for name, value in (argument.split("=", 1) for argument in more)}
    if how == "sleep":
        given["enable_sleep_mode"] = True
    if policy == "stock":
        given["block_size"] = BLOCK_TOKENS
    rng = random.Random(7)
    prompts = [[rng.randrange(10, 250) for _ in range(PROMPT_TOKENS)] for _ in range(PROMPTS)]
    with Subject(model, None if policy == "stock" else policy, BLOCKS, 256, **given) as subject:
        before = ask_all(subject, prompts)
        if how == "sleep":
            subject.llm.sleep(level=1)
            asleep = subject.engine.is_sleeping()
            subject.llm.wake_up()
        else:
            subject.core.pause_scheduler(mode="abort", clear_cache=how == "pause")
            asleep = subject.core.is_scheduler_paused()
            subject.core.resume_scheduler()
        empty = subject.witness()
        after = ask_all(subject, prompts)
        tell(
            {
                "asleep": asleep,
                "async_scheduling": subject.core.vllm_config.scheduler_config.async_scheduling,
                "before": before,
                "empty": empty,
                "after": after,
                "kvpolicy": subject.status(),
                "witness": subject.witness(),
            }
        )


if __name__ == "__main__":
    main()
