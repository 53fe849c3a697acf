"""KV dtypes: one spelling for each, and the width of a stored element (SGLang ``srt/mem_cache/kv_cache_dtype.py``)."""

from __future__ import annotations

__all__ = ["AUTO", "ELEMENT_BITS", "canonical"]

AUTO = "auto"

# Bits of one stored element, block scales excluded (they are added where the pool is sized).
ELEMENT_BITS: dict[str, int] = {
    "fp32": 32,
    "bf16": 16,
    "fp16": 16,
    "fp8_e4m3": 8,
    "fp8_e5m2": 8,
    "mxfp8": 8,
    "nvfp4": 4,
    "fp4_mx_block16": 4,
    "fp4_e2m1": 4,
}

_ALIASES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "fp8": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
}


def canonical(name: str) -> str:
    """One spelling for a dtype whoever names it (policy, engine flag, torch, config.json)."""
    name = name.removeprefix("torch.")
    return _ALIASES.get(name, name)
