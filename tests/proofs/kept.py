"""What stays and what goes under rules, tenants and priorities, as one client sees it in `cached_tokens`.

    python kept.py MODEL TEXT RULES.yaml PRIORITIES.yaml

Tells one object of named observations for each of the two policies (see test_kept.py, which has the policies and says
what each observation must be).
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from subject import Subject, tell

PAGE = 16
POOL_TOKENS = 512
SYSTEM_TOKENS, PROMPT_TOKENS = 64, 84  # a prompt's last, incomplete page is never cached: 80 at most
FLOOD_PROMPT_TOKENS, FLOOD_POOLS = 60, 3
CHUNK_TOKENS = 64


class Client:
    """Asks, counts floods, and owns the clock of the process that stamps requests."""

    def __init__(self, subject: Subject, text: Path) -> None:
        self.subject = subject
        self.words: list[int] = subject.engine.tokenizer_manager.tokenizer.encode(text.read_text()[:4000])
        self.flooded = 0
        self.now_s = time.monotonic()
        from kvpolicy_sglang import cache_time

        # Time stands still between requests unless a step moves it: what a slow machine takes is no part of a ttl.
        cache_time.time = SimpleNamespace(monotonic_ns=lambda: int(self.now_s * 1e9))

    def prompt(self, number: int, count: int = PROMPT_TOKENS) -> list[int]:
        """`count` tokens of text that begin as only the prompts of this number do."""
        return [3 + number % 250, 3 + number // 250, *self.words[: count - 2]]

    def ask(self, number: int, question: int = 0, **request: Any) -> int:
        """The cached tokens of a prompt; `question` varies what follows its first SYSTEM_TOKENS tokens."""
        prompt = self.prompt(number)
        prompt[SYSTEM_TOKENS] = 3 + question
        return self.subject.cached(prompt, **request)

    def flood(self, **request: Any) -> int:
        """Prompts of their own, two at a time, worth FLOOD_POOLS times the pool; their tokens."""
        tokens = 0
        while tokens < FLOOD_POOLS * POOL_TOKENS:
            prompts = [self.prompt(1000 + self.flooded + i, FLOOD_PROMPT_TOKENS) for i in range(2)]
            self.flooded += 2
            answers = self.subject.generate(prompts, **request)
            assert [answer["meta_info"]["cached_tokens"] for answer in answers] == [0, 0]
            tokens += 2 * FLOOD_PROMPT_TOKENS
        return tokens

    def room(self) -> dict[str, Any]:
        seen = self.subject.witness()
        return {key: seen[key] for key in ("available_tokens", "evictable_tokens", "nodes", "free_slots")}


def under_rules(client: Client) -> dict[str, Any]:
    ask, flood = client.ask, client.flood
    seen: dict[str, Any] = {}
    system, vip, plain, gold, iron, more = 1, 2, 3, 4, 5, (6, 7, 8)

    seen["first"] = [
        ask(system, priority=3), ask(vip, priority=9), ask(plain), ask(gold, cache_salt="gold"),
    ]  # fmt: skip
    seen["flood_tokens"] = flood()
    seen["kept system"] = ask(system, question=1, priority=3)
    seen["priority above the clamp"] = ask(vip, priority=9)
    seen["plain"] = ask(plain)
    seen["floor without a hit"] = ask(gold, cache_salt="gold")

    seen["hits"] = [ask(gold, cache_salt="gold"), ask(iron, cache_salt="iron"), ask(iron, cache_salt="iron")]
    for number in more:
        ask(number, priority=3)
    flood()
    seen["floor"] = ask(gold, cache_salt="gold")
    seen["no floor"] = ask(iron, cache_salt="iron")
    seen["over budget"] = [ask(number) for number in (system, *more)]

    ask(system, priority=3)
    client.now_s += 590
    flood()
    seen["within its ttl"] = ask(system)
    client.now_s += 610  # asking matched the rule again: the unit's priority is the maximum over its requests
    flood()
    seen["after its ttl"] = ask(system)

    ask(plain)
    flood(cache_salt="noisy")
    seen["beside a tenant over its cap"] = ask(plain)
    flood(cache_salt="iron")
    seen["beside a tenant without a cap"] = ask(plain)
    return seen


def unadmitted(client: Client) -> dict[str, Any]:
    """Requests that must leave nothing: one of several chunks, one on a cached prefix, two at once."""
    subject, seen = client.subject, {}
    subject.flush()
    client.ask(1)
    long = client.prompt(20, 150)
    on_system = [*client.prompt(1, SYSTEM_TOKENS), *client.prompt(21, 90)]
    before = client.room()
    seen["refused"] = [subject.cached(long, priority=-1), subject.cached(long, priority=-1)]
    seen["refused on a prefix"] = [subject.cached(on_system, priority=-1) for _ in range(2)]
    twins = subject.generate([long, long], 12, priority=-1)
    seen["refused twins"] = [twin["meta_info"]["cached_tokens"] for twin in twins]
    after = client.room()
    seen["before"], seen["after"] = before, after
    twins = subject.generate([long, long], 12)
    seen["admitted twins"] = [twin["meta_info"]["cached_tokens"] for twin in twins]
    seen["left by admitted"] = client.room()["nodes"] - before["nodes"]
    # Also where its own room has to be evicted first.
    client.flood()
    seen["refused in a full pool"] = [subject.cached(client.prompt(22, 300), priority=-1) for _ in range(2)]
    return seen


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
    client.subject.flush()
    return {"storm": Counter(ends), "after storm": after_storm}


def under_priorities(client: Client) -> dict[str, Any]:
    ask, flood = client.ask, client.flood
    system, low, high, vip, raised = 1, 2, 3, 4, 5
    ask(system, priority=3), ask(low, priority=1), ask(high, priority=4), ask(vip, priority=9)
    ask(raised, cache_salt="raised")
    flood(priority=3)
    seen = {
        "the rule removed": ask(system, priority=3),
        "low": ask(low, priority=1),
        "high": ask(high, priority=4),
        "priority below no clamp": ask(vip, priority=9),
        "raised by rule": ask(raised, cache_salt="raised"),
    }
    flood(priority=8)
    seen["high, later"] = ask(high, priority=4)
    seen["raised by rule, later"] = ask(raised, cache_salt="raised")
    seen["priority below no clamp, later"] = ask(vip, priority=9)
    return seen


def main() -> None:
    model, text, rules, priorities = sys.argv[1:]
    for policy, *observe in ((rules, under_rules, unadmitted, storm), (priorities, under_priorities)):
        with Subject(model, policy, POOL_TOKENS, chunked_prefill_size=CHUNK_TOKENS) as subject:
            client = Client(subject, Path(text))
            seen = {name: value for step in observe for name, value in step(client).items()}
            tell({"seen": seen, "state": subject.state()})


if __name__ == "__main__":
    main()
