"""int8 and int4 KV on a GPU: are the kernels right, and what do they cost beside bf16.

    python benchmarks/kv_quant.py                 # checks, then store and decode attention
    python benchmarks/kv_quant.py --tune          # how attention is best cut up, on this GPU, first

`check`   attention and the stored numbers against float64, on fresh random numbers, scattered slots, lengths from 0
`store`   K and V of some tokens into the pool, 8 KV heads of 128, a layer's share of a CUDA graph over several layers
`decode`  a step of decode attention, 32 q heads on 8 KV heads of 128, scattered slots

Sides run in turn after the L2 cache was overwritten, figures are medians. bf16 is the same attention kernel on bf16 K
and V (`bits` 16) and, where SGLang can be imported, SGLang's own store and attention.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from gpu_clock import Clock, Side, gpu

from kvpolicy.kernels import kv_decode_triton, kv_quant, kv_quant_triton
from kvpolicy.kernels.kv_decode_triton import DecodeShape
from kvpolicy.kernels.kv_quant import INT4, INT8, Encoding, Layer
from kvpolicy.kernels.kv_quant_triton import StoreShape

HEADS, QUERIES, DIM = 8, 4, 128
STORE_TOKENS = (1, 32, 128, 8192, 32768)
DECODE = ((64, 8192), (64, 32768), (8, 32768), (1, 8192), (1, 32768), (64, 1024))  # requests, tokens each
SHAPES = tuple(
    DecodeShape(block_n=n, num_warps=warps, num_stages=stages, programs_per_sm=programs, scale_v=scale_v, packed=packed)
    for packed in (False, True)
    for scale_v in (False, True)
    for n, warps, stages, programs in (
        (64, 2, 3, 16), (64, 2, 4, 16), (64, 2, 3, 8), (32, 2, 3, 16), (32, 2, 4, 16), (32, 4, 4, 16), (64, 4, 3, 8),
        (64, 4, 4, 8), (128, 4, 2, 8), (128, 4, 3, 8), (128, 8, 3, 8),
    )
)  # fmt: skip
STORE_SHAPES = tuple(StoreShape(values, warps) for values in (1024, 2048, 4096, 8192) for warps in (4, 8))
ENCODINGS: tuple[Encoding, ...] = (INT8, INT4)


def shapes_of(bits: int) -> list[DecodeShape]:
    """Those that differ for it."""
    return [shape for shape in SHAPES if (bits == 8 or not shape.scale_v) and (bits == 4 or not shape.packed)]


Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # slots, K, V


# -- what runs --


def filled(encoding: Encoding, slots: int, heads: int, dim: int, device: str) -> Layer:
    """A pool of random K and V; filled piece by piece, since the bf16 numbers are larger."""
    layer = kv_quant.empty(encoding, slots, heads, dim, device)
    for start in range(0, slots, 65536):
        loc = torch.arange(start, min(start + 65536, slots), device=device)
        k, v = torch.randn((2, loc.numel(), heads, dim), device=device, dtype=torch.bfloat16)
        kv_quant.store(layer, loc, k, v)
    return layer


def attend(q: torch.Tensor, layer: Layer, indptr: torch.Tensor, slots: torch.Tensor, shape: DecodeShape) -> Side:
    args = (q, layer.k_codes, layer.v_codes, layer.scales.view(torch.uint32), layer.encoding.bits,
            layer.scales.shape[2], indptr, slots, DIM**-0.5, 0.0, shape)  # fmt: skip
    return lambda: kv_decode_triton.launch_decode(*args)


def attend_plain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, indptr: torch.Tensor, slots: torch.Tensor, shape: DecodeShape
) -> Side:
    return lambda: kv_decode_triton.launch_decode(q, k, v, k, 16, 1, indptr, slots, DIM**-0.5, 0.0, shape)


def attend_sglang(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, indptr: torch.Tensor, slots: torch.Tensor, splits: int
) -> Side | None:
    """SGLang's Triton decode attention with so many stretches a request; None where it cannot be imported."""
    try:
        from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd
    except ImportError:
        try:
            from sglang.srt.layers.attention.triton_ops.decode_attention import decode_attention_fwd
        except ImportError:
            return None
    requests, q_heads, dim = q.shape
    logits = torch.empty((requests, q_heads, splits, dim), dtype=torch.float32, device=q.device)
    lse = torch.empty((requests, q_heads, splits), dtype=torch.float32, device=q.device)
    counts = torch.full((requests,), splits, dtype=torch.int32, device=q.device)
    out = torch.empty_like(q)
    return lambda: decode_attention_fwd(
        q, k, v, out, indptr, slots, logits, lse, counts, splits, dim**-0.5, 1.0, 1.0
    )  # fmt: skip


