"""What one worker says of itself. Sent there by its engine through vLLM's own `collective_rpc`; nothing is patched."""

from __future__ import annotations

from typing import Any

from kvpolicy.facts.dtypes import canonical
from kvpolicy.language import digest_of

__all__ = ["CONFIG_KEY", "built_values", "report"]

CONFIG_KEY = "kvpolicy"  # in VllmConfig.additional_config: {"digest": ..., "policy": the flattened document}


def report(worker: Any) -> dict[str, Any]:
    """`{"rank", "digest", "built"}` of the worker, its digest computed anew from the configuration it was given."""
    worker = getattr(worker, "worker", worker)  # older executors pass the wrapper
    config = worker.vllm_config
    carried = (config.additional_config or {}).get(CONFIG_KEY) or {}
    return {
        "rank": int(getattr(worker, "rank", 0)),
        "digest": digest_of(carried["policy"]) if "policy" in carried else None,
        "built": built_values(config),
    }


def built_values(config: Any) -> dict[str, Any]:
    """KV dtype and attention backend of the attention layers that this process built, in the policy's words."""
    skipped = set(getattr(config.cache_config, "kv_cache_dtype_skip_layers", ()))
    dtypes, backends = set(), set()
    for name, layer in config.compilation_config.static_forward_context.items():
        backend, dtype = getattr(layer, "attn_backend", None), getattr(layer, "kv_cache_dtype", None)
        if backend is None or dtype is None:
            continue  # linear attention and the like
        backends.add(backend.get_name().lower())
        kinds = {"sliding_window"} if getattr(layer, "sliding_window", None) is not None else set()
        if skipped.isdisjoint({*name.split("."), *kinds}):
            dtypes.add(canonical(str(config.model_config.dtype if dtype == "auto" else dtype)))
    found: dict[str, Any] = {}
    if dtypes:
        found["kv_cache_dtype"] = ", ".join(sorted(dtypes))
    if backends:
        found["attention_backend"] = ", ".join(sorted(backends))
    return found
