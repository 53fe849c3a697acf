"""What a scheduler really built: page size, KV dtype and attention backend, read off its objects."""

from __future__ import annotations

from typing import Any

from kvpolicy.facts.dtypes import canonical

from . import probe

__all__ = ["built_values"]

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
# KV formats that share a torch dtype with another: only the engine's own name tells them apart.
_NAMED_FORMATS = {"mxfp8", "nvfp4", "fp4_mx_block16"}


def built_values(scheduler: Any) -> dict[str, Any]:
    """`{engine field: value in the policy's words}` of the objects the scheduler built; unknown ones are absent."""
    allocator = scheduler.token_to_kv_pool_allocator
    runner = scheduler.tp_worker.model_runner
    found: dict[str, Any] = {"page_size": int(allocator.page_size)}

    named = probe.resolved(scheduler.server_args, "kv_cache_dtype")
    pool = allocator.get_kvcache()
    dtype = getattr(pool, "default_dtype", getattr(pool, "dtype", None))  # of layers that have none of their own
    if named in _NAMED_FORMATS:
        found["kv_cache_dtype"] = named
    elif dtype is not None:
        found["kv_cache_dtype"] = canonical(str(dtype))

    if backend := _BACKEND_OF_CLASS.get(type(getattr(runner, "attn_backend", None)).__name__):
        found["attention_backend"] = backend
    return found
