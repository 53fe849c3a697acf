"""`check` says what both adapters say at start: with state layers or sliding windows the engine's own order stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvpolicy.facts import report
from tests.facts.test_report import codes, found, policy

MODELS = Path(__file__).parent / "models"
ENGINES = ("sglang==0.5.23", "vllm==0.32.0")
HYBRID = ["falcon-h1-1.5b", "granite-4-h-tiny", "nemotron-h-8b", "qwen3-next-80b", "gpt-oss-20b", "lfm2-1.2b"]


def asked(text: str, engine: str, model: str) -> list[str]:
    return list(codes(report(policy(text), engine=engine, model=str(MODELS / f"{model}.json"))))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", HYBRID)
def test_hybrids_and_windows_are_conflicts(engine: str, model: str) -> None:
    assert "KVP603" in asked("eviction: {policy: gdsf}\n", engine, model)
    assert "KVP603" not in asked("cache: {page_size: auto}\n", engine, model)
    assert "KVP603" not in asked("eviction: {core: engine}\n", engine, model)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-8b", "deepseek-v3", "smollm2-135m"])
def test_full_attention_is_none(engine: str, model: str) -> None:
    assert "KVP603" not in asked("eviction: {policy: gdsf}\n", engine, model)


def test_windows_without_a_pool_of_their_own_matter_to_vllm_only() -> None:
    """SGLang gives only some architectures a separate pool; vLLM gives every window a cache group."""
    assert "KVP603" in asked("eviction: {policy: gdsf}\n", "vllm==0.32.0", "gemma-2-9b")
    assert "KVP603" not in asked("eviction: {policy: gdsf}\n", "sglang==0.5.23", "gemma-2-9b")


def test_lru_is_vllms_own_and_replaces_sglangs() -> None:
    assert "KVP603" not in asked("eviction: {policy: lru}\n", "vllm==0.32.0", "gpt-oss-20b")
    assert "KVP603" in asked("eviction: {policy: lru}\n", "sglang==0.5.23", "gpt-oss-20b")


def test_on_conflict_decides() -> None:
    for mode, severity in (("error", "error"), ("warn", "warning")):
        text = f"cache: {{on_conflict: {mode}}}\neviction: {{policy: lfu}}\n"
        items = report(policy(text), engine="sglang==0.5.23", model=str(MODELS / "gpt-oss-20b.json"))
        assert found(items, "KVP603").severity == severity
