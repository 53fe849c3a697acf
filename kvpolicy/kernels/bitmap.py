"""The lowest free ids of a byte map on any device, without waiting for it; :mod:`.bitmap_triton` is the GPU's form.

`is_free` is bool[units], padded to whole blocks; `counts`, int32[blocks], holds how many of each block are free. How
many ids are wanted is a host integer, and so are all shapes.
"""

from __future__ import annotations

import torch

from . import bitmap_triton

__all__ = ["BLOCK", "put_back", "take_lowest"]

BLOCK = bitmap_triton.BLOCK


def take_lowest(is_free: torch.Tensor, counts: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` lowest free ids, ascending, int64[count]; they are free no more. That many are free."""
    if is_free.is_cuda and bitmap_triton.available():
        return bitmap_triton.take_lowest(is_free, counts, count)
    return take_lowest_torch(is_free, counts, count)


def put_back(is_free: torch.Tensor, counts: torch.Tensor, ids: torch.Tensor) -> None:
    """`ids`, int64[k], none of them free, are free again."""
    is_free.index_fill_(0, ids, True)
    counts.index_add_(0, ids // BLOCK, torch.ones_like(ids, dtype=counts.dtype))


def take_lowest_torch(is_free: torch.Tensor, counts: torch.Tensor, count: int) -> torch.Tensor:
    """:func:`take_lowest` in PyTorch: passes over the whole map, but of fixed shape."""
    rank = is_free.cumsum(0)
    chosen = is_free & (rank <= count)
    out = torch.zeros(count + 1, dtype=torch.int64, device=is_free.device)  # the last one takes what is not chosen
    ids = torch.arange(is_free.numel(), device=is_free.device)
    out.scatter_(0, torch.where(chosen, rank - 1, count), ids)
    is_free.logical_and_(~chosen)
    counts.sub_(chosen.view(-1, BLOCK).sum(1, dtype=counts.dtype))
    return out[:count]
