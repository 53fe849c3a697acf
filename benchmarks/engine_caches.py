"""SGLang's own prefix caches out of a server, stock or with a policy attached: what the cache benchmarks measure.

The SGLang is the one that Python finds; allocator and tree are the engine's, on the CPU. Leaves hang flat below the
root, each of ``LEAF_TOKENS`` tokens, so that a leaf is one page of 16 or sixteen pages of 1.
"""

from __future__ import annotations

import os
import platform
import random
import shlex
import sys
import time
from array import array
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from kvpolicy_sglang.allocator import ENGINE_ORDER, substitute
from kvpolicy_sglang.cache_hooks import build_cache
from sglang.srt.mem_cache import base_prefix_cache as base
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from kvpolicy.compiler import compile_policy
from kvpolicy.language import policy_from_flat
from kvpolicy.runtime.active import ActivePolicy

LEAF_TOKENS = 16
#: Ends the name of a row whose slots our allocator hands out.
SLOTS = "+slots"
#: Ends the name of a row whose evictions are remembered, to explain misses.
WHY = "+why"
TENANTS = [f"tenant{i}" for i in range(100)]

#: CPU seconds of this thread: other load on the machine counts less.
CLOCK = time.thread_time

#: The `eviction:` sections measured, by the name of the row.
POLICIES: dict[str, dict[str, Any]] = {
    "lru": {"policy": "lru"},
    "gdsf": {"policy": "gdsf"},
    "stable": {"score": "log1p(hits) + 0.001 * depth_tokens"},
    "dynamic": {"score": "log1p(hits) / (1 + idle_requests)"},
    "rules+tenants": {
        "policy": "lru",
        "rules": [
            {"name": f"r{i}", "match": f"hits >= {9 - i}", "retain": {"weight": float(2**i), "budget": "10%"}}
            for i in range(5)
        ],
        "tenants": {"floor": "1%", "cap": "5%", "max_floors": 8},
    },
}


def has_unified() -> bool:
    """Whether this SGLang's cache for a plain model is the UnifiedRadixCache (0.5.20 and later)."""
    try:
        from sglang.srt.mem_cache.unified_cache.components.full import FullComponent  # noqa: F401
    except ImportError:
        return False
    return True


def has_rust() -> bool:
    return has_unified() and hasattr(CacheInitParams(**_no_pool()), "tree_core_backend")


def _no_pool() -> dict[str, Any]:
    return {"disable": False, "req_to_token_pool": None, "token_to_kv_pool_allocator": None, "page_size": 1}


