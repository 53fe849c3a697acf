"""What decode attention was measured to cost, GPU by GPU, and the cost model's constants fitted to it.

H200: `benchmarks/cascade.py`, driver 580.159.04, torch 2.11.0+cu130, FlashInfer 0.6.15.post1, 30 November 2026. bf16,
32 query and 8 KV heads of 128, pages shuffled over the pool; kernels are the median of 21 CUDA graphs after the cache
(L2) was overwritten, plans the median of 20 by the host's clock. ``plain`` and ``tensor`` are
BatchDecodeWithPagedKVCacheWrapper without and with tensor cores, ``theirs`` is MultiLevelCascadeAttentionWrapper with
two levels, ``ours`` is :mod:`kvpolicy.kernels.cascade_triton`.
"""

from __future__ import annotations

from typing import NamedTuple

from kvpolicy.attention.cost import Constants, Heads, Load
from kvpolicy.attention.fit import Row, fit

__all__ = ["CONSTANTS", "FLASHINFER_CASCADE", "H200_FLASHINFER_ROWS", "H200_ROWS", "WORST_HELD_OUT"]


class _Measured(NamedTuple):
    """One load: milliseconds of a layer, and of plans on the host."""

    load: tuple[int, int, int, int]  # requests, shared and own tokens, page
    plain: float
    tensor: float
    theirs: float
    ours: float
    plan_flat: float
    plan_theirs: float
    plan_ours: float


_H200_HEADS = Heads(query=32, kv=8, dim=128)

#              B     S      U   page  plain  tensor theirs ours   plans: flat, theirs, ours
_H200 = tuple(
    _Measured(load, *figures)
    for load, *figures in (
        ((4, 32768, 256, 16), 0.193, 0.080, 0.456, 0.111, 0.11, 0.44, 0.11),
        ((8, 8192, 256, 16), 0.107, 0.048, 0.141, 0.049, 0.18, 0.88, 0.14),
        ((16, 4096, 512, 16), 0.116, 0.052, 0.114, 0.050, 0.15, 0.69, 0.12),
        ((16, 32768, 256, 16), 0.751, 0.241, 0.475, 0.118, 0.14, 0.74, 0.12),
        ((32, 8192, 256, 1), 0.393, 0.134, 0.184, 0.060, 0.20, 0.92, 0.17),
        ((32, 8192, 256, 16), 0.392, 0.131, 0.178, 0.056, 0.23, 0.93, 0.16),
        ((64, 512, 2048, 16), 0.250, 0.156, 0.543, 0.166, 0.30, 1.19, 0.29),
        ((64, 2048, 128, 16), 0.211, 0.079, 0.121, 0.043, 0.36, 1.19, 0.21),
        ((64, 32768, 1024, 1), 3.051, 1.014, 0.755, 0.231, 0.28, 1.20, 0.21),
        ((64, 32768, 1024, 16), 3.044, 0.971, 0.724, 0.227, 0.28, 1.16, 0.20),
        ((128, 1024, 1024, 16), 0.381, 0.201, 0.617, 0.172, 0.46, 1.89, 0.32),
        ((128, 8192, 256, 1), 1.526, 0.525, 0.329, 0.135, 0.47, 1.69, 0.33),
        ((128, 8192, 256, 16), 1.521, 0.492, 0.323, 0.133, 0.46, 1.84, 0.31),
        ((128, 8192, 256, 64), 1.515, 0.473, 0.320, 0.133, 0.51, 2.09, 0.34),
        ((256, 512, 512, 16), 0.370, 0.197, 0.709, 0.174, 0.76, 2.75, 0.58),
        ((256, 2048, 256, 16), 0.811, 0.305, 0.436, 0.141, 0.79, 3.12, 0.59),
    )
)

#: With our kernel as the cascade.
H200_ROWS = tuple(Row(Load(*row.load), row.plain, row.tensor, row.ours, row.plan_flat, row.plan_ours) for row in _H200)
#: With FlashInfer's as the cascade.
H200_FLASHINFER_ROWS = tuple(
    Row(Load(*row.load), row.plain, row.tensor, row.theirs, row.plan_flat, row.plan_theirs) for row in _H200
)

#: The largest error of a kernel's time, as a share, when a load is predicted by constants fitted without any row of it;
#: tests/attention/test_cost.py holds it.
WORST_HELD_OUT = 0.18

CONSTANTS: dict[str, Constants] = {
    "h200": fit("h200", "FlashInfer 0.6.15.post1 and kvpolicy's cascade on an H200", _H200_HEADS, H200_ROWS)
}
FLASHINFER_CASCADE: dict[str, Constants] = {
    "h200": fit("h200", "FlashInfer 0.6.15.post1 on an H200", _H200_HEADS, H200_FLASHINFER_ROWS)
}
