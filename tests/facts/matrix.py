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


_VLLM_GPUS = ("t4", "a100", "l40s", "h200", "b200", "rtx5090")
_VLLM_DTYPES = (
    "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "nvfp4", "nvfp4_4over6", "int8_per_token_head", "int4_per_token_head",
    "fp8_per_token_head", "turboquant_k8v4", "turboquant_3bit_nc", "fp8_ds_mla", "nvfp4_ds_mla", "mxfp8",
)  # fmt: skip
_VLLM_BACKENDS = (
    "flash_attn", "flashinfer", "triton_attn", "flex_attention", "turboquant", "hpc_attn", "flash_attn_mla",
    "flashmla", "flashinfer_mla", "cutlass_mla", "triton_mla", "flashmla_sparse", "flashinfer_mla_sparse",
    "flash_attn_mla_sparse", "tokenspeed_mla",
)  # fmt: skip
_VLLM_CHOSEN = ("llama-3.1-8b", "gemma-2-9b", "deepseek-v3", "deepseek-v3.2", "gpt-oss-20b", "nemotron-h-8b")


def vllm_cases(gpus: tuple[str, ...] = (*_VLLM_GPUS, "cpu")) -> list[dict[str, Any]]:
    """``{model, gpu, page_size?, kv_dtype?, attention?, layers?, tp?}``, grouped by device; our names.

    Left out: Llama 4 and Qwen2.5-VL (multimodal: the processor is needed).
    """
    models = [name for name in MODELS if name not in ("llama-4-scout", "qwen2.5-vl-7b")]
    found: list[dict[str, Any]] = []
    for gpu in gpus:
        found += [{"model": model, "gpu": gpu, "page_size": page} for model in models for page in (None, 64)]
        for model in _VLLM_CHOSEN:
            found += [{"model": model, "gpu": gpu, "kv_dtype": dtype} for dtype in _VLLM_DTYPES]
            found += [{"model": model, "gpu": gpu, "page_size": page} for page in (8, 16, 128)]
            if gpu in ("h200", "b200"):
                found += [
                    {"model": model, "gpu": gpu, "attention": backend, "page_size": page}
                    for backend in _VLLM_BACKENDS
                    for page in (None, 16, 128)
                ]
        for dtype in ("fp8_e4m3", "fp8_e5m2", "turboquant_k8v4"):
            layers = [["0-1", "bf16"], ["-2:", "bf16"]]
            found.append({"model": "llama-3.1-8b", "gpu": gpu, "kv_dtype": dtype, "layers": layers})
            found.append({"model": "llama-3.1-8b", "gpu": gpu, "kv_dtype": dtype, "layers": layers, "page_size": 64})
            found.append({"model": "qwen3-next-80b", "gpu": gpu, "kv_dtype": dtype})
        found += [
            {"model": model, "gpu": gpu, "tp": 2}
            for model in ("llama-3.1-8b", "nemotron-h-8b", "qwen3-next-80b", "deepseek-v3")
        ]
    return found
