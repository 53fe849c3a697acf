"""Runs inside SGLang: what the allocator hook answers for each way in which SGLang builds an allocator."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch
from activation import activate
from kvpolicy_sglang import allocator_hooks
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator


class Hooks:
    """Takes hooks as SGLang's registry would."""

    def __init__(self) -> None:
        self.registered: dict[str, Any] = {}

    def register(self, target: str, hook: Any, _kind: Any) -> None:
        self.registered[target] = hook


def main() -> None:
    common = {"dtype": torch.float16, "device": "cpu", "kvcache": None, "need_sort": False}
    paged = PagedTokenToKVPoolAllocator(256, page_size=16, **common)
    token = TokenToKVPoolAllocator(256, **common)
    target, draft = SimpleNamespace(is_draft_worker=False), SimpleNamespace(is_draft_worker=True)

    def hook(**section: str) -> tuple[Any, Any]:
        active, hooks = activate("sglang", None, **({"allocator": section} if section else {})), Hooks()
        allocator_hooks.install(active, hooks)
        return active, hooks.registered.get(allocator_hooks.CONSTRUCTION)

    def seen(active: Any, ours: Any) -> list[Any]:
        state = active.allocator
        assert state.free_list is ours.free_list
        return [type(ours).__name__, state.core, state.order, state.guard]

    active, build = hook(order="address", guard="full")
    told: dict[str, Any] = {
        "without a section": [name for name in [hook()[1]] if name is not None],
        "target": seen(active, build(paged, target, token_to_kv_pool_allocator=None)),
        "draft with its target's": build(paged, target, token_to_kv_pool_allocator=paged),
        "draft of its own": build(paged, draft, token_to_kv_pool_allocator=None),
    }
    active, build = hook(guard="sampled")
    told["page 1, guard alone"] = seen(active, build(token, target, token_to_kv_pool_allocator=None))
    print("TOLD " + json.dumps(told))


main()
