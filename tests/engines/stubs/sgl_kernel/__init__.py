"""Stand-in for SGLang's kernel package on a CPU without AMX: one real operator, and a loud refusal for all others."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

__version__ = "0+cpu"


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write each request's new slots into its row of the request table.

    Row `req_pool_indices[i]` of `req_to_token` gets, at columns [start_offset[i], end_offset[i]), the next slots of
    `out_cache_loc`, whose slots lie request after request. `pool_len` (the table's row length) bounds the columns.
    """
    slots = out_cache_loc.to(req_to_token.dtype)
    widths = (end_offset - start_offset).tolist()
    for row, start, chunk in zip(
        req_pool_indices.tolist(), start_offset.tolist(), torch.split(slots[: sum(widths)], widths), strict=True
    ):
        assert start + chunk.numel() <= pool_len, "a request outgrew its row of the request table"
        req_to_token[row, start : start + chunk.numel()] = chunk


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} needs a GPU build of SGLang; this is the CPU stand-in")

    return refuse
