"""Where SGLang's FlashInfer backend can be planned by pages. As a table.

The arguments decide most of it, so the launcher asks first; a scheduler asks again with the backend that it made.
`docs/sglang.md` prints the table, and a test compares the two.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from kvpolicy.runtime.support import Feature, Verdict, decide

from .pool_support import Start

__all__ = ["FEATURES", "SECTION", "BackendStart", "phases", "supported"]

logger = logging.getLogger("kvpolicy")

SECTION = "backend.page_native"
_INSTEAD = "attention is planned by tokens"


class BackendStart(Start):
    """Arguments after resolution and, in a scheduler, the backend that was made."""

    def __init__(self, server_args: Any, backend: Any) -> None:
        super().__init__(server_args, None, None)
        self.backend = backend

    def of_backend(self, name: str) -> Any:
        """One fact of the backend; None in the launcher, and where this version has no such one."""
        return getattr(self.backend, name, None)


def phases(server_args: Any) -> set[str]:
    """The backends of prefill and decode, as far as the arguments name them."""
    start = BackendStart(server_args, None)
    both = start.arg("attention_backend")
    return {str(start.arg(f"{phase}_attention_backend") or both) for phase in ("prefill", "decode")}


def _is_other_pool(start: BackendStart) -> bool:
    """Whether K and V of a layer are anything but `[slots, heads, dim]`, slots in pages of the backend's size."""
    pool = start.of_backend("token_to_kv_pool")
    if pool is None:
        return False
    if type(pool).__name__ != "MHATokenToKVPool" or getattr(pool, "use_hnd", False):
        return True
    page_tokens = int(start.backend.page_size)
    sides = pool.get_kv_buffer(getattr(pool, "start_layer", 0) or 0)
    return any(side.dim() != 3 or not side.is_contiguous() or len(side) % page_tokens for side in sides)


def _other_arguments(start: BackendStart) -> bool:
    from .attention_pages import DECODE, PREFILL, unknown_arguments

    pairs = (
        (start.of_backend("indices_updater_decode"), DECODE),
        (start.of_backend("indices_updater_prefill"), PREFILL),
    )
    return any(unknown_arguments(type(updater), known) for updater, known in pairs if updater is not None)


def _kernel_is_wrong(start: BackendStart) -> bool:
    from .attention_pages import kernel_agrees

    if start.backend is None:
        return False
    try:
        return not kernel_agrees(start.backend.req_to_token_pool.req_to_token, int(start.backend.page_size))
    except Exception:
        logger.exception("kvpolicy: the kernel that finds a batch's pages raised")
        return True


#: Tried in order; the first that is in use and not `supported` decides.
FEATURES: tuple[Feature[BackendStart], ...] = (
    Feature(
        "another attention backend",
        "--attention-backend, --prefill-attention-backend, --decode-attention-backend",
        "stock",
        "it is about FlashInfer's plans, in prefill and decode; what other backends read is not a choice",
        lambda start: phases(start.server_args) != {"flashinfer"},
    ),
    Feature(
        "speculative decoding",
        "--speculative-algorithm",
        "stock",
        "drafted tokens are planned from lists of single tokens",
        lambda start: start.has("speculative_algorithm"),
    ),
    Feature(
        "deterministic inference",
        "--enable-deterministic-inference",
        "stock",
        "its split sizes are numbers of pages, and meant for pages of one token",
        lambda start: start.has("enable_deterministic_inference"),
    ),
    Feature(
        "a KV dtype with scales of its own",
        "--kv-cache-dtype nvfp4, fp4_mx_block16, mxfp8",
        "stock",
        "FlashInfer reads a copy of it, with indices of its own",
        lambda start: str(start.arg("kv_cache_dtype")).startswith(("mxfp8", "nvfp4", "fp4")),
    ),
    Feature(
        "multi-item scoring",
        "--enable-mis",
        "stock",
        "its masks come with the plan, and were never tried with pages",
        lambda start: start.has("enable_mis"),
    ),
    Feature(
        "diffusion language models",
        "--dllm-algorithm",
        "stock",
        "their blocks are planned in a way that was never tried with pages",
        lambda start: start.has("dllm_algorithm"),
    ),
    Feature(
        "torch.compile",
        "--enable-torch-compile",
        "stock",
        "it traces the call that pages are given to, which was never tried",
        lambda start: start.has("enable_torch_compile"),
    ),
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
        "a rank holds parts of pages",
        lambda start: start.has("enable_kv_cache_sharding") or int(start.arg("dcp_size") or 1) > 1,
    ),
    Feature(
        "a unified memory pool",
        "--enable-unified-memory",
        "stock",
        "slots are translated on their way to the kernel",
        lambda start: (
            start.has("enable_unified_memory")
            or bool(getattr(start.of_backend("kv_index_translator"), "is_translating", False))
            or bool(getattr(start.of_backend("kv_index_translator"), "reads_are_translated", False))
        ),
    ),
    Feature(
        "sliding windows and cross attention",
        "a model",
        "stock",
        "a window begins inside a page, and an encoder's tokens precede the decoder's in its row",
        lambda start: int(start.of_backend("num_wrappers") or 1) != 1,
    ),
    Feature(
        "another pool",
        "a hybrid model, --prefill-only-disable-kv-cache, SGLANG_USE_HND_KVCACHE",
        "stock",
        "K and V of a layer are not one tensor each of whole pages",
        _is_other_pool,
    ),
    Feature(
        "a FlashInfer backend of its own",
        "a model",
        "stock",
        "it overrides what SGLang's plans",
        lambda start: start.backend is not None and type(start.backend).__name__ != "FlashInferAttnBackend",
    ),
    Feature(
        "another SGLang",
        "a release whose plans take other arguments",
        "stock",
        "what the new ones mean is not known",
        _other_arguments,
    ),
    Feature(
        "this machine's Triton",
        "a kernel that is compiled at start",
        "stock",
        "what finds a batch's pages was tried, and failed",
        _kernel_is_wrong,
    ),
    Feature(
        "parallelism, hierarchical cache, disaggregation",
        "--tp-size, --pp-size, --dp-size, --enable-hierarchical-cache, --disaggregation-mode",
        "supported",
        "the pool stays as it is, and each rank plans for itself",
        lambda start: True,
    ),
)


def supported(server_args: Any, backend: Any = None) -> Verdict:
    """Whether attention can be planned by pages; `backend` is None in a launcher."""
    return replace(decide(FEATURES, BackendStart(server_args, backend), SECTION), instead=_INSTEAD)
