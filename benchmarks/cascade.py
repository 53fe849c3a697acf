"""Decode attention over a shared prefix on a GPU: our Triton cascade beside FlashInfer's kernels, in the same run.

    python benchmarks/cascade.py            # check against float64, then the table
    python benchmarks/cascade.py --tune     # first: how the work is best cut up, on this GPU
    python benchmarks/cascade.py --device cpu   # the check alone, in Triton's interpreter

One layer, bf16, 32 q heads on 8 KV heads of 128. B requests share S tokens and have U of their own, in shuffled pages.
`plain`, `tc`: FlashInfer's batch decode without and with tensor cores; `theirs`: its two-level cascade; `floor`: every
byte of K and V once at 4.0 TB/s. Milliseconds, medians; the L2 cache is overwritten before each run. Plans: wall clock.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from gpu_clock import Clock, Side, gpu, wall_ms

from kvpolicy.kernels.cascade_triton import CascadeShape, PagedPart, cascade_attention, plan_cascade

Q_HEADS, KV_HEADS, DIM = 32, 8, 128
ROWS = (
    (8, 8192, 256, 16), (32, 8192, 256, 1), (32, 8192, 256, 16), (128, 8192, 256, 1), (128, 8192, 256, 16),
    (128, 8192, 256, 64), (256, 2048, 256, 16), (128, 1024, 1024, 16), (64, 32768, 1024, 1), (64, 32768, 1024, 16),
    (16, 4096, 512, 16), (64, 2048, 128, 16), (64, 512, 2048, 16), (16, 32768, 256, 16), (256, 512, 512, 16),
    (4, 32768, 256, 16),
)  # fmt: skip
TUNED_ON = ((128, 8192, 256, 16), (32, 8192, 256, 16), (64, 32768, 1024, 16))
SHAPES = tuple(
    CascadeShape(m, n, programs, warps, stages, *own)
    for m, n, programs, warps, stages in (
        (64, 64, 4, 4, 3), (64, 64, 2, 4, 4), (64, 128, 4, 4, 2), (64, 128, 2, 4, 3), (128, 64, 2, 8, 3),
        (128, 64, 2, 8, 4), (128, 64, 1, 8, 3), (128, 128, 2, 8, 2), (64, 32, 4, 4, 4),
    )
    for own in ((64, 8, 2, 3), (64, 8, 4, 3), (32, 16, 2, 3), (128, 8, 4, 2))
)  # fmt: skip
FLOOR_BYTES_S = 4.0e12


class Batch(NamedTuple):
    q: torch.Tensor  # [B, q heads, dim]
    pool: torch.Tensor  # [pages, 2, page tokens, KV heads, dim], FlashInfer's NHD
    k: torch.Tensor  # [slots, KV heads, dim]
    v: torch.Tensor
    pages: torch.Tensor  # int32: the shared ones, then those of request after request
    parts: list[PagedPart]


def batch(requests: int, shared: int, own: int, page: int, device: str, dtype: torch.dtype) -> Batch:
    count = (shared + requests * own) // page
    pool = torch.randn((count, 2, page, KV_HEADS, DIM), device=device, dtype=torch.float32).to(dtype)
    k, v = (pool[:, side].reshape(-1, KV_HEADS, DIM).contiguous() for side in range(2))
    pages = torch.randperm(count, device=device).to(torch.int32)
    parts = [PagedPart(0, shared, range(requests))]
    parts += [PagedPart((shared + request * own) // page, own, [request]) for request in range(requests)]
    q = torch.randn((requests, Q_HEADS, DIM), device=device, dtype=torch.float32).to(dtype)
    return Batch(q, pool, k, v, pages, parts)


def ours(data: Batch, page: int, shape: CascadeShape | None = None) -> Side:
    plan = plan_cascade(data.parts, len(data.q), Q_HEADS, KV_HEADS, data.q.device, shape)
    return lambda: cascade_attention(data.q, data.k, data.v, data.pages, page, plan, DIM**-0.5)


def flashinfer_sides(data: Batch, requests: int, shared: int, own: int, page: int) -> dict[str, tuple[Side, Side]]:
    """Name -> what plans and what runs; empty where FlashInfer cannot be imported."""
    try:
        import flashinfer
    except ImportError:
        return {}

    def space() -> torch.Tensor:
        return torch.empty(256 << 20, dtype=torch.uint8, device="cuda")

    first, rest = data.pages[: shared // page], data.pages[shared // page :].view(requests, -1)
    table = torch.cat([torch.cat([first, row]) for row in rest])
    steps = torch.arange(requests + 1, device="cuda", dtype=torch.int32)
    last = torch.full((requests,), page, device="cuda", dtype=torch.int32)
    kinds = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
    sides: dict[str, tuple[Side, Side]] = {}
    for name, uses_tensor_cores in (("plain", False), ("tc", True)):
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(space(), "NHD", use_tensor_cores=uses_tensor_cores)
        given = (steps * ((shared + own) // page), table, last, Q_HEADS, KV_HEADS, DIM, page)
        sides[name] = (
            lambda wrapper=wrapper, given=given: wrapper.plan(*given, **kinds),
            lambda wrapper=wrapper: wrapper.run(data.q, data.pool),
        )
    cascade = flashinfer.MultiLevelCascadeAttentionWrapper(2, space(), "NHD")
    levels = (
        [steps[[0, -1]], steps],
        [torch.tensor([0, shared // page], device="cuda", dtype=torch.int32), steps * (own // page)],
        [first, rest.reshape(-1)],
        [last[:1], last],
    )
    heads = (Q_HEADS, KV_HEADS, DIM, page)

    def plan() -> Any:
        try:
            return cascade.plan(*levels, *heads, **kinds)
        except TypeError:  # releases that do not ask for the dtype of K and V
            return cascade.plan(*levels, *heads, q_data_type=torch.bfloat16)

    sides["theirs"] = (plan, lambda: cascade.run(data.q, data.pool))
    return sides


def exact(data: Batch, page: int) -> torch.Tensor:
    """Attention in float64."""
    out = torch.empty(data.q.shape, dtype=torch.float64, device=data.q.device)
    offsets = torch.arange(page, device=data.q.device)
    for request in range(len(data.q)):
        held = []
        for part in data.parts:
            if request in part.requests:
                pages = data.pages[part.first_page : part.first_page + part.tokens // page].long()
                held.append((pages[:, None] * page + offsets).flatten())
        keys, values = (x[torch.cat(held)].double().transpose(0, 1) for x in (data.k, data.v))
        scores = data.q[request].double().view(KV_HEADS, -1, DIM) @ keys.transpose(1, 2) * DIM**-0.5
        out[request] = (torch.softmax(scores, -1) @ values).view(Q_HEADS, DIM)
    return out


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.double() - wanted).norm() / wanted.norm())


def check(device: str) -> None:
    """AssertionError where our kernel is wrong."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float16  # the interpreter knows no bf16 arithmetic
    for case in ((5, 512, 64, 16), (3, 256, 32, 1)) if device == "cpu" else ((37, 4096, 64, 16), (130, 1024, 128, 1)):
        data = batch(*case, device, dtype)
        error = relative(ours(data, case[3])(), exact(data, case[3]))
        print(f"check {case}: relative error {error:.5f}", flush=True)
        assert error < 0.006, "attention is wrong"


