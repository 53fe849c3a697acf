"""What stays and what goes under rules, tenants and priorities, as one client sees it in the cached tokens.

The policies, what a client of either engine does, and what it must see: named observations of the same steps. The
steps run inside an engine; standard library only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

POOL_TOKENS, SYSTEM_TOKENS = 512, 64
FLOOD_POOLS = 3

#: `metadata:` and what concerns one engine (`cache:`, `backend:`) go before these.
RULES = """\
eviction:
  policy: lru
  rules:
    - name: opted-out
      match: request.priority == -1
      admit: never
    - name: vip
      match: request.priority >= 9
      retain: {weight: 16}
    - name: system
      match: request.priority == 3 and not is_output
      retain: {weight: 8, ttl: 600s, budget: 25%}
    - name: agents
      match: request.hint_class == 'agent'
      retain: {weight: 4, ttl: 600s, budget: 20%}
  tenants: {by: cache_salt, named: {gold: {floor: 20%}, noisy: {cap: 20%}}}
hints: {allow: [retain, demote, expire, class], classes: [agent], max_priority: 5, max_ttl: 600s, budget: 35%}
"""

#: The same without the rule `system`, without the clamp and without hints, ordered by priority.
PRIORITIES = """\
eviction:
  policy: priority
  rules:
    - name: vip
      match: request.priority >= 9
      retain: {weight: 16}
    - name: raised
      match: request.cache_salt == 'raised'
      priority: 7
