"""Two tensor-parallel ranks of a real SGLang under pressure: every swap happens on both, and they evict the same."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvpolicy.live.doctor import examine
from tests.live.asking import apply, load, rollback, tokens
from tests.programs import with_path
from tests.soak.soak import documents
from tools.environment import EngineEnv
from tools.server import Server, run_server

pytestmark = pytest.mark.server

POOL_TOKENS, PAGE_TOKENS = 1024, 16
SWAPS = 20
DOCUMENTS = list(documents(PAGE_TOKENS).values())
#: While the file is there, the second rank says that it evicted something else than it did.
FAULT = """
import os
import torch.distributed
from kvpolicy.eviction.index import EvictionIndex

evicted = EvictionIndex.evicted

def other(self, handle, size_tokens, depth_tokens=0, identity=0, units=1):
    if torch.distributed.is_initialized() and os.path.exists({flag!r}):
        identity += torch.distributed.get_rank()
    evicted(self, handle, size_tokens, depth_tokens, identity, units)

EvictionIndex.evicted = other
"""


def document(number: int) -> dict[str, Any]:
    return DOCUMENTS[number % len(DOCUMENTS)]


def swapped(running: Server, number: int) -> list[str]:
    """What the ranks had evicted, when they took the policy."""
    status, answer = apply(running, document(number))
    assert status == 200, answer
    live = running.status()["live"]
    assert (live["state"], live["digest"]) == ("applied", answer["applied"])
    digests: list[str] = live["rank_victim_digests"]
    return digests


def test_ranks_swap_together_and_evict_the_same(
    sglang_env: Callable[..., EngineEnv], tiny_model: Path, tmp_path: Path
) -> None:
    flag, policy = tmp_path / "differ", tmp_path / "policy.yaml"
    (tmp_path / "at_start.py").write_text(FAULT.format(flag=str(flag)))
    policy.write_text(json.dumps(document(0)))
    # SGLang on a CPU binds each rank to cores of its own, where there are two.
    cores = sorted(os.sched_getaffinity(0))
    env = {"KVPOLICY_APPLY": "loopback", "SGLANG_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}"}
    engine = with_path(sglang_env("0.5.20", env), tmp_path)
    flags = ("--tp-size", "2", "--max-total-tokens", str(POOL_TOKENS))
    with run_server(engine, tiny_model, *flags, policy=policy, log_path=tmp_path / "log") as running:
        prompts = [tokens(seed, 100) for seed in range(24)]  # more than twice the pool
        expected = [running.generate(prompt, 4)["output_ids"] for prompt in prompts]
        seen = []
        with load(running, prompts) as answers:
            for number in range(1, SWAPS + 1):
                ranks = swapped(running, number)
                assert len(ranks) == 2
                assert ranks[0] == ranks[1]
                seen.append(ranks[0])
                behind = len(answers) + 4
                while len(answers) < behind:  # each policy evicts
                    time.sleep(0.02)
        assert len(set(seen)) == SWAPS
        assert all(output == expected[which] for which, output in answers)
        block = running.status()
        assert block["live"]["swaps"] == SWAPS
        assert block["fallbacks"] == {}
        assert not any(finding.severity == "error" for finding in examine([block]))

        # A policy that one rank cannot have, none has; and ranks that differ are seen.
        refused, answer = apply(running, {**document(1), "cache": {"page_size": 2 * PAGE_TOKENS}})
        assert refused == 422, answer
        assert running.status()["digest"] == block["digest"]
        flag.touch()
        for prompt in prompts:
            running.generate(prompt, 4)
        ranks = swapped(running, 1)
        assert ranks[0] != ranks[1]
        assert "KVP704" in [finding.code for finding in examine([running.status()])]
        assert "the ranks evicted different units" in running.log()
        assert rollback(running)[0] == 200
