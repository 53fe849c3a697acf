"""A fault for tests alone: an SGLang that stores keys too coarsely, in any KV dtype but the model's own.

So the reference of a measurement is untouched, and the policy's run answers from keys that kept their signs only.
"""

from __future__ import annotations

import sys
from typing import Any


def load() -> None:
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool.set_kv_buffer", _store_coarsely, HookType.AROUND
    )


def _store_coarsely(original: Any, pool: Any, layer: Any, where: Any, keys: Any, *rest: Any, **more: Any) -> Any:
    if keys.dtype != pool.dtype:
        keys = keys.sign() * keys.abs().mean(dim=-1, keepdim=True)
    return original(pool, layer, where, keys, *rest, **more)