def compile_one(shape: CascadeShape) -> str:
    """In a process of its own: fills Triton's cache."""
    try:
        for page in (1, 16, 64):
            data = batch(40, 128, 64, page, "cuda", torch.bfloat16)
            ours(data, page, shape)()
        torch.cuda.synchronize()
    except Exception as error:
        return f"{tuple(shape)}: {type(error).__name__}: {str(error)[:300]}"
    return ""


def tune(clock: Clock, rounds: int) -> CascadeShape:
    """The shape with the smallest geometric mean of ratios to the best, over `TUNED_ON`."""
    scores = dict.fromkeys(SHAPES, 1.0)
    for case in TUNED_ON:
        data = batch(*case, "cuda", torch.bfloat16)
        us: dict[CascadeShape, float] = {}
        for shape in SHAPES:
            try:
                us[shape] = clock.medians_us({"side": ours(data, case[3], shape)}, rounds)["side"]
            except Exception as error:  # a shape that does not fit this GPU
                print(f"{tuple(shape)}: {type(error).__name__}: {str(error)[:200]}")
                us[shape] = float("inf")
        best = min(us.values())
        ordered = sorted(us.items(), key=lambda item: item[1])
        print(f"tune {case}: " + ", ".join(f"{tuple(shape)} {value:.0f}" for shape, value in ordered[:8]), flush=True)
        for shape, value in us.items():
            scores[shape] *= value / best
    chosen = min(scores, key=lambda shape: scores[shape])
    print(f"chosen: {tuple(chosen)}", flush=True)
    return chosen


def measure(clock: Clock, rounds: int, shape: CascadeShape | None) -> None:
    print(
        "\n|   B |     S |    U | page | plain | tc | theirs | ours | floor | best / ours | plan tc / theirs / ours |"
    )
    for case in ROWS:
        requests, shared, own, page = case
        data = batch(*case, "cuda", torch.bfloat16)
        planning = partial(plan_cascade, data.parts, requests, Q_HEADS, KV_HEADS, "cuda", shape)
        theirs = flashinfer_sides(data, *case)
        for plan, _ in theirs.values():
            plan()
        sides: dict[str, Callable[[], Any]] = {name: run for name, (_, run) in theirs.items()}
        sides["ours"] = ours(data, page, shape)
        if "tc" in sides:
            difference = relative(sides["ours"](), sides["tc"]().double())
            assert difference < 0.01, f"ours and FlashInfer's differ by {difference}"
        ms = {name: value / 1e3 for name, value in clock.medians_us(sides, rounds).items()}
        floor = (shared + requests * own) * KV_HEADS * DIM * 4 / FLOOR_BYTES_S * 1e3
        best = min((value for name, value in ms.items() if name != "ours"), default=float("nan"))
        plans = {name: wall_ms(theirs[name][0]) for name in ("tc", "theirs") if name in theirs}
        plans["ours"] = wall_ms(planning)
        cells = " | ".join(f"{ms.get(name, float('nan')):.3f}" for name in ("plain", "tc", "theirs", "ours"))
        plan_ms = " / ".join(f"{value:.2f}" for value in plans.values())
        given = " | ".join(map(str, case))
        print(f"| {given} | {cells} | {floor:.3f} | {best / ms['ours']:.2f} | {plan_ms} |", flush=True)
        del sides, theirs, data
        torch.cuda.empty_cache()


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
    shape = None
    if arguments.tune:
        start_s = time.perf_counter()
        with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
            for failed in filter(None, pool.map(compile_one, SHAPES)):
                print("does not compile: " + failed)
        print(f"{len(SHAPES)} shapes compiled in {time.perf_counter() - start_s:.0f} s", flush=True)
    check("cuda")
    clock = Clock()
    if arguments.tune:
        shape = tune(clock, 7)
    measure(clock, arguments.rounds, shape)


if __name__ == "__main__":
    main()
