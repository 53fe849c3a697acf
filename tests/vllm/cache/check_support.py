"""What the adapter refuses, and how it says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from activation import activate
from driver import BLOCK_TOKENS, Driver, full_attention, groups
from kvpolicy_vllm import cache_hooks
from kvpolicy_vllm.cache_support import FEATURES, supported
from vllm.v1.kv_cache_interface import SlidingWindowSpec

LFU: dict[str, Any] = {"policy": "lfu"}


def config(**sections: Any) -> Any:
    made = {
        name: SimpleNamespace(**values) if isinstance(values, dict) else values for name, values in sections.items()
    }
    return SimpleNamespace(**made)


UNSUPPORTED = {
    "--no-enable-prefix-caching": config(cache_config={"enable_prefix_caching": False}),
    "prefix_match_unit": config(cache_config={"prefix_match_unit": 16, "block_size": 64}),
    "--kv-transfer-config": config(kv_transfer_config=object()),
}


@pytest.mark.parametrize("flag", UNSUPPORTED)
def check_refused_before_the_engine_is_built(flag: str) -> None:
    with pytest.raises(cache_hooks.EvictionRefused, match=flag):
        cache_hooks.install(activate("vllm", LFU), UNSUPPORTED[flag])
    cache_hooks.install(activate("vllm", {"policy": "lru"}), UNSUPPORTED[flag])  # vLLM's own order works everywhere


def pool_with(active: Any, *specs: Any) -> Any:
    pool = Driver(8, {"policy": "lru"}).pool
    cache_hooks.attach(active, pool, None, SimpleNamespace(kv_cache_groups=groups(*specs)), BLOCK_TOKENS)
    return pool


def window() -> Any:
    spec = full_attention()
    return SlidingWindowSpec(block_size=16, num_kv_heads=1, head_size=32, dtype=spec.dtype, sliding_window=64)


@pytest.mark.parametrize("specs", [(full_attention(), window()), (window(),)])
def check_hybrid_models_are_refused(specs: Any) -> None:
    with pytest.raises(cache_hooks.EvictionRefused, match=r"KV cache groups.*policy: test.yaml"):
        pool_with(activate("vllm", LFU), *specs)


def check_the_engine_may_win() -> None:
    active = activate("vllm", LFU, on_conflict="warn")
    pool = pool_with(active, full_attention(), window())
    assert pool.guard is None
    assert (active.core, active.index) == ("engine", None)
    assert [conflict.setting for conflict in active.conflicts] == ["eviction"]
    assert "several KV cache groups" in active.core_reason


def check_core_engine_has_lru_only() -> None:
    with pytest.raises(cache_hooks.EvictionRefused, match="no other than lru"):
        cache_hooks.install(activate("vllm", {"policy": "lfu", "core": "engine"}), None)
    active = activate("vllm", {"policy": "lru", "core": "engine"})
    assert pool_with(active, full_attention()).guard is None
    assert active.core == "engine"


def check_vllms_order_keeps_vllms_queue() -> None:
    for eviction in (None, {"policy": "lru"}):
        active = activate("vllm", eviction)
        pool = pool_with(active, full_attention())
        assert type(pool.free_block_queue).__name__ == "FreeKVCacheBlockQueue"
        assert "its free queue serves, at its speed" in active.core_reason


def check_our_index_says_so() -> None:
    active = activate("vllm", LFU)
    pool = pool_with(active, full_attention())
    assert type(pool.free_block_queue).__name__ == "PolicyQueue"
    assert (active.core, active.algorithm, active.pool_tokens) == ("kvpolicy", "lfu", 8 * BLOCK_TOKENS)


def check_every_row_has_its_reason() -> None:
    assert supported(None).kind == "supported"
    assert all(feature.reason and feature.flag for feature in FEATURES)
    assert len({feature.name for feature in FEATURES}) == len(FEATURES)
