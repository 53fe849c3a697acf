"""Rules, admission, tenants and priorities on a real vLLM: what survives a flood of three times the pool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.proofs.engines import Program, assert_sound, run_all
from tools.environment import CHECKOUT, EngineEnv

pytestmark = pytest.mark.engine

POOL_TOKENS, SYSTEM_TOKENS, CACHED_TOKENS = 512, 64, 96

RULES = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {name: kept}
cache: {page_size: 32}
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
  tenants: {by: cache_salt, named: {gold: {floor: 20%}, noisy: {cap: 20%}}}
hints: {max_priority: 5}
"""

#: The same without the rule `system` and without the clamp, ordered by priority.
PRIORITIES = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {name: priorities}
cache: {page_size: 32}
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


def test_what_stays(vllm_env: Callable[..., EngineEnv], real_model: Path, tmp_path: Path) -> None:
    programs = []
    for name, text in (("rules", RULES), ("priorities", PRIORITIES)):
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        programs.append(Program(vllm_env(), "kept.py", real_model, CHECKOUT / "LICENSE", name, path))
    rules, priorities = run_all(programs)
    assert_rules(rules["seen"])
    assert_unadmitted(rules["seen"])
    assert_priorities(priorities["seen"])
    for told in (rules, priorities):
        assert_sound(told)
        assert told["kvpolicy"]["core"] == "kvpolicy"
        assert sum(told["kvpolicy"]["evictions"].values()) > 50


def assert_rules(seen: dict[str, Any]) -> None:
    assert seen["first"] == [0, 0, 0, 0]
    assert seen["flood_tokens"] >= 3 * POOL_TOKENS
    assert seen["kept system"] == SYSTEM_TOKENS
    assert seen["plain"] == 0
    # hints.max_priority is 5, so that 9 does not reach the rule's 9 (PRIORITIES has the control without a clamp).
    assert seen["priority above the clamp"] == 0

    assert seen["floor without a hit"] == 0
    assert seen["hits"] == [CACHED_TOKENS, 0, CACHED_TOKENS]
    assert seen["floor"] == CACHED_TOKENS
    assert seen["no floor"] == 0

    # A quarter of the pool, 4 blocks, holds one prompt of these four: the youngest. Of the one before, the last block
    # is the youngest member, and needs all 3.
    assert seen["over budget"] == [0, 0, 0, CACHED_TOKENS]
    assert seen["within its ttl"] == CACHED_TOKENS
    assert seen["after its ttl"] == 0

    assert seen["beside a tenant over its cap"] == CACHED_TOKENS
    assert seen["beside a tenant without a cap"] == 0


def assert_unadmitted(seen: dict[str, Any]) -> None:
    assert seen["refused"] == [0, 0]
    assert seen["refused on a prefix"] == [SYSTEM_TOKENS, SYSTEM_TOKENS]
    assert seen["refused twins"] == [0, 0]
    assert seen["after"] == seen["before"]  # free blocks, cached blocks, and what they hold
    assert max(seen["admitted twins"]) > 0, "two at once share a prefix, unless it was refused"
    assert seen["left by admitted"] > 0
    assert seen["refused in a full pool"] == [0, 0]


def assert_priorities(seen: dict[str, Any]) -> None:
    assert seen["the rule removed"] == 0
    assert seen["low"] == 0
    assert seen["high"] == CACHED_TOKENS
    assert seen["priority below no clamp"] == CACHED_TOKENS
    assert seen["raised by rule"] == CACHED_TOKENS
    assert seen["high, later"] == 0
    assert seen["raised by rule, later"] == 0
    assert seen["priority below no clamp, later"] == CACHED_TOKENS
