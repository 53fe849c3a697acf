"""What stays and what goes under rules, tenants and priorities, as one client sees it in the cached tokens.

    python kept.py MODEL TEXT (rules | priorities) POLICY

Tells one object of named observations. See test_kept.py, which has the policies and says what each must be.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from subject import Subject, tell

BLOCK_TOKENS, BLOCKS = 32, 16
POOL_TOKENS = BLOCK_TOKENS * BLOCKS
SYSTEM_TOKENS, PROMPT_TOKENS = 64, 100  # a prompt's last, incomplete block is never cached: 96 at most
FLOOD_PROMPT_TOKENS, FLOOD_POOLS = 66, 3
CHUNK_TOKENS = 128


class Client:
    """Asks, counts floods, and owns the arrival times of requests: what a slow machine takes is no part of a ttl."""

    def __init__(self, subject: Subject, text: Path) -> None:
        self.subject = subject
        self.words: list[int] = subject.llm.get_tokenizer().encode(text.read_text()[:4000])
        self.flooded = 0

    def prompt(self, number: int, count: int = PROMPT_TOKENS) -> list[int]:
        """`count` tokens of text that begin as only the prompts of this number do."""
        return [3 + number % 250, 3 + number // 250, *self.words[: count - 2]]

    def ask(self, number: int, question: int = 0, priority: int | None = None, salt: str | None = None) -> int:
        """The cached tokens of a prompt; `question` varies what follows its first SYSTEM_TOKENS tokens."""
        prompt = self.prompt(number)
        prompt[SYSTEM_TOKENS] = 3 + question
        return self.subject.cached(prompt, salt=salt, **of(priority))

    def flood(self, priority: int | None = None, salt: str | None = None) -> int:
        """Prompts of their own, two at a time, worth FLOOD_POOLS times the pool; their tokens."""
        tokens = 0
        while tokens < FLOOD_POOLS * POOL_TOKENS:
            prompts = [self.prompt(1000 + self.flooded + i, FLOOD_PROMPT_TOKENS) for i in range(2)]
            self.flooded += 2
            names = [self.subject.add(prompt, 2, salt=salt, **of(priority)) for prompt in prompts]
            assert [answer.num_cached_tokens for answer in self.subject.run(names)] == [0, 0]
            tokens += 2 * FLOOD_PROMPT_TOKENS
        return tokens

    def twins(self, prompt: list[int], priority: int | None = None) -> list[int]:
        """The cached tokens of two requests for the same, at once."""
        names = [self.subject.add(prompt, 12, **of(priority)) for _ in range(2)]
        return [answer.num_cached_tokens for answer in self.subject.run(names)]


def of(priority: int | None) -> dict[str, Any]:
    """A priority for the policy alone, as a client of a server gives it."""
    return {} if priority is None else {"vllm_xargs": {"kvpolicy_priority": priority}}


def under_rules(client: Client) -> dict[str, Any]:
    ask, flood = client.ask, client.flood
    seen: dict[str, Any] = {}
    system, vip, plain, gold, iron, more = 1, 2, 3, 4, 5, (6, 7, 8)

    seen["first"] = [ask(system, priority=3), ask(vip, priority=9), ask(plain), ask(gold, salt="gold")]
    seen["flood_tokens"] = flood()
    seen["kept system"] = ask(system, question=1, priority=3)
    seen["priority above the clamp"] = ask(vip, priority=9)
    seen["plain"] = ask(plain)
    seen["floor without a hit"] = ask(gold, salt="gold")

    seen["hits"] = [ask(gold, salt="gold"), ask(iron, salt="iron"), ask(iron, salt="iron")]
    for number in more:
        ask(number, priority=3)
    flood()
    seen["floor"] = ask(gold, salt="gold")
    seen["no floor"] = ask(iron, salt="iron")
    seen["over budget"] = [ask(number) for number in (system, *more)]

    ask(system, priority=3)
    client.subject.now_s += 590
    flood()
    seen["within its ttl"] = ask(system)
    client.subject.now_s += 610  # asking matched the rule again: the unit's priority is the maximum over its requests
    flood()
    seen["after its ttl"] = ask(system)

    ask(plain)
    flood(salt="noisy")
    seen["beside a tenant over its cap"] = ask(plain)
    flood(salt="iron")
    seen["beside a tenant without a cap"] = ask(plain)
    return seen


def unadmitted(client: Client) -> dict[str, Any]:
    """Requests that must leave nothing: one of several chunks, one on a cached prefix, two at once."""
    subject, seen = client.subject, {}
    assert subject.llm.reset_prefix_cache()
    client.ask(1)
    long = client.prompt(20, 150)
    on_system = [*client.prompt(1, SYSTEM_TOKENS), *client.prompt(21, 90)]
    before = subject.witness()
    seen["refused"] = [subject.cached(long, **of(-1)), subject.cached(long, **of(-1))]
    seen["refused on a prefix"] = [subject.cached(on_system, **of(-1)) for _ in range(2)]
    seen["refused twins"] = client.twins(long, -1)
    seen["refused and long of breath"] = subject.ask(client.prompt(23, 70), 60, **of(-1)).num_cached_tokens
    seen["before"], seen["after"] = before, subject.witness()
    seen["admitted twins"] = client.twins(long)
    seen["left by admitted"] = subject.witness()["cached_blocks"] - before["cached_blocks"]
    # Also where its own room has to be evicted first.
    client.flood()
    seen["refused in a full pool"] = [subject.cached(client.prompt(22, 230), **of(-1)) for _ in range(2)]
    return seen


def under_priorities(client: Client) -> dict[str, Any]:
    ask, flood = client.ask, client.flood
    system, low, high, vip, raised = 1, 2, 3, 4, 5
    ask(system, priority=3), ask(low, priority=1), ask(high, priority=4), ask(vip, priority=9)
    ask(raised, salt="raised")
    flood(priority=3)
    seen = {
        "the rule removed": ask(system, priority=3),
        "low": ask(low, priority=1),
        "high": ask(high, priority=4),
        "priority below no clamp": ask(vip, priority=9),
        "raised by rule": ask(raised, salt="raised"),
    }
    flood(priority=8)
    seen["high, later"] = ask(high, priority=4)
    seen["raised by rule, later"] = ask(raised, salt="raised")
    seen["priority below no clamp, later"] = ask(vip, priority=9)
    return seen


def main() -> None:
    model, text, which, policy = sys.argv[1:]
    observe = {"rules": (under_rules, unadmitted), "priorities": (under_priorities,)}[which]
    with Subject(model, policy, BLOCKS, POOL_TOKENS // 2, max_num_batched_tokens=CHUNK_TOKENS) as subject:
        client = Client(subject, Path(text))
        seen = {name: value for step in observe for name, value in step(client).items()}
        tell({"seen": seen, "witness": subject.witness(), "kvpolicy": subject.status()})


if __name__ == "__main__":
    main()
