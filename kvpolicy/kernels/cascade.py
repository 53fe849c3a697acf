"""Decode attention with shared parts read once a group, and merged by log-sum-exp: the reference in plain PyTorch.

What a GPU kernel of this must compute, in the precision it is given: softmax over the union of several parts equals
the parts' outputs weighted by their exp(log-sum-exp) (FlashAttention's online softmax; FlashInfer's cascade, Ye et al.
2024, use the same identity across levels). Parts may come in any order and any number; an empty one weighs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

__all__ = ["Part", "State", "attend", "cascade_attention", "merge"]


@dataclass(frozen=True, slots=True)
class State:
    """Attention over some of the keys: ``out`` [requests, query heads, v dim], ``lse`` [requests, query heads]."""

    out: torch.Tensor
    lse: torch.Tensor  # natural logarithm of the sum of exp(scores); -inf over no keys, where `out` is 0


@dataclass(frozen=True, slots=True)
class Part:
    """Slots that all of ``requests`` read: a group's shared segment, or one request's own tokens."""

    requests: Sequence[int]
    slots: torch.Tensor  # int64 [tokens], into the pool


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> State:
    """Every query over all of ``k``.

    ``q`` [requests, query heads, dim], ``k`` [tokens, KV heads, dim], ``v`` [tokens, KV heads, v dim]; query heads are
    a multiple of KV heads, and a KV head serves as many neighbours. Computed in ``q``'s dtype, at least float32.
    """
    requests, query_heads, dim = q.shape
    tokens, kv_heads, _ = k.shape
    dtype = torch.promote_types(q.dtype, torch.float32)
    if tokens == 0:
        out = torch.zeros(requests, query_heads, v.shape[-1], dtype=dtype, device=q.device)
        return State(out, torch.full((requests, query_heads), -math.inf, dtype=dtype, device=q.device))
    group = query_heads // kv_heads
    # One product for all requests of the part: what a kernel gives to tensor cores.
    rows = q.to(dtype).view(requests, kv_heads, group, dim).transpose(0, 1).reshape(kv_heads, requests * group, dim)
    scores = rows @ k.to(dtype).permute(1, 2, 0) * scale
    lse = torch.logsumexp(scores, dim=-1)
    out = torch.exp(scores - lse.unsqueeze(-1)) @ v.to(dtype).transpose(0, 1)
    out = out.view(kv_heads, requests, group, -1).transpose(0, 1).reshape(requests, query_heads, -1)
    return State(out, lse.view(kv_heads, requests, group).transpose(0, 1).reshape(requests, query_heads))


def merge(a: State, b: State) -> State:
    """Attention over the keys of both; the sides share no key."""
    top = torch.maximum(a.lse, b.lse)
    top = torch.where(torch.isinf(top), torch.zeros_like(top), top)  # both over nothing: 0, not nan
    weight_a, weight_b = torch.exp(a.lse - top), torch.exp(b.lse - top)
    total = weight_a + weight_b
    share = torch.where(total > 0, total, torch.ones_like(total))
    out = (a.out * weight_a.unsqueeze(-1) + b.out * weight_b.unsqueeze(-1)) / share.unsqueeze(-1)
    return State(out, torch.log(total) + top)


def cascade_attention(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    parts: Sequence[Part],
    scale: float,
    out: torch.Tensor,
) -> torch.Tensor:
    """Attention of every request over the union of its parts, written to ``out``; the log-sum-exp is returned.

    ``q`` and ``out`` [requests, query heads, dim], pools [slots, KV heads, dim]. A request's parts must not overlap.
    Every element of ``out`` is written, whatever it held; no slot outside the parts is read. A request without any
    token gets 0, and -inf.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    whole = State(
        torch.zeros(out.shape, dtype=dtype, device=q.device),
        torch.full(q.shape[:2], -math.inf, dtype=dtype, device=q.device),
    )
    for part in parts:
        rows = torch.as_tensor(list(part.requests), dtype=torch.int64, device=q.device)
        read = attend(q[rows], k_pool[part.slots], v_pool[part.slots], scale)
        both = merge(State(whole.out[rows], whole.lse[rows]), read)
        whole.out[rows], whole.lse[rows] = both.out, both.lse
    out.copy_(whole.out)
    return whole.lse
