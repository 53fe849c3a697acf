"""Policies at work in a real server: retained prompts survive floods, refused requests leave nothing, time passes."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartServer
from tools.environment import EngineEnv
from tools.server import Server

pytestmark = pytest.mark.server

PROBE = Path(__file__).resolve().parent / "probe"
POOL_TOKENS = 1024
PAGE = 16

POLICY = """
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {name: test}
cache: {page_size: 16}
eviction:
  policy: lru
  rules:
    - name: opted-out
      match: request.priority == -1
      admit: never
    - name: kept
      match: request.priority == 1 and not is_output
      retain: {weight: 8, budget: 25%}
    - name: kept-for-a-while
      match: request.priority == 2 and not is_output
      retain: {weight: 4, ttl: 4s}
"""


def tokens(seed: int, count: int = 128) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 250) for _ in range(count)]


def cached(server: Server, prompt: list[int], **request: int) -> int:
    answer = server.generate(prompt, 2, **request)
    return int(answer["meta_info"]["cached_tokens"])


def flood(server: Server, seed: int) -> None:
    """At least three times the pool in prompts that share nothing."""
    for i in range(3 * POOL_TOKENS // 120):
        cached(server, tokens(10_000 * seed + i, 120))


def held(server: Server) -> dict[str, int]:
    """What the scheduler's allocator and tree hold, counted by a plugin of the tests' own."""
    counts = server.internal_state()["test_probe"]
    assert isinstance(counts, dict)
    return counts


@pytest.fixture
def probed(server: StartServer, sglang_env: Callable[..., EngineEnv]) -> StartServer:
    """`server`, with the counting plugin beside kvpolicy."""

    def start(version: str, *flags: str, **options: Any) -> AbstractContextManager[Server]:
        path = f"{PROBE}{os.pathsep}{sglang_env(version).env['PYTHONPATH']}"
        return server(version, *flags, env={"PYTHONPATH": path, **options.pop("env", {})}, **options)

    return start


@pytest.mark.parametrize("version", ["0.5.18", "0.5.20", "0.5.23"])
def test_rules_in_a_real_server(probed: StartServer, tmp_path: Path, version: str) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    flags = ("--chunked-prefill-size", "64", "--log-level", "info")
    with probed(version, *flags, policy=policy, max_total_tokens=POOL_TOKENS) as running:
        block = running.internal_state()["kvpolicy"]
        assert block["core"] == "kvpolicy"
        assert block["pool_tokens"] == POOL_TOKENS

        # A retained prompt survives; the same without a rule is gone.
        system, plain = tokens(1), tokens(2)
        assert cached(running, system, priority=1) == 0
        assert cached(running, plain) == 0
        flood(running, 1)
        assert cached(running, system, priority=1) == 112
        assert cached(running, plain) == 0

        # Over a quarter of the pool, the budget gives up the oldest members; the youngest stay.
        more = [tokens(seed) for seed in (21, 22, 23)]
        for prompt in more:
            cached(running, prompt, priority=1)
        flood(running, 2)
        survivors = [cached(running, prompt) for prompt in [system, *more]]
        assert sum(survivors) <= POOL_TOKENS // 4, survivors
        assert sum(survivors) >= 112, survivors

        # Within its ttl a prompt survives, after it is gone.
        timed = tokens(3)
        start_s = time.monotonic()
        cached(running, timed, priority=2)
        flood(running, 3)
        if time.monotonic() - start_s < 3.5:  # a flood may take longer than the ttl on a busy machine
            assert cached(running, timed, priority=2) == 112
        time.sleep(4.5)
        flood(running, 4)
        assert cached(running, timed) == 0

        # A refused request, also one of several chunks and one on a cached prefix, leaves nothing.
        running.flush_cache()
        assert cached(running, system) == 0
        before = held(running)
        refused = tokens(4, 200)
        assert cached(running, refused, priority=-1) == 0
        assert cached(running, [*system, *refused], priority=-1) == 128
        assert held(running) == before
        assert cached(running, refused) == 0
        assert held(running) != before  # the probe does see a request that stays

        block = running.internal_state()["kvpolicy"]
        assert block["fallbacks"] == {}
        assert block["evictions"]["none"] > 20
        assert block["evict_calls"] > 20
        assert "leak" not in running.log().lower()