class Tree:
    """One prefix cache, its allocator, and the prompts whose leaves are resident.

    ``policy``: a key of :data:`POLICIES`, or ``stock`` / ``stock rust`` for the engine's lru on that core.
    """

    def __init__(self, policy: str, page: int, capacity_leaves: int, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        self.serial = 0
        self.prompts: list[list[int]] = []  # of every insert, evicted ones too
        size = capacity_leaves * LEAF_TOKENS
        common: dict[str, Any] = {"dtype": torch.float16, "device": "cpu", "kvcache": None, "need_sort": False}
        if page == 1:
            self.allocator: Any = TokenToKVPoolAllocator(size=size, **common)
        else:
            self.allocator = PagedTokenToKVPoolAllocator(size=size, page_size=page, **common)
        if policy.endswith(SLOTS):  # our free list, in the engine's own order
            policy = policy.removesuffix(SLOTS)
            self.allocator = substitute(self.allocator, ENGINE_ORDER[type(self.allocator)], None)
        given = {**_no_pool(), "token_to_kv_pool_allocator": self.allocator, "page_size": page}
        params = CacheInitParams(**given, eviction_policy="lru")
        self.active: ActivePolicy | None = None
        self.metadata: Any = None
        self.guard: Any = None
        if policy.startswith("stock"):
            self.cache = _stock(params, "rust" if policy == "stock rust" else "python")
        else:
            self.active = _activate(POLICIES[policy.removesuffix(WHY)], explains=policy.endswith(WHY))
            built = build_cache(
                self.active,
                lambda ctx: _stock(ctx.params, "python"),
                SimpleNamespace(params=params, server_args=SimpleNamespace(), tp_worker=None),
            )
            self.cache, self.guard, self.metadata = built.cache, built.guard, built.metadata
            assert self.guard is not None, self.active.core_reason

    # -- operations --

    def new_prompt(self) -> list[int]:
        self.serial += 1
        return [1000 + self.serial, *(self.rng.randrange(10, 100_000) for _ in range(LEAF_TOKENS - 1))]

    def request(self) -> Any:
        """What kvpolicy reads of SGLang's request object."""
        salt = TENANTS[self.rng.randrange(len(TENANTS))]
        return SimpleNamespace(origin_input_ids=range(LEAF_TOKENS), cache_salt=salt, last_node=None)

    def insert(self, prompt: list[int], slots: Any, request: Any) -> None:
        if self.metadata is not None:
            self.guard.arrive(None)
            self.metadata.enter(request)
        self.cache.insert(base.InsertParams(key=RadixKey(array("q", prompt), None), value=slots))
        if self.metadata is not None:
            self.metadata.leave()

    def match(self, prompt: list[int]) -> Any:
        return self.cache.match_prefix(base.MatchPrefixParams(key=RadixKey(array("q", prompt), None)))

    def lock(self, node: Any) -> Any:
        return self.cache.inc_lock_ref(node)

    def unlock(self, node: Any, lock: Any) -> None:
        if hasattr(lock, "to_dec_params") and has_components(self.cache):
            self.cache.dec_lock_ref(node, lock.to_dec_params())
        else:
            self.cache.dec_lock_ref(node)

    def touch(self, prompt: list[int], request: Any) -> None:
        """A request finds its prompt, runs on it and finishes: match, lock, (count the hit,) unlock."""
        node = self.match(prompt).last_device_node
        lock = self.lock(node)
        if self.metadata is not None:
            self.guard.arrive(None)
            request.last_node = node
            self.metadata.enter(request)
            self.metadata.leave()
        self.unlock(node, lock)

    def evict(self, leaves: int) -> int:
        return int(self.cache.evict(base.EvictParams(num_tokens=leaves * LEAF_TOKENS)).num_tokens_evicted)

    # -- states --

    def slots(self) -> Any:
        slots = self.allocator.alloc(LEAF_TOKENS)
        return None if slots is None else slots.to(torch.int64)

    def fill(self, leaves: int) -> None:
        """Insert until that many more leaves are resident, or the pool is full."""
        for _ in range(leaves):
            if (slots := self.slots()) is None:
                return
            prompt = self.new_prompt()
            self.insert(prompt, slots, self.request())
            self.prompts.append(prompt)

    def some_prompts(self, count: int) -> list[list[int]]:
        """Drawn from all that were ever inserted, so a few are gone."""
        return [self.prompts[self.rng.randrange(len(self.prompts))] for _ in range(count)]

    def churn(self, leaves: int) -> None:
        """From fresh to used: random touches, then a tenth of the leaves evicted in batches and replaced."""
        for prompt in self.some_prompts(min(leaves, 100_000)):
            self.touch(prompt, self.request())
        for _ in range(10):
            self.evict(max(1, leaves // 100))
            self.fill(leaves)

    def check(self) -> None:
        """Raise AssertionError if the policy failed anywhere, so that the engine's order served instead."""
        if self.active is not None:
            assert not self.active.fallbacks, self.active.fallbacks
            assert not self.guard.index.counters.fallbacks, self.guard.index.counters.last_fault


def has_components(cache: Any) -> bool:
    return hasattr(cache, "tree_core")


def _stock(params: Any, core: str) -> Any:
    if not has_unified():
        from sglang.srt.mem_cache.radix_cache import RadixCache

        return RadixCache(params)
    from sglang.srt.mem_cache.unified_cache.components import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    params.tree_components = (ComponentType.FULL,)
    if hasattr(params, "tree_core_backend"):
        params.tree_core_backend = core
    cache = UnifiedRadixCache(params)
    if core == "rust":
        assert type(cache.tree_core).__name__ == "RustUnifiedTreeCore", "the engine did not choose its Rust core here"
    return cache


def _activate(eviction: dict[str, Any], explains: bool) -> ActivePolicy:
    flat = {"apiVersion": "kvpolicy/v1", "kind": "KVPolicy", "metadata": {"name": "benchmark"}, "eviction": eviction}
    policy = policy_from_flat(flat, engine="sglang")
    compiled = compile_policy(policy, "sglang")
    compiled = replace(compiled, eviction=replace(compiled.eviction, explains=explains))
    return ActivePolicy(policy=policy, flat=flat, digest="", role="scheduler", compiled=compiled)


def print_machine() -> None:
    """The machine, its load, the versions and the command, above every table."""
    from sglang.version import __version__

    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    start, total = CLOCK(), 0
    for i in range(1_000_000):
        total += i
    turns_ms = (CLOCK() - start) * 1e3
    print(f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
          f"Python {platform.python_version()}, SGLang {__version__}, torch {torch.__version__}")  # fmt: skip
    print(f"python {shlex.join(sys.argv)}")
    print(f"1M loop turns: {turns_ms:.0f} ms (about 40 on an idle current core)\n", flush=True)
