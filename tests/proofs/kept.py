"""What stays and what goes on an SGLang (tests/inside/keeping.py has the steps, and what each must show).

    python kept.py MODEL TEXT RULES.yaml PRIORITIES.yaml [OTHERS]

Tells one object of named observations for each of the two policies. With OTHERS, any word, hints and a storm too.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hinting
import keeping
from subject import Subject, tell

CHUNK_TOKENS = 64


class Client(keeping.Client):
    prompt_tokens, flood_prompt_tokens, long_prompt_tokens = 84, 60, 300
    cached_figure = "nodes"

    def __init__(self, subject: Subject, text: Path) -> None:
        super().__init__(subject.engine.tokenizer_manager.tokenizer.encode(text.read_text()[:4000]))
        self.subject = subject
        self.now_s = time.monotonic()
        from kvpolicy_sglang import cache_time

        # Time stands still between requests unless a step moves it.
        cache_time.time = SimpleNamespace(monotonic_ns=lambda: int(self.now_s * 1e9))

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
        own: dict[str, Any] = {"priority": priority, "cache_salt": salt}
        if envelope is not None and "kv_hints" in signature(self.subject.engine.generate).parameters:
            own["kv_hints"] = envelope  # 0.5.23
        elif (given_hints := hints if hints is not None else envelope) is not None:
            own["custom_params"] = {"kv_hints": given_hints}
        given = {name: value for name, value in own.items() if value is not None}
        return [answer["meta_info"]["cached_tokens"] for answer in self.subject.generate(prompts, new_tokens, **given)]

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    def empty(self) -> None:
        self.subject.flush()

    def room(self) -> dict[str, Any]:
        seen = self.subject.witness()
        return {key: seen[key] for key in ("available_tokens", "evictable_tokens", "nodes", "free_slots")}


def storm(client: Client) -> dict[str, Any]:
    """Many at once in too small a pool: chunks, retractions, refusals, tenants, rules, aborts, and a flush after it."""
    engine, rng = client.subject.engine, random.Random(3)

    async def one(number: int) -> str:
        prompt = client.prompt(30 + number % 5, rng.randrange(20, 180))
        sampling = {"temperature": 0, "max_new_tokens": rng.randrange(1, 40), "ignore_eos": True}
        request = {
            "priority": rng.choice([None, -1, 3, 9]),
            "cache_salt": rng.choice([None, "gold", "noisy"]),
            "rid": f"storm-{number}",
        }
        stream = await engine.async_generate(input_ids=prompt, sampling_params=sampling, stream=True, **request)
        end = None
        async for answer in stream:
            end = answer["meta_info"]["finish_reason"]
            if number % 8 == 5:
                engine.tokenizer_manager.abort_request(rid=request["rid"])
        return str(end and end["type"])

    async def all_at_once(first: int) -> list[str]:
        return await asyncio.gather(*[one(first + i) for i in range(16)])

    ends = [end for first in (0, 16) for end in engine.loop.run_until_complete(all_at_once(first))]
    after_storm = client.subject.state()
    client.empty()
    return {"storm": Counter(ends), "after storm": after_storm}


def main() -> None:
    model, text, rules, priorities, *others = sys.argv[1:]
    rest = (hinting.under_hints, storm) if others else ()
    steps = {
        rules: (keeping.under_rules, *rest, keeping.unadmitted),
        priorities: (keeping.under_priorities,),
    }
    for policy, observe in steps.items():
        with Subject(model, policy, keeping.POOL_TOKENS, chunked_prefill_size=CHUNK_TOKENS) as subject:
            client = Client(subject, Path(text))
            seen = {name: value for step in observe for name, value in step(client).items()}
            tell({"seen": seen, "state": subject.state()})


if __name__ == "__main__":
    main()
