"""A policy is swapped in a real vLLM server that serves: nothing in its cache is lost, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.asking import apply, flat, load, post, rollback, tokens
from tests.live.shadowing import HINTS, check_hints, check_recording, check_shadows
from tools.environment import EngineEnv
from tools.server import VllmServer, run_server

pytestmark = [pytest.mark.engine, pytest.mark.server]

POOL_TOKENS = 1024
POOL = ("--num-gpu-blocks-override", str(POOL_TOKENS // 32 + 1), "--max-model-len", "512")
HEAD = "apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {name: %s}\ncache: {page_size: %d}\n"
POLICIES = {
    "plain": HEAD % ("plain", 32) + "eviction: {policy: lru}\n",  # vLLM's own queue, nothing recorded
    "rules": HEAD % ("rules", 32)
    + """
eviction:
  policy: lru
  rules:
    - name: kept
      match: request.priority == 1 and not is_output
      retain: {weight: 8, ttl: 600s, budget: 40%}
""",
    "hinted": HEAD % ("hinted", 32)
    + "eviction: {policy: lru, rules: [{name: p, match: request.hint_class == 'planner', retain: {weight: 8}}]}\n"
    + HINTS,
    "score": HEAD % ("score", 32) + "eviction: {score: hits}\n",
    "bigger": HEAD % ("bigger-pages", 64) + "eviction: {policy: lfu}\n",
}
KEPT = {"vllm_xargs": {"kvpolicy_priority": 1}}


def cached(server: VllmServer, prompt: list[int], **request: Any) -> int:
    return int(server.generate(prompt, 2, **request)["meta_info"]["cached_tokens"])


def flood(server: VllmServer, seed: int) -> None:
    for i in range(2 * POOL_TOKENS // 120):
        cached(server, tokens(10_000 * seed + i, 120))


def test_a_swap_keeps_what_is_cached(vllm_env: Callable[..., EngineEnv], tiny_model: Path, tmp_path: Path) -> None:
    for name, text in POLICIES.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    policies = {name: flat(tmp_path / f"{name}.yaml", "vllm") for name in POLICIES}
    # Its development routes have one that empties the prefix cache.
    engine = vllm_env(extra={"KVPOLICY_APPLY": "loopback", "VLLM_SERVER_DEV_MODE": "1"})
    with run_server(engine, tiny_model, *POOL, policy=tmp_path / "plain.yaml", log_path=tmp_path / "log") as running:
        assert isinstance(running, VllmServer)

        def flush() -> None:
            running._request("/reset_prefix_cache", {})

        check_shadows(running, flush)
        check_recording(running, flush, tmp_path, "--granularity", "page")
        flush()

        started = running.status()["digest"]
        resident = [tokens(seed) for seed in (1, 2, 3)]
        outputs = [running.generate(prompt, 4)["output_ids"] for prompt in resident]

        # From vLLM's own queue, where nobody recorded anything.
        status, answer = apply(running, policies["rules"], expect_digest=started[:12])
        assert status == 200, answer
        block = running.status()
        assert block["digest"] == answer["applied"] != started
        assert (block["name"], block["core"], block["live"]["swaps"]) == ("rules", "kvpolicy", 1)
        assert [cached(running, prompt) for prompt in resident] == [96] * 3
        assert [running.generate(prompt, 4)["output_ids"] for prompt in resident] == outputs

        cached(running, tokens(4), **KEPT)
        flood(running, 1)
        assert cached(running, tokens(4), **KEPT) == 96
        assert cached(running, tokens(1)) == 0

        for _ in range(3):
            cached(running, tokens(5))
        assert apply(running, policies["score"])[0] == 200
        flood(running, 2)
        assert cached(running, tokens(5)) == 96

        digest = running.status()["digest"]
        status, answer = apply(running, policies["bigger"])
        assert status == 422
        assert "cache.page_size: needs a restart" in answer["why"]
        status, answer = apply(running, policies["plain"], expect_digest=started)
        assert status == 409, answer
        status, answer = apply(running, {**policies["plain"], "eviction": {"policy": "nonsense"}})
        assert status == 400
        assert running.status()["digest"] == digest

        assert rollback(running)[0] == 200
        assert running.status()["name"] == "rules"
        assert post(running, "/kvpolicy/apply", {"off": True})[0] == 200
        assert (running.status()["core"], running.status()["core_reason"]) == ("engine", "switched off")
        flood(running, 3)
        assert cached(running, tokens(4), **KEPT) == 0  # no rule held it
        assert rollback(running)[0] == 200
        assert running.status()["core"] == "kvpolicy"

        assert apply(running, policies["hinted"])[0] == 200
        check_hints(running, flush, tmp_path / "hinted.yaml", "--granularity", "page")

        # Under load, again and again.
        prompts = [tokens(seed, 100) for seed in range(20)]
        expected = [running.generate(prompt, 4)["output_ids"] for prompt in prompts]
        with load(running, prompts) as answers:
            for i in range(20):
                status, answer = apply(running, policies[("rules", "score", "plain")[i % 3]])
                assert status == 200, answer
        assert len(answers) > 20
        assert all(output == expected[which] for which, output in answers)
        assert running.status()["fallbacks"] == {}


def test_without_a_key_nobody_changes_the_policy(
    vllm_env: Callable[..., EngineEnv], tiny_model: Path, tmp_path: Path
) -> None:
    (policy := tmp_path / "plain.yaml").write_text(POLICIES["plain"])
    body = {"policy": flat(policy, "vllm")}
    with run_server(vllm_env(), tiny_model, *POOL, policy=policy, log_path=tmp_path / "open") as running:
        assert post(running, "/kvpolicy/apply", body)[0] == 403
        assert post(running, "/kvpolicy/rollback", {})[0] == 403
    flags = (*POOL, "--api-key", "secret")
    with run_server(vllm_env(), tiny_model, *flags, policy=policy, log_path=tmp_path / "keyed") as running:
        assert post(running, "/kvpolicy/apply", body, "wrong")[0] == 403
        assert post(running, "/kvpolicy/apply", body, "secret")[0] == 200