"""


def write_policies(folder: Path, engine_part: str) -> tuple[Path, Path]:
    """Files with RULES and with PRIORITIES; `engine_part` has the sections `cache:` and `backend:`."""
    paths = folder / "rules.yaml", folder / "priorities.yaml"
    for path, text in zip(paths, (RULES, PRIORITIES), strict=True):
        head = f"apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {{name: {path.stem}}}\n"
        path.write_text(head + engine_part + text)
    return paths


#: A hint of the most protection, as a request carries it.
RETAINED = {
    "protocol_version": "0.1",
    "message_id": "kept",
    "actions": [{"action_id": "kept", "action_type": "kv.retain", "action_version": "1.0", "payload": {"ttl": "5m"}}],
}


# -- what a client does ------------------------------------------------------------------------------------------------


class Client:
    """Asks, counts floods, and owns the clock that stamps requests: what a slow machine takes is no part of a ttl."""

    prompt_tokens: int
    flood_prompt_tokens: int
    #: Of a prompt for which others have to be evicted.
    long_prompt_tokens: int
    #: The figure of `room()` that counts what is cached.
    cached_figure: str

    def __init__(self, words: list[int]) -> None:
        self.words = words
        self.flooded = 0

    # -- what each engine does its own way --

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
        """The cached tokens of several requests that are made at the same time. `hints` go among the sampling
        parameters, an `envelope` in the engine's own field where this version has one."""
        raise NotImplementedError

    def pass_time(self, seconds: float) -> None:
        raise NotImplementedError

    def empty(self) -> None:
        """Empty the cache."""
        raise NotImplementedError

    def room(self) -> dict[str, Any]:
        """What the cache holds and what is free, counted independently of the policy."""
        raise NotImplementedError

    # -- the same everywhere --

    def prompt(self, number: int, count: int | None = None) -> list[int]:
        """`count` tokens of text that begin as only the prompts of this number do."""
        return [3 + number % 250, 3 + number // 250, *self.words[: (count or self.prompt_tokens) - 2]]

    def cached(self, prompt: list[int], new_tokens: int = 2, **request: Any) -> int:
        """The tokens of a prompt that were found in the cache."""
        return self.at_once([prompt], new_tokens, **request)[0]

    def ask(self, number: int, question: int = 0, **request: Any) -> int:
        """The cached tokens of a prompt; `question` varies what follows its first SYSTEM_TOKENS tokens."""
        prompt = self.prompt(number)
        prompt[SYSTEM_TOKENS] = 3 + question
        return self.cached(prompt, **request)

    def flood(self, **request: Any) -> int:
        """Prompts of their own, two at a time, worth FLOOD_POOLS times the pool; their tokens."""
        tokens = 0
        while tokens < FLOOD_POOLS * POOL_TOKENS:
            tokens += self.flood_some(2, **request)
        return tokens

    def flood_some(self, count: int, **request: Any) -> int:
        """So many prompts of their own, at the same time; their tokens."""
        prompts = [self.prompt(1000 + self.flooded + i, self.flood_prompt_tokens) for i in range(count)]
        self.flooded += count
        assert self.at_once(prompts, **request) == [0] * count
        return count * self.flood_prompt_tokens


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
    client.pass_time(590)
    flood()
    seen["within its ttl"] = ask(system)
    client.pass_time(610)  # asking matched the rule again: the unit's priority is the maximum over its requests
    flood()
    seen["after its ttl"] = ask(system)

    ask(plain)
    flood(salt="noisy")
    seen["beside a tenant over its cap"] = ask(plain)
    flood(salt="iron")
    seen["beside a tenant without a cap"] = ask(plain)
    return seen


def unadmitted(client: Client) -> dict[str, Any]:
    """Requests that must leave nothing: one of several chunks, one on a cached prefix, two at once, a long answer."""
    cached, seen = client.cached, {}
    client.empty()
    client.ask(1)
    long = client.prompt(20, 150)
    on_system = [*client.prompt(1, SYSTEM_TOKENS), *client.prompt(21, 90)]
    before = client.room()
    seen["refused"] = [cached(long, priority=-1), cached(long, priority=-1)]
    seen["refused on a prefix"] = [cached(on_system, priority=-1) for _ in range(2)]
    seen["refused twins"] = client.at_once([long, long], 12, priority=-1)
    seen["refused and long of breath"] = cached(client.prompt(23, 70), 60, priority=-1)
    seen["before"], seen["after"] = before, client.room()
    seen["admitted twins"] = client.at_once([long, long], 12)
    seen["left by admitted"] = client.room()[client.cached_figure] - before[client.cached_figure]
    # Also where its own room has to be evicted first.
    client.flood()
    seen["refused in a full pool"] = [
        cached(client.prompt(22, client.long_prompt_tokens), priority=-1) for _ in range(2)
    ]
    return seen


def under_priorities(client: Client) -> dict[str, Any]:
    ask, flood = client.ask, client.flood
    system, low, high, vip, raised, hinted = 1, 2, 3, 4, 5, 6
    ask(system, priority=3), ask(low, priority=1), ask(high, priority=4), ask(vip, priority=9)
    ask(raised, salt="raised")
    ask(hinted, priority=1, hints=RETAINED)
    flood(priority=3)
    seen = {
        "the rule removed": ask(system, priority=3),
        "low": ask(low, priority=1),
        "high": ask(high, priority=4),
        "priority below no clamp": ask(vip, priority=9),
        "raised by rule": ask(raised, salt="raised"),
        "retained by a hint that is not allowed": ask(hinted, priority=1),
    }
    flood(priority=8)
    seen["high, later"] = ask(high, priority=4)
    seen["raised by rule, later"] = ask(raised, salt="raised")
    seen["priority below no clamp, later"] = ask(vip, priority=9)
    return seen


# -- what it must see --------------------------------------------------------------------------------------------------


def assert_rules(seen: dict[str, Any], cached_tokens: int) -> None:
    """`cached_tokens`: of a whole prompt, whose last, incomplete page is never cached."""
    assert seen["first"] == [0, 0, 0, 0]
    assert seen["flood_tokens"] >= 3 * POOL_TOKENS
    assert seen["kept system"] == SYSTEM_TOKENS
    assert seen["plain"] == 0
    # hints.max_priority is 5, so that 9 does not reach the rule's 9 (PRIORITIES has the control without a clamp).
    assert seen["priority above the clamp"] == 0

    assert seen["floor without a hit"] == 0
    assert seen["hits"] == [cached_tokens, 0, cached_tokens]
    assert seen["floor"] == cached_tokens
    assert seen["no floor"] == 0

    # A quarter of the pool holds one prompt of these four: the youngest. Of the one before, its last page is the
    # youngest member, and is not found without those before it.
    assert seen["over budget"] == [0, 0, 0, cached_tokens]
    assert seen["within its ttl"] == cached_tokens
    assert seen["after its ttl"] == 0

    assert seen["beside a tenant over its cap"] == cached_tokens
    assert seen["beside a tenant without a cap"] == 0


def assert_unadmitted(seen: dict[str, Any]) -> None:
    assert seen["refused"] == [0, 0]
    assert seen["refused on a prefix"] == [SYSTEM_TOKENS, SYSTEM_TOKENS]
    assert seen["refused twins"] == [0, 0]
    assert seen["after"] == seen["before"]
    assert max(seen["admitted twins"]) > 0, "two at once share a prefix, unless it was refused"
    assert seen["left by admitted"] > 0
    assert seen["refused in a full pool"] == [0, 0]


def assert_priorities(seen: dict[str, Any], cached_tokens: int) -> None:
    assert seen["the rule removed"] == 0
    assert seen["low"] == 0
    assert seen["retained by a hint that is not allowed"] == 0
    assert seen["high"] == cached_tokens
    assert seen["priority below no clamp"] == cached_tokens
    assert seen["raised by rule"] == cached_tokens
    assert seen["high, later"] == 0
    assert seen["raised by rule, later"] == 0
    assert seen["priority below no clamp, later"] == cached_tokens
