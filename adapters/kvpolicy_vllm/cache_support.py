"""Where the policy's eviction works in vLLM: one table, decided by what the engine is about to build.

`stock` rows are conflicts: the policy's `on_conflict` says whether the start ends or vLLM's own order stays.
"""

from __future__ import annotations

from typing import Any

from kvpolicy.runtime.support import Feature, Verdict, decide

__all__ = ["FEATURES", "supported"]


class _Start:
    """What is about to be built: vLLM's configuration and, in the engine, its KV cache groups."""

    def __init__(self, config: Any, kv_cache_config: Any) -> None:
        self.config, self.kv_cache_config = config, kv_cache_config

    def setting(self, section: str, name: str) -> Any:
        """One setting; None where this version has no such setting, or a test builds a pool without a configuration."""
        return getattr(getattr(self.config, section, None), name, None)

    @property
    def kinds(self) -> list[str]:
        """The class of each KV cache group's specification; empty before the engine knows them."""
        groups = getattr(self.kv_cache_config, "kv_cache_groups", None) or ()
        return [type(group.kv_cache_spec).__name__ for group in groups]


#: Specifications whose groups are one prefix chain: every block of a match is needed, from the first one on.
CHAINS = ("FullAttentionSpec", "MLAAttentionSpec")

#: Tried in order; the first that is in use and not `supported` decides.
FEATURES: tuple[Feature[_Start], ...] = (
    Feature(
        "prefix caching off",
        "--no-enable-prefix-caching",
        "stock",
        "nothing is kept between requests, so there is nothing to evict",
        lambda start: start.setting("cache_config", "enable_prefix_caching") is False,
    ),
    Feature(
        "hybrid models and sliding windows",
        "several KV cache groups, or a group that is not full attention",
        "stock",
        "a match there needs blocks of every group, and not all of a prefix; the order is not proven equal",
        lambda start: len(start.kinds) > 1 or any(kind not in CHAINS for kind in start.kinds),
    ),
    Feature(
        "partial prefix matches",
        "prefix_match_unit below the block size",
        "stock",
        "a block then holds several prefixes, and none of them is the unit",
        lambda start: bool(
            (unit := start.setting("cache_config", "prefix_match_unit"))
            and unit != start.setting("cache_config", "block_size")
        ),
    ),
    Feature(
        "KV connectors and offloading",
        "--kv-transfer-config, --kv-offloading-size",
        "stock",
        "another tier moves blocks by rules of its own",
        lambda start: getattr(start.config, "kv_transfer_config", None) is not None,
    ),
    Feature(
        "LoRA",
        "--enable-lora",
        "supported",
        "the adapter is part of the hash, and rules see its name as request.lora",
        lambda start: getattr(start.config, "lora_config", None) is not None,
    ),
    Feature(
        "speculative decoding",
        "--speculative-config",
        "supported",
        "only accepted tokens are cached",
        lambda start: getattr(start.config, "speculative_config", None) is not None,
    ),
    Feature(
        "tensor and pipeline parallelism",
        "--tensor-parallel-size, --pipeline-parallel-size",
        "supported",
        "one scheduler decides for all ranks",
        lambda start: int(start.setting("parallel_config", "world_size") or 1) > 1,
    ),
    Feature(
        "data parallelism",
        "--data-parallel-size",
        "supported",
        "each replica has its own pool, index and clock",
        lambda start: int(start.setting("parallel_config", "data_parallel_size") or 1) > 1,
    ),
    Feature(
        "chunked prefill, async scheduling, preemption",
        "the defaults",
        "supported",
        "a request counts one hit and one admission, however often it is scheduled",
        lambda start: True,
    ),
    Feature(
        "sleep and wake",
        "--enable-sleep-mode",
        "supported",
        "the pool is emptied before the memory goes, and the index with it",
        lambda start: bool(start.setting("model_config", "enable_sleep_mode")),
    ),
)


def supported(vllm_config: Any, kv_cache_config: Any = None) -> Verdict:
    """Whether the policy's eviction can work here, and if not what decides.

    `kv_cache_config` is vLLM's `KVCacheConfig` in the engine, None in a launcher.
    """
    return decide(FEATURES, _Start(vllm_config, kv_cache_config))
