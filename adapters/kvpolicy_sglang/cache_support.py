"""Which of SGLang's features the policy's eviction works with, as one table.

:func:`supported` looks a started configuration up in :data:`FEATURES`; the launcher may ask with the arguments alone,
the scheduler asks again with what it is about to build. `docs/sglang.md` prints the same table, and a test compares the
two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvpolicy.runtime.support import Feature, Verdict, decide

from . import cache_unified, probe

__all__ = ["FEATURES", "Needs", "still_supported", "supported", "watermark_supported"]


@dataclass(frozen=True, slots=True)
class Needs:
    """What the policy asks of the prefix cache."""

    index: bool = True  # its own order, rules, tenants: anything but the engine's own order
    time: bool = False  # ttl or a field in seconds
    metadata: bool = False  # more than a bare built-in order


class _Start:
    """A configuration about to start: arguments after resolution and, in a scheduler, what the cache is built from."""

    def __init__(self, server_args: Any, ctx: Any, needs: Needs) -> None:
        self.server_args, self.ctx, self.needs = server_args, ctx, needs

    def arg(self, name: str) -> Any:
        """One engine argument; None where this version has no such argument."""
        return probe.resolved(self.server_args, name) if hasattr(self.server_args, name) else None

    def built(self, name: str) -> Any:
        """One fact of the model or pools; None in the launcher, which does not know it yet."""
        return getattr(self.ctx, name, None)


def _is_sharded(start: _Start) -> bool:
    allocator = getattr(start.built("params"), "token_to_kv_pool_allocator", None)
    return any(cls.__name__ == "PageInterleavePoolAllocator" for cls in type(allocator).__mro__)


def _ranks_sessions(start: _Start) -> bool:
    """Whether our index can put session references before the policy's order; a launcher knows no cache yet."""
    return not start.needs.metadata and (start.ctx is None or cache_unified.has_session_references())


def _environment(name: str) -> bool:
    """One of SGLang's own environment switches; False where this version has no such switch."""
    try:
        from sglang.srt.environ import envs

        return bool(getattr(envs, name).get())
    except (ImportError, AttributeError):
        return False


def _has_foreign_component(start: _Start) -> bool:
    """Another plugin already put its own FULL component into the cache that is about to be built."""
    override = getattr(start.built("params"), "component_registry_override", None) or {}
    return any(getattr(kind, "name", kind) == "FULL" for kind in override)


_TREE_ONLY = "its tree holds more than one kind of state or tier, and order there is not proven equal"

