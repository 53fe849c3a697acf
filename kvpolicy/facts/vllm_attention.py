"""Which attention backend vLLM takes: its priority lists, and why a backend cannot serve a layer.

``platforms/cuda.py _get_backend_priorities`` and ``get_attn_backend_cls``, their ROCm twins, and
``v1/attention/backend.py validate_configuration``. On CPUs the platform decides alone, see ``resolve_vllm.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvpolicy.facts.engines import Version
from kvpolicy.facts.gpus import Gpu
from kvpolicy.facts.rules import Field
from kvpolicy.facts.vllm_backends import Backend, rows_of, since_when

__all__ = ["Candidate", "Layer", "Unfit", "candidate", "choose", "priorities"]

_SIXTEEN_BITS = ("auto", "fp16", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What the selector is told of an attention layer, on one rank."""

    head_size: int
    heads: int
    compute: str  # dtype of queries
    kv_dtype: str
    grouped_query: bool
    mla: bool = False
    sparse: bool = False
    sinks: bool = False
    window: bool = False
    softcap: bool = False
    r1_shape: bool = False  # 64 rope and 128 value channels, as DeepSeek-R1


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a backend cannot serve a layer, and which setting is to blame."""

    field: Field
    reason: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend tried: the row that answers for it, or why it is out."""

    name: str
    row: Backend | None
    unfit: Unfit | None

    @property
    def fits(self) -> bool:
        return self.unfit is None


def priorities(version: Version, gpu: Gpu, layer: Layer) -> tuple[str, ...]:
    """Names in the order tried where the user names no backend."""
    if "hip" in gpu.traits:
        if layer.sparse:
            return ("rocm_aiter_mla_sparse",)
        if layer.mla:
            return ("triton_mla",)
        return ("rocm_attn", "triton_attn", "turboquant", "ultraquant")
    if "xpu" in gpu.traits:
        return ("triton_mla",) if layer.mla else ("flash_attn", "triton_attn", "turboquant")
    blackwell = "sm100" in gpu.traits
    if not layer.mla:
        first = ("flashinfer", "flash_attn") if blackwell else ("flash_attn", "flashinfer")
        return (*first, "triton_attn", "flex_attention", "turboquant")
    if blackwell:
        dense = ("flashinfer_mla", "tokenspeed_mla", "cutlass_mla", "flash_attn_mla", "flashmla", "triton_mla")
        return (*dense, *_sparse_on_blackwell(version, layer))
    if "sm120" in gpu.traits:
        return ("triton_mla", "flashinfer_mla_sparse_sm120")
    sparse = ("flash_attn_mla_sparse", "flashmla_sparse", "flashinfer_mla_sparse_sm90")
    if layer.head_size == 512:
        sparse = (sparse[2], sparse[0], sparse[1])
    return ("flash_attn_mla", "flashmla", "flashinfer_mla", "triton_mla", *sparse)


def _sparse_on_blackwell(version: Version, layer: Layer) -> tuple[str, ...]:
    if layer.kv_dtype not in _SIXTEEN_BITS:
        return ("flashinfer_mla_sparse", "flashmla_sparse")
    if layer.heads <= 16:
        newest = ("flash_attn_mla_sparse_fa4",) if version >= (0, 33, 0) else ()
        return (*newest, "flashinfer_mla_sparse", "flashmla_sparse")
    return ("flashmla_sparse", "flashinfer_mla_sparse")


def candidate(name: str, layer: Layer, *, version: Version, gpu: Gpu, block: int | None) -> Candidate:
    """Try one backend. ``block``: the block size the user asked for."""
    since = since_when(name)
    rows = list(rows_of(name, version))
    if not rows:
        reason = "vLLM has no such backend" if since is None else "this release has no such backend yet"
        return _out(name, None, "attention", reason)
    here = [row for row in rows if not gpu.traits.isdisjoint(row.gpu)]
    if not here:
        return _out(name, None, "attention", f"{name} does not run on {gpu.label}")
    row = next((row for row in here if _is_about(row, layer)), None)
    if row is None:
        return _out(name, None, "attention", f"{name} takes no heads of {layer.head_size} here")
    unfit = _shape(row, layer) or _numbers(row, layer)
    if unfit is None and block is not None and not row.takes_block(block):
        unfit = Unfit("page_size", f"{name} takes blocks of {_sizes(row)}")
    return Candidate(name, row, unfit)


def choose(
    layer: Layer, *, version: Version, gpu: Gpu, block: int | None
) -> tuple[Candidate | None, tuple[Candidate, ...]]:
    """(the backend taken, the ones tried before it). None: no backend fits and vLLM does not start."""
    tried: list[Candidate] = []
    for name in priorities(version, gpu, layer):
        found = candidate(name, layer, version=version, gpu=gpu, block=block)
        if found.fits:
            return found, tuple(tried)
        tried.append(found)
    return None, tuple(tried)


def _is_about(row: Backend, layer: Layer) -> bool:
    return (
        (not row.only_heads or layer.head_size in row.only_heads)
        and (not row.only_kv or layer.kv_dtype in row.only_kv)
        and row.grouped_query in (None, layer.grouped_query)
        and row.softcap in (None, layer.softcap)
    )


def _shape(row: Backend, layer: Layer) -> Unfit | None:
    name = row.name
    if row.mla != layer.mla:
        return Unfit("attention", f"{name} serves {'MLA models only' if row.mla else 'no MLA models'}")
    if row.sparse != layer.sparse:
        return Unfit("attention", f"{name} serves {'sparse' if row.sparse else 'dense'} attention only")
    if row.head_sizes and layer.head_size not in row.head_sizes:
        return Unfit("attention", f"{name} takes no heads of {layer.head_size}")
    if not row.min_head <= layer.head_size <= row.max_head or (name == "flash_attn" and layer.head_size % 8):
        return Unfit("attention", f"{name} takes no heads of {layer.head_size} here")
    if layer.sinks and not row.sinks:
        return Unfit("attention", f"{name} has no attention sinks here")
    if layer.window and not row.window:
        return Unfit("attention", f"{name} has no sliding window")
    if name == "tokenspeed_mla" and not layer.r1_shape:
        return Unfit("attention", "tokenspeed_mla takes the MLA dimensions of DeepSeek-R1 only")
    return None


def _numbers(row: Backend, layer: Layer) -> Unfit | None:
    name = row.name
    if layer.compute not in row.compute:
        return Unfit("attention", f"{name} does not compute in {layer.compute}")
    if layer.kv_dtype not in row.kv_dtypes:
        stored = ", ".join(dtype for dtype in row.kv_dtypes if dtype != "auto")
        return Unfit("kv_dtype", f"{name} stores {stored} here")
    return None


def _sizes(row: Backend) -> str:
    if row.multiples and not row.exact:
        return f"a multiple of {row.blocks[0]}"
    listed = ", ".join(map(str, row.blocks))
    return listed if row.exact or len(row.blocks) == 1 else f"{listed} or multiples"


def _out(name: str, row: Backend | None, field: Field, reason: str) -> Candidate:
    return Candidate(name, row, Unfit(field, reason))
