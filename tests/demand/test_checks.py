"""What docs/demand.md says that `kvpolicy check` finds, on the model, dtype, GPU or page size of each thread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvpolicy.cli.main import main

MODELS = Path(__file__).resolve().parents[1] / "facts/models"
HEADER = "apiVersion: kvpolicy/v1\nkind: KVPolicy\n"


def findings(folder: Path, capsys: pytest.CaptureFixture[str], policy: str, model: str, gpu: str) -> dict[str, Any]:
    """code -> the finding, of a check against SGLang."""
    path = folder / "policy.yaml"
    path.write_text(HEADER + policy)
    main(["check", str(path), "--engine", "sglang==0.5.20", "--model", model, "--gpu", gpu, "--format", "json"])
    return {item["code"]: item for item in json.loads(capsys.readouterr().out)}


#: model, dtype, GPU, another dtype or GPU that is not reported, thread
REPORTED = [
    ("glm-5.1", "fp8_e4m3", "h200", "bf16", "sglang/issues/22671"),
    ("qwen2.5-vl-7b", "fp8_e5m2", "h200", "bf16", "vllm/issues/41343"),
    ("qwen2.5-math-7b", "fp8_e4m3", "h200", "bf16", "verl/pull/4435"),
]


@pytest.mark.parametrize(("model", "dtype", "gpu", "fine", "thread"), REPORTED, ids=[row[0] for row in REPORTED])
def test_a_dtype_that_was_reported_bad(tmp_path: Path, capsys, model, dtype, gpu, fine, thread) -> None:
    path = str(MODELS / f"{model}.json")
    found = findings(tmp_path, capsys, f"cache: {{kv_dtype: {dtype}}}\n", path, gpu)["KVP521"]
    assert found["severity"] == "warning"
    assert thread in found["message"]
    assert "KVP521" not in findings(tmp_path, capsys, f"cache: {{kv_dtype: {fine}}}\n", path, gpu)
    assert "KVP521" not in findings(
        tmp_path, capsys, f"cache: {{kv_dtype: {dtype}}}\n", str(MODELS / "qwen3-8b.json"), gpu
    )


@pytest.mark.parametrize(("gpu", "is_reported"), [("mi300x", True), ("h200", False)])
def test_a_dtype_that_was_reported_bad_on_one_gpu(tmp_path: Path, capsys, gpu: str, is_reported: bool) -> None:
    """vllm#45562: FP8 means another format on MI300X."""
    config = json.loads((MODELS / "qwen3-8b.json").read_text())
    model = tmp_path / "config.json"
    model.write_text(json.dumps({**config, "architectures": ["MiniMaxM3ForCausalLM"]}))
    found = findings(tmp_path, capsys, "cache: {kv_dtype: fp8_e4m3}\n", str(model), gpu)
    assert ("KVP521" in found) is is_reported
    if is_reported:
        assert "vllm/issues/45562" in found["KVP521"]["message"]


def test_a_large_page_says_what_can_no_longer_be_shared(tmp_path: Path, capsys) -> None:
    """vllm#54458, with a page that SGLang runs."""
    found = findings(tmp_path, capsys, "cache: {page_size: 512}\n", str(MODELS / "llama-3.1-8b.json"), "h200")
    assert "shortest shared prefix 512" in found["KVP506"]["message"]


def test_a_page_size_that_the_engine_overrides_is_an_error_with_the_effective_one(tmp_path: Path, capsys) -> None:
    """dynamo#13216, llm-d#2500, flashinfer#320."""
    policy = "cache: {page_size: 512}\nbackend: {attention: flashmla}\n"
    found = findings(tmp_path, capsys, policy, str(MODELS / "deepseek-v3.json"), "h200")["KVP511"]
    assert found["severity"] == "error"
    assert "page size 512 becomes 64" in found["message"]
    accepted = policy.replace("512", "{prefer: 512, accept: [64, 512]}")
    assert "KVP511" not in findings(tmp_path, capsys, accepted, str(MODELS / "deepseek-v3.json"), "h200")
