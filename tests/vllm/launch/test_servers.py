"""vLLM servers that start with a policy, and say what they run."""

from __future__ import annotations

import os
import re
import urllib.error
from collections.abc import Callable
from pathlib import Path

import pytest

from kvpolicy.language import load_policy
from tests.launching import in_children, injecting
from tests.vllm.launch.processes import write_policy
from tools.environment import EngineEnv
from tools.server import VllmServer, run_server

pytestmark = [pytest.mark.engine, pytest.mark.server]

POOL_TOKENS = 1024
POOL = ("--num-gpu-blocks-override", str(POOL_TOKENS // 32 + 1), "--max-model-len", "512")


def test_a_server_reports_and_a_file_changed_meanwhile_changes_nothing(
    vllm_env: Callable[..., EngineEnv], tiny_model: Path, tmp_path: Path
) -> None:
    policy = write_policy(tmp_path)
    digest = load_policy(policy, engine="vllm").digest
    change = f"import pathlib\npathlib.Path({str(policy)!r}).write_text('page_size: 32')"
    engine = injecting(vllm_env(), tmp_path / "change", in_children(change))
    with run_server(engine, tiny_model, *POOL, policy=policy, log_path=tmp_path / "log", fresh=True) as server:
        assert isinstance(server, VllmServer)
        assert policy.read_text() == "page_size: 32"
        (before,) = server.statuses()
        assert (before["name"], before["digest"], before["conflicts"]) == ("launch-test", digest, [])
        effective = {path: setting["effective"] for path, setting in before["settings"].items()}
        assert effective == {"cache.page_size": 32, "cache.kv_dtype": "bf16", "backend.attention": "cpu_attn"}
        assert (before["core"], before["pool_tokens"], before["workers"]) == ("kvpolicy", POOL_TOKENS, 1)
        log = server.log()
        assert (
            f"kvpolicy: 1 engine(s) with 1 worker(s) run policy launch-test, digest {digest[:12]}, core kvpolicy" in log
        )

        assert server.generate(list(range(10, 110)))["meta_info"]["cached_tokens"] == 0
        assert server.generate(list(range(10, 110)))["meta_info"]["cached_tokens"] == 96
        for number in range(12):
            prompt = [10 + (number * 7919 + at * 31) % 200 for at in range(300)]
            server.generate(prompt, max_new_tokens=2)
        after = server.status()
        assert after["evict_calls"] > 0
        assert sum(after["evicted_tokens"].values()) == 32 * sum(after["evictions"].values()) > POOL_TOKENS
        assert after["victim_digest"] != before["victim_digest"]
        assert after["fallbacks"] == {}

        metrics = {re.sub(r"\{.*", "", name): value for name, value in server.metrics().items()}
        assert metrics["kvpolicy_info"] == 1
        assert metrics["kvpolicy_evicted_tokens_total"] == sum(after["evicted_tokens"].values())
        assert metrics["kvpolicy_evictions_total"] == sum(after["evictions"].values())
        assert metrics["kvpolicy_evict_seconds_count"] == after["evict_calls"]
        assert metrics["vllm:prompt_tokens_total"] > 3600, "vLLM's own are still there"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            server.server_info()  # a development endpoint, which stays off


def test_two_replicas_behind_two_api_servers(
    vllm_env: Callable[..., EngineEnv], tiny_model: Path, tmp_path: Path
) -> None:
    """Whichever API server answers, it tells of both engines. The policy wins nothing back from an explicit flag."""
    policy = write_policy(tmp_path, ("on_conflict: error", "on_conflict: warn"))
    flags = ("--data-parallel-size", "2", "--block-size", "64", *POOL)
    with run_server(vllm_env(), tiny_model, *flags, policy=policy, log_path=tmp_path / "log") as server:
        assert isinstance(server, VllmServer)
        for _ in range(4):
            blocks = server.statuses()
            assert [block["settings"]["cache.page_size"]["effective"] for block in blocks] == [64, 64]
            assert [block["conflicts"] for block in blocks] == [blocks[0]["conflicts"]] * 2
            assert "--block-size 64 was given explicitly" in blocks[0]["conflicts"][0]
        ranks = {re.search(r'dp_rank="(\d+)"', name)[1] for name in server.metrics() if "kvpolicy_info" in name}  # type: ignore[index]
        assert ranks == {"0", "1"}
        assert "kvpolicy: 2 engine(s) with 2 worker(s) run policy launch-test" in server.log()


def test_an_engine_of_two_ranks(vllm_env: Callable[..., EngineEnv], tiny_model: Path, tmp_path: Path) -> None:
    """Its one scheduler decides for both workers, each of which confirms the policy."""
    policy = write_policy(tmp_path)
    # vLLM on a CPU binds each rank to cores of its own, where there are two.
    cores = sorted(os.sched_getaffinity(0))
    engine = vllm_env(extra={"VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}"})
    flags = ("--tensor-parallel-size", "2", *POOL)
    with run_server(engine, tiny_model, *flags, policy=policy, log_path=tmp_path / "log") as server:
        assert server.status()["workers"] == 2
        assert "kvpolicy: 1 engine(s) with 2 worker(s) run policy launch-test" in server.log()
        assert server.generate(list(range(10, 110)))["meta_info"]["cached_tokens"] == 0
        assert server.generate(list(range(10, 110)))["meta_info"]["cached_tokens"] == 96
        for number in range(12):
            server.generate([10 + (number * 7919 + at * 31) % 200 for at in range(300)], max_new_tokens=2)
        after = server.status()
        assert sum(after["evictions"].values()) > 0
        assert after["fallbacks"] == {}
