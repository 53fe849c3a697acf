"""How many tokens the KV pool holds, what one request costs in it, and what a page size does to cache hits."""

from __future__ import annotations

from dataclasses import dataclass

from kvpolicy.facts.gpus import Gpu
from kvpolicy.facts.kv_bytes import KvBytes
from kvpolicy.facts.model import ModelFacts

__all__ = [
    "Granularity",
    "estimate_pool_bytes",
    "granularity",
    "index_entries",
    "index_entry_bytes",
    "mem_fraction_static",
    "pool_tokens",
]

# Backends that read one index a token whatever the page size (the rest read one a page).
_TOKEN_INDEXED = frozenset({"flashinfer", "triton", "torch_native", "flex_attention", "intel_amx"})
# Bytes of one entry, int32 unless said otherwise: triton_backend.py builds its kv_indices in int64.
_ENTRY_BYTES = {"triton": 8}
_MIB = 1 << 20
# memory_hook.py handle_gpu_memory_settings: decode CUDA graph batch limit by device memory in MiB.
_GRAPH_BATCH_BY_MEMORY = ((20 * 1024, 8, 8), (35 * 1024, 48, 160), (60 * 1024, 32, 160), (160 * 1024, 256, 512))


@dataclass(frozen=True, slots=True)
class Granularity:
    """What a page size does to hits: only whole pages are shared."""

    page_size: int
    expected_lost_tokens: float  # a hit ends inside a page with equal probability at each offset
    min_prefix_tokens: int  # shortest prefix that can be shared


def pool_tokens(size_bytes: int, cell: KvBytes, page_size: int) -> int:
    """Tokens of a pool, whole pages only (``DefaultPoolConfigurator.calculate_pool_sizes``); 0 when nothing fits."""
    if cell.total <= 0:
        return 0
    return int(size_bytes // cell.total) // page_size * page_size


def index_entries(length_tokens: int, page_size: int, attention: str, *, by_pages: bool = False) -> int:
    """Entries a request of this length puts into the backend's index table; `by_pages`: planned so by the policy."""
    reads_tokens = attention in _TOKEN_INDEXED and not by_pages
    return length_tokens if reads_tokens else -(-length_tokens // page_size)


def index_entry_bytes(attention: str) -> int:
    """Bytes of one entry of the backend's index table."""
    return _ENTRY_BYTES.get(attention, 4)


def granularity(page_size: int) -> Granularity:
    """See :class:`Granularity`."""
    return Granularity(page_size, (page_size - 1) / 2, page_size)


def estimate_pool_bytes(gpu: Gpu, model: ModelFacts, *, tp: int, chunk_tokens: int) -> tuple[int, str] | None:
    """(bytes left for KV on one rank, how), or None where memory or weights are unknown.

    SGLang's own rule for ``--mem-fraction-static`` (memory less a reserve for activations and CUDA graphs), then the
    weights. The real server measures after loading, so this is within some percent at best. Linear-attention states are
    not subtracted.
    """
    if gpu.memory_mib is None or model.weights_bytes is None:
        return None
    fraction = mem_fraction_static(gpu, model, tp=tp, chunk_tokens=chunk_tokens)
    left = int(gpu.memory_mib * fraction * _MIB) - model.weights_bytes // tp
    weights = "weights from the files" if model.weights_from == "files" else "weights estimated"
    how = f"{gpu.label}: {gpu.memory_mib} MiB * {fraction:g} - {model.weights_bytes / tp / 2**30:.1f} GiB ({weights})"
    return max(left, 0), how


def mem_fraction_static(gpu: Gpu, model: ModelFacts, *, tp: int, chunk_tokens: int) -> float:
    """SGLang's default ``--mem-fraction-static`` (memory_hook.py handle_gpu_memory_settings), within half a percent."""
    memory = gpu.memory_mib or 0
    reserve = 512 + max(chunk_tokens, 2048) * 1.5 + tp / 8 * 1024 + 2 * _graph_batch(memory, tp)
    reserve += 1536 if model.is_mla else 8 * 58  # prefill graphs: a fixed cost for MLA, else some 58 captured sizes
    if memory > 60 * 1024:
        reserve = max(reserve, 10 * 1024)
    fraction = round((memory - reserve) / memory, 3)
    long_context = (model.context_tokens or 0) > 8192
    return fraction * 0.85 if "hip" in gpu.traits and long_context else fraction  # aiter keeps workspace for those


def _graph_batch(memory_mib: int, tp: int) -> int:
    for limit, small, large in _GRAPH_BATCH_BY_MEMORY:
        if memory_mib < limit:
            return small if tp < 4 else large
    return 512
