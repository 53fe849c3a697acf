"""Runs where Triton is: decode attention over shared prefixes in Triton's interpreter, against float64 and the twin."""

from __future__ import annotations

import json
import random

import torch

from kvpolicy.kernels import cascade_triton
from kvpolicy.kernels.cascade_triton import CascadeShape, PagedPart, cascade_attention, plan_cascade

#: Cut so small that a part has several tiles, stretches, and a last block that is not whole.
SMALL = CascadeShape(block_m=16, block_n=16, own_block_n=16)
# page tokens, head_dim, KV heads, q heads a KV head, cap
CASES = [(1, 64, 2, 3, 0.0), (16, 64, 1, 4, 0.0), (16, 128, 2, 8, 0.0), (4, 64, 2, 1, 5.0)]
# Requests 0-6 share a prefix, some of them a longer one; 7 and 8 share another; 9 is alone.
PREFIXES: list[tuple[int, list[int]]] = [(130, [0, 1, 2, 3, 4, 5, 6]), (48, [2, 4, 5]), (64, [7, 8])]
OWN = [1, 17, 0, 5, 33, 0, 80, 0, 3, 40]


def check(
    page_tokens: int, head_dim: int, heads: int, queries: int, cap: float, rng: random.Random, lost: int = 0
) -> float:
    """The kernel's error relative to float64; the plan lacks the first `lost` parts."""
    lengths = [(-(-tokens // page_tokens) * page_tokens, who) for tokens, who in PREFIXES]
    lengths += [(tokens, [request]) for request, tokens in enumerate(OWN)]
    count = sum(-(-tokens // page_tokens) for tokens, _ in lengths)
    pages = torch.randperm(2 * count)[:count].to(rng.choice([torch.int32, torch.int64]))
    pool = torch.full((2, 2 * count * page_tokens, heads, head_dim), float("nan"), dtype=torch.float16)
    parts, slots, at = [], [], 0
    for tokens, who in lengths:
        used = -(-tokens // page_tokens)
        held = (pages[at : at + used, None].long() * page_tokens + torch.arange(page_tokens)).flatten()[:tokens]
        pool[:, held] = torch.randn((2, tokens, heads, head_dim)).half()
        parts.append(PagedPart(at, tokens, who))
        slots.append(held)
        at += used
    q = (2 * torch.randn((len(OWN), 2 * heads * queries, head_dim)).half())[:, ::2]  # strided, as a slice of qkv is
    plan = plan_cascade(parts[lost:], len(OWN), heads * queries, heads, "cpu", SMALL)
    assert max(one.splits for one in plan.launches) > 1
    out = torch.full(q.shape, float("nan"), dtype=torch.float16)
    cascade_attention(q, pool[0], pool[1], pages, page_tokens, plan, head_dim**-0.5, cap, out=out)
    wanted = torch.zeros(q.shape, dtype=torch.float64)
    for request in range(len(OWN)):
        mine = torch.cat([held for part, held in zip(parts, slots, strict=True) if request in part.requests])
        k, v = pool[:, mine].double().transpose(1, 2)
        scores = q[request].double().view(heads, queries, head_dim) @ k.transpose(1, 2) * head_dim**-0.5
        scores = cap * torch.tanh(scores / cap) if cap else scores
        wanted[request] = (torch.softmax(scores, -1) @ v).view(-1, head_dim)
    return float((out.double() - wanted).norm() / wanted.norm())


def main() -> None:
    assert cascade_triton.available()
    rng = random.Random(torch.seed() % 2**31)
    torch.manual_seed(torch.initial_seed())
    told = {"error": [check(*case, rng) for case in CASES], "lost": check(*CASES[0], rng, lost=1)}
    print("TOLD " + json.dumps({"seed": torch.initial_seed(), **told}))


main()
