"""Compare the cache a scheduler would hold with stock's, method by method, in the SGLang found on PYTHONPATH.

Run by `test_interface.py` in a subprocess a version; prints one JSON object. Every method of ours must have stock's
signature, the object must be of stock's class, and each call that can be made without a model must return stock's
types.
"""

from __future__ import annotations

import inspect
import json
import sys
from typing import Any

from differential import Side, default_kind

from kvpolicy.attention.groups import shared_segments


def public(obj: Any) -> dict[str, str]:
    """Public callables and their signatures, properties and plain attributes by kind."""
    found = {}
    for name in sorted(set(dir(obj)) | set(vars(obj))):
        if name.startswith("_"):
            continue
        static = inspect.getattr_static(type(obj), name, None)
        if isinstance(static, property):
            found[name] = "property"
            continue
        value = getattr(obj, name, None)
        found[name] = f"method{inspect.signature(value)}" if callable(value) and static is not None else "attribute"
    return found


def results(side: Side) -> dict[str, str]:
    """Types of what the cache's calls return."""
    tokens = list(range(1, 33))
    side.insert(tokens, 0)
    match = side.match(tokens)
    lock = side.lock(tokens)
    found = {
        "match": _shape(match),
        "inc_lock_ref": _shape(lock[1]),
        "evictable_size": type(side.cache.evictable_size()).__name__,
        "protected_size": type(side.cache.protected_size()).__name__,
        "total_size": type(side.cache.total_size()).__name__,
    }
    side.unlock(lock)
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    found["evict"] = _shape(side.cache.evict(EvictParams(num_tokens=16)))
    found["evict of nothing"] = _shape(side.cache.evict(EvictParams(num_tokens=0)))
    found["evict of too much"] = _shape(side.cache.evict(EvictParams(num_tokens=10_000)))
    found["reset"] = repr(side.cache.reset())
    return found


def groups(side: Side) -> list[Any]:
    """What six running requests share, off this cache's own nodes: an agent's 64 tokens, and a session's 32 more."""
    prompts = [[*range(1, 65), *[100 + i % 2] * 32, *[200 + i] * 16] for i in range(6)]
    for prompt in prompts:
        side.insert(prompt, 0)
    held = [side.match(prompt).last_device_node for prompt in prompts]
    if hasattr(side.cache, "tree_core"):  # hands out ids
        held = [side.cache.tree_core.node_by_id(node) for node in held]
    found = shared_segments(held, lambda node: 0 if node.parent is None else len(node.key))
    side.cache.reset()
    return sorted((group.start_tokens, group.end_tokens, group.requests) for group in found)


def _shape(value: Any) -> str:
    fields = getattr(value, "_fields", None) or getattr(type(value), "__dataclass_fields__", None) or ()
    return f"{type(value).__name__}({', '.join(f'{name}: {type(getattr(value, name)).__name__}' for name in fields)})"


def compare(policy: str) -> dict[str, Any]:
    stock = Side(default_kind(), "lru", 16, 16 * 64, ours=False)
    ours = Side(default_kind(), policy, 16, 16 * 64, ours=True)
    return {
        "policy": policy,
        "same class": type(stock.cache) is type(ours.cache),
        "stock": public(stock.cache),
        "ours": public(ours.cache),
        "stock results": results(stock),
        "our results": results(ours),
        "groups": [groups(stock), groups(ours)],
        "core": ours.active.core,
        "fallbacks": dict(ours.active.fallbacks),
    }


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(json.dumps(compare(name)))
