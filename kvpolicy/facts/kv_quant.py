"""KV dtype that a quantized checkpoint asks for, as each engine's ``auto`` reads it from the checkpoint's config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["sglang_kv_quant", "vllm_kv_quant"]


def sglang_kv_quant(config: Mapping[str, Any], hf_quant: Mapping[str, Any] | None) -> str | None:
    """KV dtype of a quantized checkpoint that ``auto`` follows: SGLang looks at kv_cache_quant_algo == FP8 only."""
    sections = [config.get("quantization_config"), hf_quant, (hf_quant or {}).get("quantization")]
    for section in sections:
        if isinstance(section, Mapping):
            scheme = section.get("kv_cache_scheme")
            eight_bits = isinstance(scheme, Mapping) and scheme.get("num_bits") == 8
            if str(section.get("kv_cache_quant_algo", "")).upper() == "FP8":
                return "fp8_e4m3"
            if eight_bits and section.get("quant_method") == "modelopt":
                return "fp8_e4m3"
    return None


def vllm_kv_quant(config: Mapping[str, Any]) -> str | None:
    """utils/torch_utils.py get_kv_cache_quant_algo_string (ModelOpt), and attention.py for compressed-tensors."""
    section = config.get("quantization_config")
    if not isinstance(section, Mapping):
        return None
    method = str(section.get("quant_method", ""))
    inner = section.get("quantization")
    sources = (inner if isinstance(inner, Mapping) else section, section)
    scheme = sources[0].get("kv_cache_scheme") or section.get("kv_cache_scheme")
    if method == "compressed-tensors":
        return "fp8_e4m3" if scheme else None
    if not method.startswith("modelopt"):
        return None
    named = scheme or next(
        (source["kv_cache_quant_algo"] for source in sources if source.get("kv_cache_quant_algo")), None
    )
    if isinstance(named, Mapping):
        named = {8: "fp8", 4: "nvfp4"}.get(named.get("num_bits", 0)) if named.get("type") == "float" else None
    return {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}.get(str(named).lower())
