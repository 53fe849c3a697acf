"""A second SGLang plugin, for tests alone: it counts what the scheduler's cache and allocator really hold.

The count walks the engine's own tree, so it does not depend on anything that kvpolicy reports. It appears as
`test_probe` in the server's internal state.
"""

from __future__ import annotations

import sys
from typing import Any


def load() -> None:
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.get_internal_state", _add_counts, HookType.AFTER)


def _add_counts(result: Any, scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
    cache = scheduler.tree_cache
    root = cache.root_node if hasattr(cache, "root_node") else cache.tree_core.root_node
    nodes, pending = 0, list(root.children.values())
    while pending:
        node = pending.pop()
        nodes += 1
        pending += node.children.values()
    result.internal_state["test_probe"] = {
        "free_tokens": int(scheduler.token_to_kv_pool_allocator.available_size()),
        "evictable_tokens": int(cache.evictable_size()),
        "protected_tokens": int(cache.protected_size()),
        "nodes": nodes,
    }