#: Tried in order; the first that is in use and not `supported` decides.
FEATURES: tuple[Feature[_Start], ...] = (
    Feature(
        "several tokenizer workers",
        "--tokenizer-worker-num",
        "refused",
        "they load no plugins, so requests carry no arrival time and ttl and seconds would stand still",
        lambda start: start.needs.time and int(start.arg("tokenizer_worker_num") or 1) > 1,
    ),
    Feature(
        "the embedded Rust server",
        "SGLANG_RUST_SERVER",
        "refused",
        "it tokenizes without plugins, so requests carry no arrival time and ttl and seconds would stand still",
        lambda start: start.needs.time and _environment("SGLANG_RUST_SERVER"),
    ),
    Feature(
        "prefix cache off",
        "--disable-radix-cache",
        "stock",
        "nothing is kept between requests, so there is nothing to evict",
        lambda start: bool(start.arg("disable_radix_cache") or start.built("disable_radix_cache")),
    ),
    Feature(
        "another prefix cache",
        "--radix-cache-backend",
        "stock",
        "that cache evicts by its own rules",
        lambda start: bool(start.arg("radix_cache_backend")),
    ),
    Feature(
        "hierarchical cache",
        "--enable-hierarchical-cache",
        "stock",
        _TREE_ONLY,
        lambda start: bool(start.arg("enable_hierarchical_cache") or start.built("enable_hierarchical_cache")),
    ),
    Feature(
        "sliding-window attention",
        "a sliding-window model",
        "stock",
        _TREE_ONLY,
        lambda start: bool(start.built("is_hybrid_swa")),
    ),
    Feature(
        "Mamba and linear attention",
        "a hybrid state-space model",
        "stock",
        _TREE_ONLY,
        lambda start: bool(start.built("is_hybrid_ssm")),
    ),
    Feature(
        "session-aware cache with rules, a score or tenants",
        "--enable-session-radix-cache",
        "stock",
        "the engine orders eviction by its own session references first",
        lambda start: bool(start.arg("enable_session_radix_cache")) and not _ranks_sessions(start),
    ),
    Feature(
        "streaming sessions",
        "--enable-streaming-session",
        "stock",
        "a session keeps its tokens outside the tree, where no rule sees them",
        lambda start: bool(start.arg("enable_streaming_session")),
    ),
    Feature(
        "prefill/decode disaggregation",
        "--disaggregation-mode",
        "stock",
        "prefill and decode servers cache by a protocol of their own",
        lambda start: start.arg("disaggregation_mode") not in (None, "null"),
    ),
    Feature(
        "external KV stores",
        "--enable-lmcache, --enable-flexkv, --enable-unified-cache-external-linker",
        "stock",
        "the store decides what stays",
        lambda start: any(
            start.arg(name) for name in ("enable_lmcache", "enable_flexkv", "enable_unified_cache_external_linker")
        ),
    ),
    Feature(
        "diffusion language models",
        "--dllm-algorithm",
        "stock",
        "blocks are cached by a scheduler of their own",
        lambda start: bool(start.arg("dllm_algorithm")),
    ),
    Feature(
        "the C++ tree",
        "SGLANG_EXPERIMENTAL_CPP_RADIX_TREE",
        "stock",
        "it shows no nodes",
        lambda start: _environment("SGLANG_EXPERIMENTAL_CPP_RADIX_TREE"),
    ),
    Feature(
        "another plugin's cache component",
        "component_registry_override",
        "stock",
        "that plugin decides what is evicted, and two cannot",
        _has_foreign_component,
    ),
    Feature(
        "pages sharded over GPUs",
        "KV sharding",
        "stock",
        "free room is counted in the smallest shard, not in tokens",
        _is_sharded,
    ),
    Feature(
        "session-aware cache with a built-in order",
        "--enable-session-radix-cache",
        "supported",
        "units that no open session refers to go first, then those with fewest references, as in stock",
        lambda start: bool(start.arg("enable_session_radix_cache")),
    ),
    Feature(
        "LoRA",
        "--enable-lora",
        "supported",
        "the adapter is part of the key, and rules see its name as request.lora",
        lambda start: bool(start.arg("enable_lora")),
    ),
    Feature(
        "speculative decoding",
        "--speculative-algorithm",
        "supported",
        "draft and target share one tree; a bigram key is one token short of its request",
        lambda start: bool(start.arg("speculative_algorithm")),
    ),
    Feature(
        "data parallelism, DP attention",
        "--dp-size, --enable-dp-attention",
        "supported",
        "each replica has its own tree and clock; ranks of one replica decide alike",
        lambda start: int(start.arg("dp_size") or 1) > 1,
    ),
    Feature(
        "tensor parallelism",
        "--tp-size",
        "supported",
        "every rank decides alike",
        lambda start: int(start.arg("tp_size") or 1) > 1,
    ),
    Feature(
        "pipeline parallelism",
        "--pp-size",
        "supported",
        "every stage sees the same requests in the same order and decides alike",
        lambda start: int(start.arg("pp_size") or 1) > 1,
    ),
    Feature(
        "sessions",
        "session_params in a request",
        "supported",
        "each turn is an ordinary request; rules see request.session_id where the engine passes it",
        lambda start: True,
    ),
    Feature(
        "chunked prefill and overlap scheduling",
        "--chunked-prefill-size",
        "supported",
        "a request counts one hit and one admission, however many chunks it has",
        lambda start: True,
    ),
)


def supported(server_args: Any, ctx: Any = None, needs: Needs = Needs()) -> Verdict:
    """Whether the policy's eviction can work in this configuration, and if not what decides.

    `ctx` is SGLang's `TreeCacheBuildContext` in a scheduler, None in a launcher.
    """
    if not needs.index:
        return Verdict("supported")
    return decide(FEATURES, _Start(server_args, ctx, needs))


def still_supported(ctx: Any, needs: Needs) -> Verdict:
    """As :func:`supported`, for another policy in a scheduler whose cache has our component already."""
    others = [feature for feature in FEATURES if feature.used is not _has_foreign_component]
    return decide(others, _Start(ctx.server_args, ctx, needs))


#: Rows of the table that watermarks do not go with either. They evict through the cache's own `evict`, whoever orders
#: it, but count on one pool of free slots that eviction refills.
NO_WATERMARK = (
    "prefix cache off",
    "another prefix cache",
    "hierarchical cache",
    "sliding-window attention",
    "Mamba and linear attention",
    "streaming sessions",
    "prefill/decode disaggregation",
    "external KV stores",
    "diffusion language models",
    "the C++ tree",
    "pages sharded over GPUs",
)
_PLAIN_ALLOCATORS = ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator")


def watermark_supported(server_args: Any, ctx: Any = None) -> Verdict:
    """Whether `allocator.watermark` can work in this configuration; `ctx` as of :func:`supported`."""
    start = _Start(server_args, ctx, Needs(index=False))
    for feature in FEATURES:
        if feature.name in NO_WATERMARK and feature.used(start):
            return _no_watermark(feature.flag, f"{feature.name} ({feature.flag})")
    allocator = getattr(start.built("params"), "token_to_kv_pool_allocator", None)
    of_engine = next((cls.__name__ for cls in type(allocator).__mro__ if cls.__module__.startswith("sglang.")), None)
    if ctx is not None and of_engine not in _PLAIN_ALLOCATORS:
        return _no_watermark(str(of_engine), f"the allocator {of_engine}")
    return Verdict("supported")


def _no_watermark(winner: str, what: str) -> Verdict:
    message = f"the policy's watermarks do not work with {what}: free slots are not one pool that eviction refills"
    return Verdict("stock", winner, message, "allocator.watermark", "the engine evicts what an allocation lacks")