def sglang_store() -> Callable[..., Any] | None:
    """SGLang's store kernel for K and V rows of one width; None where it cannot be imported or built."""
    try:
        from sglang.kernels.ops.kvcache.kvcache import can_use_store_cache, store_cache

        width = HEADS * DIM
        if not can_use_store_cache(width * 2, width * 2):
            return None
        rows = torch.zeros((4, 1, width), dtype=torch.bfloat16, device="cuda")
        loc = torch.zeros(1, dtype=torch.int64, device="cuda")
        store_cache(*rows, loc, row_bytes=width * 2, v_row_bytes=width * 2, size_limit=1)
    except Exception as error:  # it compiles at its first call, and may lack a compiler
        print(f"SGLang's store is not here: {type(error).__name__}: {str(error)[:200]}")
        return None
    return store_cache


def compile_one(task: tuple[int, DecodeShape | StoreShape, int, int]) -> str:
    """In a process of its own: fills Triton's cache with one kernel."""
    bits, shape, dim, queries = task
    try:
        encoding = INT4 if bits == 4 else INT8
        layer = filled(encoding, 64, HEADS, dim, "cuda")
        loc = torch.arange(16, device="cuda")
        if isinstance(shape, StoreShape):
            k = torch.randn((16, HEADS, dim), device="cuda", dtype=torch.bfloat16)
            kv_quant_triton.store(layer, loc, k, k, shape)
            return ""
        q = torch.randn((1, HEADS * queries, dim), device="cuda", dtype=torch.bfloat16)
        indptr = torch.tensor([0, 16], device="cuda", dtype=torch.int32)
        if bits == 16:
            k = torch.randn((64, HEADS, dim), device="cuda", dtype=torch.bfloat16)
            attend_plain(q, k, k, indptr, loc, shape)()
        else:
            attend(q, layer, indptr, loc, shape)()
        torch.cuda.synchronize()
    except Exception as error:
        return f"{bits} bits, {shape}: {type(error).__name__}: {str(error)[:300]}"
    return ""


# -- right --


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lens: list[int]) -> torch.Tensor:
    """Attention in float64; k and v [tokens, heads, dim] request after request."""
    out, start = torch.zeros(q.shape, dtype=torch.float64, device=q.device), 0
    for request, tokens in enumerate(lens):
        if tokens:
            keys, values = (x[start : start + tokens].double().transpose(0, 1) for x in (k, v))
            grouped = q[request].double().view(keys.shape[0], -1, keys.shape[2])
            weights = torch.softmax(grouped @ keys.transpose(1, 2) * q.shape[2] ** -0.5, dim=-1)
            out[request] = (weights @ values).view(q.shape[1:])
        start += tokens
    return out


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.double() - wanted).norm() / wanted.norm())


