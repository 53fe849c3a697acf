"""Where SGLang can have a KV pool of ours: with a dtype for each layer, or in int8 or int4. As tables.

The arguments decide most of it, so the launcher asks first; the scheduler asks again with the configurator that is
about to size and build the pool. `docs/sglang.md` prints the table, and a test compares the two.
"""

from __future__ import annotations

from typing import Any

from kvpolicy.facts.encodings import ENCODED, HEAD_DIMS
from kvpolicy.runtime.active import ActivePolicy
from kvpolicy.runtime.support import Feature, Verdict, decide

from . import probe

__all__ = ["BACKENDS", "ENCODING", "ENCODING_FEATURES", "FEATURES", "LAYERS", "Start", "backends_of", "supported"]

LAYERS, ENCODING = "cache.kv_dtype.layers", "cache.kv_dtype"
#: Backends that take a layer's dtype from the tensor they are given.
BACKENDS = ("torch_native", "triton")

_COPIES = "it copies K and V by their address, and knows one row size for all layers"


class Start:
    """Arguments after resolution and, in a scheduler, SGLang's `KVCacheConfigurator`."""

    def __init__(self, server_args: Any, configurator: Any, active: ActivePolicy | None) -> None:
        self.server_args, self.configurator, self.active = server_args, configurator, active

    def arg(self, name: str) -> Any:
        """One engine argument; None where this version has no such argument."""
        return probe.resolved(self.server_args, name) if hasattr(self.server_args, name) else None

    def built(self, name: str) -> Any:
        """One fact of the model; None in the launcher, which does not know it yet."""
        return getattr(self.configurator, name, None)

    def has(self, *names: str) -> bool:
        """Whether any of these switches is on."""
        return any(bool(self.arg(name)) for name in names)

    @property
    def backends(self) -> set[str]:
        names = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
        return {str(value) for value in map(self.arg, names) if value}

    @property
    def modules(self) -> list[Any]:
        """Of the model; none in the launcher."""
        model = self.built("model")
        return list(model.modules()) if model is not None else []


def backends_of(server_args: Any) -> set[str]:
    """Attention backends that the arguments name."""
    return Start(server_args, None, None).backends


def _has_scales(start: Start) -> bool:
    """A checkpoint with scales of K and V: a backend applies them to every layer it reads, FP8 or not."""
    scales = (getattr(module, "k_scale_float", None) for module in start.modules)
    return any(scale not in (None, 1.0) for scale in scales)


def _is_other_pool(start: Start) -> bool:
    return any(map(start.built, ("use_mla_backend", "is_hybrid_swa", "mambaish_config")))


