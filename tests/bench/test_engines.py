"""A real SGLang, its own benchmark, and two policies that take turns on it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import DEMO_VERSION
from tests.programs import with_path
from tools.environment import CHECKOUT, EngineEnv

SERVER = (
    "--device cpu --dtype bfloat16 --sampling-backend pytorch --disable-cuda-graph --skip-server-warmup "
    "--max-total-tokens 4096"
)


@pytest.mark.engine
@pytest.mark.server
def test_two_policies_on_a_real_server(sglang_env: Callable[..., EngineEnv], tiny_model: Path, tmp_path: Path) -> None:
    engine = with_path(sglang_env(DEMO_VERSION), Path(__file__).parent / "stubs", CHECKOUT, CHECKOUT / "adapters")
    words = ["bench", "--engine", "sglang", "--policy", "stock_lru", "--policy", "adaptive", str(tiny_model)]
    # Three requests at a time share 128 tokens: those of the second three find them.
    window = ["--requests", "6", "--concurrency", "3", "--shared", "128", "--input", "32", "--output-tokens", "4"]
    done = subprocess.run(
        [str(engine.python), "-m", "kvpolicy.cli.main", *words, *window, "--rounds", "2", "--format", "json",
         "--server-args", SERVER],
        env=engine.env, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["change"] == "hot", "the two differ in eviction alone"
    for side in report["sides"].values():
        assert side["kv_tokens"] == 4096
        assert [each["requests"] for each in side["windows"]] == [6, 6]
        for each in side["windows"]:
            # Emptied before it: at most the later requests' shared tokens were found, and not the whole prompts that
            # the other side's window left.
            assert 0.2 < each["hit_rate"] <= 5 * 128 / (6 * 160) + 0.05
            assert each["output_tokens_per_s"] > 0
            assert each["tpot_ms"] > 0
    assert set(report["ratios"]) == {"throughput", "ttft", "ttft_p99", "tpot"}
    assert report["verdict"]
