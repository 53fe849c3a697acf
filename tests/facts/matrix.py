"""The deployments on which our tables are compared with the real engine, and the models of `models/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MODELS: dict[str, dict[str, Any]] = {
    file.stem: json.loads(file.read_text()) for file in sorted((Path(__file__).parent / "models").glob("*.json"))
}
GPUS = ("t4", "a100", "l40s", "h200", "b200", "rtx5090", "mi300x")
_HYBRID = ("falcon-h1-1.5b", "granite-4-h-tiny", "lfm2-1.2b", "nemotron-h-8b", "qwen3-next-80b")
_DSA = ("deepseek-v3.2", "glm-5.1")
_DTYPES = ("fp8_e4m3", "fp8_e5m2", "bf16", "mxfp8", "nvfp4", "fp4_mx_block16")
_BACKENDS = (
    "triton", "fa3", "fa4", "flashinfer", "flashmla", "trtllm_mla", "trtllm_mha", "cutedsl_mla", "hpc_ops",
    "torch_native", "flex_attention",
)  # fmt: skip


def cases(version: tuple[int, int, int]) -> list[dict[str, Any]]:
    """``{model, gpu, page_size?, kv_dtype?, attention?}``, grouped by device.

    Left out: hybrids on a CPU (their state cache does not run there whatever is asked), and sparse attention on ROCm
    and CPUs (decided by the installed Triton and by a CUDA call).
    """
    found = []
    for gpu in (*GPUS, "cpu"):
        for model in MODELS:
            if (gpu == "cpu" and model in _HYBRID) or (gpu in ("cpu", "mi300x") and model in _DSA):
                continue
            found.append({"model": model, "gpu": gpu})
            found.append({"model": model, "gpu": gpu, "page_size": 16})
        for model in ("llama-3.1-8b", "deepseek-v2-lite", "deepseek-v3.2", "gpt-oss-20b", "lfm2-1.2b"):
            if gpu not in ("a100", "h200", "b200", "rtx5090") or (gpu != "b200" and model == "lfm2-1.2b"):
                continue
            found += [{"model": model, "gpu": gpu, "kv_dtype": dtype} for dtype in _DTYPES]
            for backend in _BACKENDS:
                if backend == "hpc_ops" and version < (0, 5, 17):
                    continue
                found += [{"model": model, "gpu": gpu, "attention": backend, "page_size": page} for page in (None, 128)]
    return found
