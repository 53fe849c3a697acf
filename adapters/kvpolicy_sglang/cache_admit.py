"""Around the engine's caching of requests: whose nodes are being made, and `admit: never`.

A request that is not admitted leaves nothing behind. It may use what is cached already (and keeps its lock on it), but
its own tokens stay in its request row, exactly as they do with the prefix cache off, and go back to the allocator when
it ends.
"""

from __future__ import annotations

import functools
from typing import Any

from .cache_metadata import Metadata

__all__ = ["attach"]


def attach(cache: Any, metadata: Metadata) -> None:
    """Wrap the caching methods of this instance, whichever this version has."""
    if hasattr(cache, "checkpoint"):  # 0.5.23
        _around_checkpoint(cache, metadata)
    else:
        _around_finished(cache, metadata)
        _around_unfinished(cache, metadata)


def _around_checkpoint(cache: Any, metadata: Metadata) -> None:
    stock = cache.checkpoint

    @functools.wraps(stock)
    def checkpoint(req: Any, **kwargs: Any) -> None:
        is_admitted = metadata.enter(req)
        try:
            # The caller resumes from the row, and frees all of it past the protected prefix at the end.
            if is_admitted:
                stock(req, **kwargs)
        finally:
            metadata.leave()

    cache.checkpoint = checkpoint


def _around_finished(cache: Any, metadata: Metadata) -> None:
    stock = cache.cache_finished_req

    @functools.wraps(stock)
    def cache_finished_req(req: Any, is_insert: bool = True, **kwargs: Any) -> None:
        is_admitted = metadata.enter(req)
        try:
            stock(req, is_insert=is_insert and is_admitted, **kwargs)
        finally:
            metadata.leave()

    cache.cache_finished_req = cache_finished_req


def _around_unfinished(cache: Any, metadata: Metadata) -> None:
    stock = cache.cache_unfinished_req

    @functools.wraps(stock)
    def cache_unfinished_req(req: Any, *args: Any, **kwargs: Any) -> None:
        is_admitted = metadata.enter(req)
        try:
            if is_admitted or not _kept_in_row(cache, metadata, req):
                stock(req, *args, **kwargs)
        finally:
            metadata.leave()

    cache.cache_unfinished_req = cache_unfinished_req


def _kept_in_row(cache: Any, metadata: Metadata, req: Any) -> bool:
    """The next chunk, or decoding, goes on from the request's own row; lock and protected prefix stay as they were.

    False: that failed and nothing changed.
    """
    import torch

    try:
        row = req.kv.req_pool_idx if hasattr(getattr(req, "kv", None), "req_pool_idx") else req.req_pool_idx
        indices = cache.req_to_token_pool.req_to_token[row, : len(req.get_fill_ids())]
        req.prefix_indices = indices.to(dtype=torch.int64, copy=True)
    except Exception:
        metadata.guard.fault("admit", "the policy failed to keep a request out of the cache")
        return False
    return True