#: Tried in order; the first that is in use and not `supported` decides.
FEATURES: tuple[Feature[Start], ...] = (
    Feature(
        "another attention backend",
        "--attention-backend",
        "stock",
        "only torch_native and triton take the dtype of each layer's tensor; others plan with one dtype",
        lambda start: not start.backends <= set(BACKENDS),
    ),
    Feature(
        "latent attention, sliding windows and state layers",
        "an MLA, sliding-window or hybrid model",
        "stock",
        "its pool is not the plain one of K and V",
        _is_other_pool,
    ),
    Feature(
        "layers split over ranks",
        "a rank that keeps some of its layers' K and V elsewhere",
        "stock",
        "the pool then has fewer layers than the rank runs",
        lambda start: (
            (info := start.built("layer_info")) is not None
            and info.num_effective_layers != info.end_layer - info.start_layer
        ),
    ),
    Feature(
        "a KV dtype with scales of its own",
        "--kv-cache-dtype",
        "stock",
        "the pool then keeps scales or packed values, alike in all layers",
        lambda start: str(start.arg("kv_cache_dtype")).startswith(("mxfp8", "nvfp4", "fp4")),
    ),
    Feature(
        "a checkpoint with KV scales",
        "k_scale and v_scale in the weights",
        "stock",
        "a backend applies them to every layer it reads, and they belong to FP8 layers alone",
        _has_scales,
    ),
    Feature(
        "hierarchical cache and external KV stores",
        "--enable-hierarchical-cache, --enable-lmcache, --enable-flexkv, --enable-unified-cache-external-linker",
        "stock",
        _COPIES,
        lambda start: start.has(
            "enable_hierarchical_cache", "enable_lmcache", "enable_flexkv", "enable_unified_cache_external_linker"
        ),
    ),
    Feature(
        "prefill/decode disaggregation",
        "--disaggregation-mode",
        "stock",
        _COPIES,
        lambda start: start.arg("disaggregation_mode") not in (None, "null"),
    ),
    Feature(
        "speculative decoding",
        "--speculative-algorithm",
        "stock",
        "accepted tokens are moved by address, with one row size, and a draft model may share the pool",
        lambda start: start.has("speculative_algorithm"),
    ),
    Feature("HiSparse", "--enable-hisparse", "stock", _COPIES, lambda start: start.has("enable_hisparse")),
    Feature(
        "page-major layout",
        "--enable-page-major-kv-layout",
        "stock",
        "a page holds all layers in one tensor",
        lambda start: start.has("enable_page_major_kv_layout"),
    ),
    Feature(
        "sharded pages and decode context parallelism",
        "--enable-kv-cache-sharding, --dcp-size",
        "stock",
        "its pool is not the plain one of K and V",
        lambda start: start.has("enable_kv_cache_sharding") or int(start.arg("dcp_size") or 1) > 1,
    ),
    Feature(
        "a pool sized after graph capture",
        "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING",
        "stock",
        "it is mapped with one row size",
        lambda start: bool(start.built("post_capture_kv_active")),
    ),
    Feature(
        "AMD GPUs",
        "ROCm",
        "stock",
        "models that fuse rope with the write of K and V pass the pool's methods by, whatever its dtype",
        lambda start: _is_rocm(),
    ),
    Feature(
        "tensor, pipeline and data parallelism",
        "--tp-size, --pp-size, --dp-size",
        "supported",
        "each rank builds the layers it has",
        lambda start: True,
    ),
)


def _is_rocm() -> bool:
    import torch

    return torch.version.hip is not None


def _head_dims(start: Start) -> tuple[int, int] | None:
    """Of K and V; None in the launcher."""
    config = start.built("model_config")
    return None if config is None else (int(config.head_dim), int(config.v_head_dim))


def _changes_scores(start: Start) -> bool:
    """Attention sinks, and Grok's temperature by position: not in our decode kernel."""
    return any(
        getattr(module, "sinks", None) is not None or (getattr(module, "xai_temperature_len", None) or -1) > 0
        for module in start.modules
    )


#: What an encoding needs beside `FEATURES`.
ENCODING_FEATURES: tuple[Feature[Start], ...] = (
    Feature(
        "KV dtypes of single layers",
        LAYERS,
        "stock",
        "int8 and int4 are of all layers",
        lambda start: start.active is not None and bool(start.active.compiled.cache.layer_dtypes),
    ),
    Feature(
        "other head sizes",
        "a model",
        "stock",
        f"K and V must have heads of one width, one of {', '.join(map(str, HEAD_DIMS))}",
        lambda start: (dims := _head_dims(start)) is not None and (dims[0] != dims[1] or dims[0] not in HEAD_DIMS),
    ),
    Feature(
        "attention sinks and temperature by position",
        "a model",
        "stock",
        "the decode kernel knows soft caps only",
        _changes_scores,
    ),
    Feature(
        "a disabled KV cache",
        "--prefill-only-disable-kv-cache",
        "stock",
        "there is nothing to store",
        lambda start: start.has("prefill_only_disable_kv_cache"),
    ),
)


def supported(server_args: Any, configurator: Any = None, *, active: ActivePolicy | None = None) -> Verdict:
    """Whether the pool can be ours; `configurator` is None in a launcher. Without `active`: for single layers."""
    start = Start(server_args, configurator, active)
    chosen = active and active.settings.get("kv_cache_dtype")
    if chosen and chosen.effective in ENCODED:
        return decide((*ENCODING_FEATURES, *FEATURES), start, ENCODING)
    return decide(FEATURES, start, LAYERS)
