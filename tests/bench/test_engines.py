"""A real SGLang, its own benchmark, and two policies that take turns on it, of which one caches nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import DEMO_VERSION
from tests.launching import run_to_end
from tests.programs import with_path
from tools.environment import EngineEnv

SERVER = (
    "--device cpu --dtype bfloat16 --sampling-backend pytorch --disable-cuda-graph --skip-server-warmup "
    "--max-total-tokens 4096"
)


@pytest.mark.engine
@pytest.mark.server
def test_two_policies_on_a_real_server(sglang_env: Callable[..., EngineEnv], tiny_model: Path, tmp_path: Path) -> None:
    engine = with_path(sglang_env(DEMO_VERSION), Path(__file__).parent / "stubs")
    forgetful = tmp_path / "forgetful.yaml"
    forgetful.write_text(
        "apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {name: forgetful}\n"
        "eviction: {policy: lru, rules: [{name: all, admit: never}]}\n"
    )
    words = ["bench", "--engine", "sglang", "--policy", "stock_lru", "--policy", str(forgetful), str(tiny_model)]
    # Three requests at a time share 128 tokens: those of the second three find them.
    window = ["--requests", "6", "--concurrency", "3", "--shared", "128", "--input", "32", "--output-tokens", "4"]
    more = ["--rounds", "2", "--format", "json", "--server-args", SERVER]
    done = run_to_end(engine, ["-m", "kvpolicy.cli.main", *words, *window, *more], timeout_s=600, apart=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["change"] == "hot", "the two differ in eviction alone"
    for label, side in report["sides"].items():
        assert side["kv_tokens"] == 4096
        assert [each["requests"] for each in side["windows"]] == [6, 6]
        for each in side["windows"]:
            # Each window ran under its own policy, over an empty cache: at most the later requests' shared tokens were
            # found, and not the prompts that a window before left.
            if label == "A":
                assert 0.2 < each["hit_rate"] <= 5 * 128 / (6 * 160) + 0.05
            else:
                assert each["hit_rate"] == 0
            assert each["output_tokens_per_s"] > 0
            assert each["tpot_ms"] > 0
    assert set(report["ratios"]) == {"throughput", "ttft", "ttft_p99", "tpot"}
    assert report["verdict"]
