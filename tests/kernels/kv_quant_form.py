"""Runs where Triton is: int8 and int4 KV on CPU tensors in Triton's interpreter, against PyTorch and float64."""

from __future__ import annotations

import json
from itertools import accumulate, pairwise

import torch

from kvpolicy.kernels import kv_decode_triton, kv_quant, kv_quant_triton
from kvpolicy.kernels.kv_quant import INT4, INT8, Encoding, Layer

LENGTHS = [0, 1, 5, 300, 64]
# head_dim, KV heads, q heads a KV head
SHAPES = [(64, 3, 3), (128, 1, 8), (128, 2, 1), (64, 2, 4)]
ENCODINGS = [INT8, INT4, Encoding("int8 in groups", 8, 32), Encoding("int4 a head", 4, 0)]


def poisoned(encoding: Encoding, slots: int, heads: int, head_dim: int) -> Layer:
    layer = kv_quant.empty(encoding, slots, heads, head_dim, "cpu")
    layer.k_codes.fill_(77)
    layer.v_codes.fill_(3)
    layer.scales.fill_(float("nan"))
    return layer


def same_bytes(one: Layer, other: Layer) -> bool:
    pairs = zip(one[1:], other[1:], strict=True)
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cap: float) -> torch.Tensor:
    """Attention of one request in float64."""
    keys, values = (x.double().transpose(0, 1) for x in (k, v))
    scores = q.double().view(keys.shape[0], -1, keys.shape[2]) @ keys.transpose(1, 2) * q.shape[1] ** -0.5
    scores = cap * torch.tanh(scores / cap) if cap else scores
    return (torch.softmax(scores, dim=-1) @ values).view(q.shape)


def check(encoding: Encoding, head_dim: int, heads: int, queries: int, cap: float = 0.0) -> float:
    """The kernel's error, relative to float64 on what is stored; the larger of it and the twin's."""
    tokens = sum(LENGTHS)
    loc = torch.randperm(2 * tokens - 1)[:tokens] + 1
    qkv = torch.randn((tokens, heads * (queries + 2), head_dim)).half()  # K and V are strided views of it
    k, v = qkv[:, heads * queries : heads * (queries + 1)], qkv[:, heads * (queries + 1) :]
    k[0] = 0
    v[1] *= 1e-6  # an fp16 scale would be a subnormal
    mine, twin = (poisoned(encoding, 2 * tokens, heads, head_dim) for _ in range(2))
    kv_quant_triton.store(mine, loc, k, v)
    kv_quant.store_torch(twin, loc, k, v)
    assert same_bytes(mine, twin), "codes, scales, or a slot that was not asked for"
    stored = kv_quant.load_torch(mine, loc, torch.float32)
    for a, b in zip(kv_quant_triton.load(mine, loc, torch.float32), stored, strict=True):
        assert torch.equal(a, b)
    q = 2 * torch.randn((len(LENGTHS), heads * queries, head_dim)).half()
    indptr = torch.tensor([0, *accumulate(LENGTHS)], dtype=torch.int32)
    wanted = torch.zeros(q.shape, dtype=torch.float64)
    for request, (start, end) in enumerate(pairwise(indptr)):
        if start < end:
            wanted[request] = exact(q[request], stored[0][start:end], stored[1][start:end], cap)
    worst = 0.0
    for attend in (kv_decode_triton.decode_attention, kv_quant.decode_attention_torch):
        out = attend(q, mine, indptr, loc.to(torch.int32) if cap else loc, head_dim**-0.5, cap)
        assert out.dtype == q.dtype
        assert not out[0].any(), "a request without tokens"
        worst = max(worst, float((out.double() - wanted).norm() / wanted.norm()))
    return worst


def main() -> None:
    assert kv_quant_triton.available()
    torch.manual_seed(torch.seed() % 2**31)
    worst = {encoding.name: max(check(encoding, *shape) for shape in SHAPES) for encoding in ENCODINGS}
    worst["capped"] = check(INT8, 64, 2, 4, cap=5.0)
    print("TOLD " + json.dumps({"seed": torch.initial_seed(), "error": worst}))


main()
