"""The request sequence that replay, SGLang and vLLM get. Standard library only: programs in both engines import it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

PAGE_TOKENS, POOL_TOKENS = 32, 512
MAX_PROMPT_TOKENS = 300
COUNT = 140


@dataclass(frozen=True)
class Asked:
    """One request. `parts` of its prompt are tokens, or the number of an earlier request, whose output stands there."""

    parts: tuple[tuple[int, ...] | int, ...]
    prompt_tokens: int
    output_tokens: int
    priority: int | None
    arrival_s: int

    def prompt(self, outputs: list[list[int]]) -> list[int]:
        return [token for part in self.parts for token in (outputs[part] if isinstance(part, int) else part)]


def sequence() -> list[Asked]:
    """Conversations, shared openings, exact repeats, prefixes of others; many a text ends at a page's end."""
    draw = random.Random(11)

    def words(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(3, 250) for _ in range(count))

    openings = [words(count) for count in (40, 64, 96)]
    made: list[Asked] = []
    now_s = 0
    for _ in range(COUNT):
        kind, recent = draw.random(), made[-14:]
        earlier = draw.choice(recent) if recent else None
        parts: tuple[tuple[int, ...] | int, ...]
        if earlier and kind < 0.35 and earlier.prompt_tokens + earlier.output_tokens < MAX_PROMPT_TOKENS - 40:
            parts = (*earlier.parts, made.index(earlier), words(draw.randrange(1, 40)))
        elif earlier and kind < 0.5:
            parts = earlier.parts
        elif earlier and kind < 0.6 and isinstance(earlier.parts[0], tuple):
            parts = (earlier.parts[0],)
        else:
            parts = (draw.choice(openings) + words(draw.randrange(1, 120)),)
        tokens = sum(made[part].output_tokens if isinstance(part, int) else len(part) for part in parts)
        if draw.random() < 0.4 and parts != (earlier and earlier.parts):
            parts, tokens = (*parts, words(-tokens % PAGE_TOKENS)), tokens + -tokens % PAGE_TOKENS
        output = draw.choice([1, 2, 7, 18, 33, PAGE_TOKENS - tokens % PAGE_TOKENS])
        now_s += draw.choice([1, 1, 2, 25])
        made.append(Asked(parts, tokens, output, draw.choice([None, None, None, None, None, -1, 3, 3]), now_s))
    return made


def tell_answers(ask: Any) -> dict[str, Any]:
    """What `ask(prompt, asked) -> (cached tokens, output)` answers to all of it, one request after the other."""
    prompts, outputs, cached = [], [], []
    for asked in sequence():
        prompts.append(asked.prompt(outputs))
        hit, output = ask(prompts[-1], asked)
        cached.append(hit)
        outputs.append(output)
    return {"prompts": prompts, "outputs": outputs, "cached": cached}
