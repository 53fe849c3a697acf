"""What a scheduler really built: KV pool, page size, KV dtype and attention backend, read off its objects."""

from __future__ import annotations

from typing import Any

from kvpolicy.facts.dtypes import canonical

from . import probe

__all__ = ["built_pool", "built_values"]

# Backends that one class implements alone, hence recognisable from the object the scheduler built.
_BACKEND_OF_CLASS = {
    "FlashInferAttnBackend": "flashinfer",
    "TritonAttnBackend": "triton",
    "TorchNativeAttnBackend": "torch_native",
    "TorchFlexAttnBackend": "flex_attention",
    "IntelAMXAttnBackend": "intel_amx",
    "TRTLLMHAAttnBackend": "trtllm_mha",
    "FlashMLABackend": "flashmla",
    "AiterAttnBackend": "aiter",
}
# Pools inside a pool: of the full-attention layers, and of those with a sliding window.
_PARTS = ("full_kv_pool", "swa_kv_pool")
# KV formats that share a torch dtype with another: only the engine's own name tells them apart.
_NAMED_FORMATS = {"mxfp8", "nvfp4", "fp4_mx_block16"}


def built_values(scheduler: Any) -> dict[str, Any]:
    """`{engine field: value in the policy's words}` of the objects the scheduler built; unknown ones are absent."""
    allocator = scheduler.token_to_kv_pool_allocator
    runner = scheduler.tp_worker.model_runner
    found: dict[str, Any] = {"page_size": int(allocator.page_size)}

    if dtype := _kv_dtype(scheduler, allocator.get_kvcache()):
        found["kv_cache_dtype"] = dtype

    attention = getattr(runner, "attn_backend", None)
    if backend := _BACKEND_OF_CLASS.get(type(attention).__name__):
        found["attention_backend"] = backend
    if backend == "flashinfer":
        pages = getattr(attention, "kvpolicy_pages", None)
        found["attention_page_size"] = 1 if pages is None else pages.page_tokens  # of its plans
    return found


def built_pool(scheduler: Any) -> dict[str, Any]:
    """The classes in use, for the status: `class` of the KV pool, of its `parts` by attribute, of the `allocator`."""
    allocator = scheduler.token_to_kv_pool_allocator
    pool = allocator.get_kvcache()
    parts = {name: type(part).__name__ for name in _PARTS if (part := getattr(pool, name, None)) is not None}
    return {
        "class": type(pool).__name__,
        "parts": parts,
        "allocator": type(allocator).__name__,
    }


def _kv_dtype(scheduler: Any, pool: Any) -> str | None:
    """In the policy's words; None where the pool does not say."""
    named = probe.resolved(scheduler.server_args, "kv_cache_dtype")
    if named in _NAMED_FORMATS:
        return str(named)
    parts = (pool, *(getattr(pool, name, None) for name in _PARTS))
    named_by = ("default_dtype", "dtype")  # the first: of layers that have none of their own
    found = (getattr(part, name, None) for part in parts for name in named_by)
    dtype = next((dtype for dtype in found if dtype is not None), None)
    return None if dtype is None else canonical(str(dtype))