def check(device: str) -> None:
    """AssertionError where a kernel is wrong."""
    print(
        "check: relative error (norm) of attention; 'stored': against float64 on what is stored, 'all': on the inputs"
    )
    dtype = torch.bfloat16 if device == "cuda" else torch.float16  # the interpreter knows no bf16 arithmetic
    lens = [0, 1, 5, 4097 if device == "cuda" else 300, 700, 64]
    for encoding in ENCODINGS:
        for dim, heads, queries in ((128, 8, 4), (128, 2, 8), (128, 3, 1), (64, 3, 3)):
            tokens = sum(lens)
            layer = kv_quant.empty(encoding, 2 * tokens, heads, dim, device)
            for tensor, poison in ((layer.k_codes, 77), (layer.v_codes, 3), (layer.scales, float("nan"))):
                tensor.fill_(poison)
            loc = torch.randperm(2 * tokens - 1, device=device)[:tokens] + 1
            qkv = torch.randn((tokens, heads * (queries + 2), dim), device=device).to(dtype)
            k, v = qkv[:, heads * queries : heads * (queries + 1)], qkv[:, heads * (queries + 1) :]
            k[1] = 0
            q = 2 * torch.randn((len(lens), heads * queries, dim), device=device).to(dtype)
            indptr = torch.tensor([0, *torch.tensor(lens).cumsum(0).tolist()], device=device, dtype=torch.int32)
            kv_quant_triton.store(layer, loc, k, v)
            stored = kv_quant.load_torch(layer, loc, torch.float32)
            for side, (given, found) in enumerate(zip((k, v), stored, strict=True)):
                scales = layer.scales[loc, ..., side].float()
                bound = (scales * 0.5).repeat_interleave(dim // scales.shape[2], dim=2) * (1 + 1e-5)
                assert bool(((given.float() - found).abs() <= bound).all()), (
                    "a stored number is off by over half a step"
                )
            for mine, found in zip(kv_quant_triton.load(layer, loc, dtype), stored, strict=True):
                assert torch.equal(mine, found.to(dtype)), "load differs from its twin"
            untouched = torch.ones(2 * tokens, dtype=torch.bool, device=device)
            untouched[loc] = False
            assert bool((layer.k_codes[untouched] == 77).all() and layer.scales[untouched].isnan().all())
            out = kv_decode_triton.decode_attention(q, layer, indptr, loc, dim**-0.5)
            twin_error = relative(
                kv_quant.decode_attention_torch(q, layer, indptr, loc, dim**-0.5), reference(q, *stored, lens)
            )
            error = relative(out, reference(q, *stored, lens))
            whole = relative(out, reference(q, k, v, lens))
            print(f"  {encoding.name} dim {dim:3} KV heads {heads} q heads {heads * queries:2}: "
                  f"stored {error:.5f} (twin {twin_error:.5f}), all {whole:.5f}")  # fmt: skip
            assert not out[0].any(), "a request without tokens has no zeros"
            assert error < 0.006, "attention is wrong"
            assert whole < (0.02 if encoding.bits == 8 else 0.25), "the encoding is wrong"


# -- how fast --


def store_plain(rows: list[Rows], pools: list[torch.Tensor]) -> None:
    for (loc, k, v), pool in zip(rows, pools, strict=True):
        pool[0][loc] = k
        pool[1][loc] = v


def store_as_sglang(theirs: Callable[..., Any], rows: list[Rows], pools: list[torch.Tensor]) -> None:
    width = HEADS * DIM
    for (loc, k, v), pool in zip(rows, pools, strict=True):
        flat = (x.view(-1, width) for x in (k, v, *pool))
        theirs(*flat, loc, row_bytes=width * 2, v_row_bytes=width * 2, size_limit=pool.shape[1])


def store_quantized(rows: list[Rows], layers: list[Layer], shape: StoreShape) -> None:
    for (loc, k, v), layer in zip(rows, layers, strict=True):
        kv_quant_triton.store(layer, loc, k, v, shape)


def copy_all(pairs: list[torch.Tensor]) -> None:
    for pair in pairs:
        pair[1].copy_(pair[0])


def measure_store(clock: Clock, rounds: int, shapes: dict[int, StoreShape]) -> None:
    theirs = sglang_store()
    half = 1 << 30
    big = [torch.empty((2, half), dtype=torch.uint8, device="cuda")]
    peak = 2 * half / clock.medians_us({"copy": partial(copy_all, big)}, rounds)["copy"] / 1e3
    big.clear()
    print(f"\nstore: us a layer; a copy of 1 GiB runs at {peak:.0f} GB/s, 'same copy' moves as many bytes as the side")
    print("tokens       side      us   GB/s  of 1 GiB copy  of same copy  to k[loc] = k  to SGLang's store")
    for tokens in STORE_TOKENS:
        count = 4 if tokens > 10000 else 8 if tokens > 1000 else 32
        slots = max(2 * tokens, 4096)
        rows = []
        for _ in range(count):
            k, v = torch.randn((2, tokens, HEADS, DIM), device="cuda").to(torch.bfloat16)
            rows.append((torch.randperm(slots, device="cuda")[:tokens], k, v))
        pools = [torch.empty((2, slots, HEADS, DIM), device="cuda", dtype=torch.bfloat16) for _ in range(count)]
        sides: dict[str, Side] = {"bf16": partial(store_plain, rows, pools)}
        if theirs is not None:
            sides["sglang"] = partial(store_as_sglang, theirs, rows, pools)
        moved = dict.fromkeys(sides, tokens * HEADS * DIM * 2 * 4)
        for encoding in ENCODINGS:
            layers = [kv_quant.empty(encoding, slots, HEADS, DIM, "cuda") for _ in range(count)]
            bytes_moved = tokens * HEADS * 2 * (DIM * 2 + encoding.head_bytes(DIM))
            pairs = [torch.empty((2, bytes_moved // 2), dtype=torch.uint8, device="cuda") for _ in range(count)]
            sides[encoding.name] = partial(store_quantized, rows, layers, shapes[encoding.bits])
            sides[f"copy {encoding.name}"] = partial(copy_all, pairs)
            moved |= {encoding.name: bytes_moved, f"copy {encoding.name}": bytes_moved}
        us = {name: value / count for name, value in clock.medians_us(sides, rounds).items()}
        for name, value in us.items():
            rate = moved[name] / value / 1e3
            line = f"{tokens:6} {name:>10} {value:7.2f} {rate:6.0f} {rate / peak:14.2f}"
            if f"copy {name}" in us:
                line += f" {us[f'copy {name}'] / value:13.2f} {value / us['bf16']:14.2f}"
                line += f" {value / us['sglang']:18.2f}" if "sglang" in us else ""
            print(line, flush=True)


def measure_decode(clock: Clock, rounds: int, shapes: dict[int, DecodeShape], cases: Any = DECODE) -> None:
    print("\ndecode: us a step of one layer; GB/s of K, V and scales")
    print("requests  tokens         side       us   GB/s  to bf16  to SGLang's")
    for requests, tokens in cases:
        total = requests * tokens
        slots = torch.randperm(total, device="cuda")
        indptr = torch.arange(0, total + 1, tokens, device="cuda", dtype=torch.int32)
        q = torch.randn((requests, HEADS * QUERIES, DIM), device="cuda").to(torch.bfloat16)
        k, v = (torch.empty((total, HEADS, DIM), device="cuda", dtype=torch.bfloat16).normal_() for _ in range(2))
        sides: dict[str, Side] = {"bf16": attend_plain(q, k, v, indptr, slots, shapes[16])}
        for splits in (4, 8, 16) if requests > 1 else (8, 16, 64):
            theirs = attend_sglang(q, k, v, indptr, slots, splits)
            if theirs is not None:
                sides[f"sglang/{splits}"] = theirs
        size = dict.fromkeys(sides, total * HEADS * DIM * 4)
        for encoding in ENCODINGS:
            layer = filled(encoding, total, HEADS, DIM, "cuda")
            sides[encoding.name] = attend(q, layer, indptr, slots, shapes[encoding.bits])
            size[encoding.name] = total * HEADS * 2 * encoding.head_bytes(DIM)
        us = clock.medians_us(sides, rounds)
        theirs_us = min((value for name, value in us.items() if name.startswith("sglang")), default=float("nan"))
        for name, value in us.items():
            print(f"{requests:8} {tokens:7} {name:>12} {value:8.1f} {size[name] / value / 1e3:6.0f} "
                  f"{value / us['bf16']:8.2f} {value / theirs_us:8.2f}", flush=True)  # fmt: skip
        del sides, k, v
        torch.cuda.empty_cache()


def tune(clock: Clock, rounds: int) -> tuple[dict[int, DecodeShape], dict[int, StoreShape]]:
    """The fastest of `SHAPES` for 64 requests of 8,192 tokens, and of `STORE_SHAPES` for 8,192 tokens."""
    requests, tokens = 64, 8192
    total = requests * tokens
    slots = torch.randperm(total, device="cuda")
    indptr = torch.arange(0, total + 1, tokens, device="cuda", dtype=torch.int32)
    q = torch.randn((requests, HEADS * QUERIES, DIM), device="cuda").to(torch.bfloat16)
    best: dict[int, DecodeShape] = {}
    best_store: dict[int, StoreShape] = {}
    print("\ntune: us; block_n split_tokens programs_per_sm num_warps num_stages scale_v")
    for bits in (16, 8, 4):
        if bits == 16:
            k, v = (torch.empty((total, HEADS, DIM), device="cuda", dtype=torch.bfloat16).normal_() for _ in range(2))
            sides = {shape: attend_plain(q, k, v, indptr, slots, shape) for shape in shapes_of(bits)}
        else:
            layer = filled(INT4 if bits == 4 else INT8, total, HEADS, DIM, "cuda")
            sides = {shape: attend(q, layer, indptr, slots, shape) for shape in shapes_of(bits)}
        plain = sides[DecodeShape()]().double()
        for shape, side in sides.items():
            assert relative(side(), plain) < 0.01, f"{tuple(shape)} computes something else"
        us = clock.medians_us({str(tuple(shape)): side for shape, side in sides.items()}, rounds)
        found = sorted((us[str(tuple(shape))], shape) for shape in shapes_of(bits))
        best[bits] = found[0][1]
        print(f"{bits:2} bits: " + ", ".join(f"{tuple(shape)} {value:.0f}" for value, shape in found), flush=True)
    count = 8192
    loc = torch.randperm(2 * count, device="cuda")[:count]
    k, v = torch.randn((2, count, HEADS, DIM), device="cuda").to(torch.bfloat16)
    for encoding in ENCODINGS:
        layer = kv_quant.empty(encoding, 2 * count, HEADS, DIM, "cuda")
        us = clock.medians_us(
            {str(tuple(s)): partial(store_quantized, [(loc, k, v)], [layer], s) for s in STORE_SHAPES},
            rounds,
        )
        ordered = sorted((us[str(tuple(shape))], shape) for shape in STORE_SHAPES)
        best_store[encoding.bits] = ordered[0][1]
        print(
            f"store {encoding.name} (values, warps): " + ", ".join(f"{tuple(s)} {t:.1f}" for t, s in ordered),
            flush=True,
        )
    return best, best_store


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: the check, in the interpreter")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--processes", type=int, default=12, help="that compile")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        check("cpu")
        return
    print(gpu())
    start_s = time.perf_counter()
    shipped, plain_store = {16: DecodeShape(), **kv_decode_triton.SHAPES}, StoreShape()
    tasks: list[tuple[int, DecodeShape | StoreShape, int, int]] = []
    for bits in (16, 8, 4):
        for shape in shapes_of(bits) if arguments.tune else (shipped[bits],):
            tasks.append((bits, shape, DIM, QUERIES))
        if bits != 16:
            tasks += [(bits, shape, DIM, QUERIES) for shape in (STORE_SHAPES if arguments.tune else (plain_store,))]
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        for failed in filter(None, pool.map(compile_one, tasks)):
            print("does not compile: " + failed)
    print(f"{len(tasks)} kernels compiled in {time.perf_counter() - start_s:.0f} s", flush=True)
    check("cuda")
    print(f"[{time.perf_counter() - start_s:.0f} s]", flush=True)
    clock = Clock()
    shapes, store_shapes = shipped, dict.fromkeys((8, 4), plain_store)
    if arguments.tune:
        shapes, store_shapes = tune(clock, 9)
        print(f"[{time.perf_counter() - start_s:.0f} s]", flush=True)
    measure_decode(clock, arguments.rounds, shapes)
    print(f"[{time.perf_counter() - start_s:.0f} s]", flush=True)
    measure_store(clock, arguments.rounds, store_shapes)
    print(f"[{time.perf_counter() - start_s:.0f} s]", flush=True)


if __name__ == "__main__":
    main()
