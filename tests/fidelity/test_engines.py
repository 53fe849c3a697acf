"""`kvpolicy fidelity` on real engines: a harmless dtype is ok, a fault in what is stored is bad."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import DEMO_VERSION
from tests.launching import run_to_end
from tests.programs import Program, with_path
from tools.environment import EngineEnv

pytestmark = pytest.mark.engine

FAULT = Path(__file__).parent / "fault"
HEAD = "apiVersion: kvpolicy/v1\nkind: KVPolicy\n"
#: In float32 every CPU is quick, and a 16-bit KV dtype is another one than the model's.
SHORT = ("--engine-arg", "dtype=float32", "--tokens", "256", "--window", "256", "--format", "json")


def fidelity(engine: EngineEnv, model: Path, policy: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and evidence."""
    command = ["-m", "kvpolicy", "fidelity", str(model), "--policy", str(policy), "--engine", engine.name, *arguments]
    done = run_to_end(engine, command, timeout_s=600, apart=True)
    assert done.stdout.startswith("{"), done.stderr
    return done.returncode, json.loads(done.stdout)


def write(folder: Path, text: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(HEAD + text)
    return path


def test_sixteen_bits_for_a_float32_model_on_sglang(
    sglang_env: Callable[..., EngineEnv], real_model: Path, tmp_path: Path
) -> None:
    policy = write(tmp_path, "cache: {kv_dtype: bf16, page_size: 16}\n")
    code, found = fidelity(sglang_env(DEMO_VERSION), real_model, policy, *SHORT)
    assert (code, found["verdict"]["level"]) == (0, "ok")
    assert (found["reference"]["kv_dtype"], found["measured"]["kv_dtype"]) == ("fp32", "bf16")
    assert (found["measured"]["page_size"], found["text"]["stride_tokens"]) == (16, 64)
    cached, cold = found["passes"]["cached"]["all"], found["passes"]["cold"]["all"]
    assert (cached["tokens"], cold["tokens"]) == (252, 255)  # the first token of each step has nothing before it
    for each in (cached, cold):
        assert 0 < each["kl_mean_nats"] < 0.01
        assert 2 < each["perplexity_reference"] < 200  # real text, read in the right order
        assert each["listed_mass"] > 0.5
    assert found["floor"]["kl_mean_nats"] < each["kl_mean_nats"]


def test_keys_stored_too_coarsely_are_bad(
    sglang_env: Callable[..., EngineEnv], real_model: Path, tmp_path: Path
) -> None:
    engine = with_path(sglang_env(DEMO_VERSION), FAULT)
    code, found = fidelity(engine, real_model, write(tmp_path, "cache: {kv_dtype: bf16}\n"), *SHORT)
    assert (code, found["verdict"]["level"]) == (1, "bad")
    assert found["floor"]["kl_mean_nats"] < 0.01, "the reference is not touched"
    assert any(reason.startswith("cached: mean KL") for reason in found["verdict"]["reasons"])


def test_a_dtype_that_vllm_misreads_is_bad(
    vllm_env: Callable[..., EngineEnv], real_model: Path, tmp_path: Path
) -> None:
    """vLLM 0.32 on a CPU under float32: docs/facts.md. The reference shows that vLLM's logprobs are read rightly."""
    engine, policy = vllm_env("0.32.0"), write(tmp_path, "")
    (found,) = Program(engine, Path(__file__).parent / "vllm_misread.py", real_model, policy).told()
    assert found["verdict"]["level"] == "bad"
    assert (found["reference"]["kv_dtype"], found["measured"]["kv_dtype"]) == ("fp32", "bf16")
    assert found["passes"]["cached"]["all"]["kl_mean_nats"] > 1
    assert found["floor"]["kl_mean_nats"] < 0.001
    assert 1 < found["passes"]["cold"]["all"]["perplexity_reference"] < 50
