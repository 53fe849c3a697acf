"""Decode attention planned by pages (`backend: {page_native: true}`) beside SGLang's plans by tokens, on a GPU.

    python benchmarks/page_native.py                # the table, about 80 s on an H200 with compiled kernels
    python benchmarks/page_native.py --device cpu   # the indices alone, in Triton's interpreter

One layer, bf16, 32 q heads on 8 KV heads of 128, slots in shuffled pages, lengths that end inside a page. Both sides
read the same slots through FlashInfer's `BatchDecodeWithPagedKVCacheWrapper(use_tensor_cores=True)` as SGLang makes it
for a CUDA graph: `tokens` with one index a token, built by SGLang's kernel where it can be imported, `pages` with one a
page, built by ours. `build + plan`: wall clock of a step's preparation, the device waited for; decode: one CUDA graph,
the L2 cache overwritten before each run. Medians. Error: relative, against float64, over a few requests.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from gpu_clock import Clock, gpu, wall_ms

from kvpolicy.kernels import page_plan_triton
from kvpolicy.kernels.page_plan import host_plan, most_pages, write_page_plan_torch

Q_HEADS, KV_HEADS, DIM = 32, 8, 128
TOKEN_BYTES = KV_HEADS * DIM * 2 * 2
ROWS = [(batch, context, page) for context in (8192, 32768, 131072) for batch in (32, 128) for page in (1, 16, 64)]
MOST_BYTES = 100 << 30
INDICES = "create_flashinfer_kv_indices_triton"


def engine_kernel() -> Any:
    """SGLang's kernel that builds token indices; None where SGLang cannot be imported."""
    try:
        from sglang.kernels.ops.attention import utils
    except ImportError as error:
        print(f"SGLang cannot be imported ({error}): our kernel builds the token indices too, at a page of 1")
        return None
    return getattr(utils, INDICES)


class Batch:
    """Requests whose slots lie in shuffled pages of a pool."""

    def __init__(self, batch: int, context: int, page: int, device: str) -> None:
        self.page = page
        self.lens_cpu = context - torch.arange(batch) * 37 % min(61, context)
        self.lens = self.lens_cpu.to(device)
        self.rows = torch.randperm(batch, device=device)
        pages = torch.randperm(batch * context // page, device=device, dtype=torch.int32).view(batch, -1)
        self.req_to_token = (pages[:, :, None] * page + torch.arange(page, device=device)).flatten(1).to(torch.int32)

    def slots(self, request: int) -> torch.Tensor:
        return self.req_to_token[self.rows[request], : int(self.lens_cpu[request])].long()


class Plans:
    """One wrapper with the static buffers of a CUDA graph, planned step after step as SGLang does."""

    def __init__(self, data: Batch, page_tokens: int, theirs: Any = None) -> None:
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper, fast_decode_plan

        self.data, self.page_tokens, self.theirs = data, page_tokens, theirs
        batch, tokens = len(data.lens), int(data.lens_cpu.sum())
        ints = partial(torch.ones, dtype=torch.int32, device="cuda")
        self.indptr, self.last = ints(batch + 1), ints(batch)
        self.indices = ints(most_pages(tokens, batch, page_tokens))
        self.wrapper = BatchDecodeWithPagedKVCacheWrapper(
            torch.empty(512 << 20, dtype=torch.uint8, device="cuda"),
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=self.indptr,
            paged_kv_indices_buffer=self.indices,
            paged_kv_last_page_len_buffer=self.last,
            backend="fa2",
        )
        self.build()
        self._begin(self.wrapper.plan, self.last)
        self.fast_plan = partial(fast_decode_plan, self.wrapper)

    def _begin(self, plan: Callable[..., None], last: torch.Tensor, **options: Any) -> None:
        kinds = {"q_data_type": torch.bfloat16, "data_type": torch.bfloat16}
        plan(
            self.indptr, self.indices, last, Q_HEADS, KV_HEADS, DIM, self.page_tokens, non_blocking=True,
            **kinds, **options,
        )  # fmt: skip

    def build(self) -> None:
        data = self.data
        if self.theirs is None:
            page_plan_triton.write_page_plan(
                data.req_to_token, data.rows, data.lens, self.page_tokens,
                indptr=self.indptr, indices=self.indices, last_page_tokens=self.last,
            )  # fmt: skip
            return
        self.indptr[0] = 0
        self.indptr[1:] = torch.cumsum(data.lens, dim=0)
        self.theirs[(len(data.lens),)](
            data.req_to_token, data.rows, data.lens, self.indptr, None, self.indices, data.req_to_token.shape[1]
        )

    def step(self) -> None:
        """What a decode step does before its graph is replayed."""
        self.build()
        if self.page_tokens > 1:
            indptr, last = host_plan(self.data.lens_cpu, self.page_tokens)
        else:  # as SGLang does
            indptr, last = torch.zeros(len(self.indptr), dtype=torch.int32), self.last
            indptr[1:] = torch.cumsum(self.data.lens_cpu, dim=0)
        self._begin(self.fast_plan, last, global_override_indptr_cpu=indptr)

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        kv = tuple(side.view(-1, self.page_tokens, KV_HEADS, DIM) for side in (k, v))
        out: torch.Tensor = self.wrapper.run(q, kv)
        return out

    @property
    def index_bytes(self) -> int:
        return int(self.indptr[-1]) * 4


def exact(data: Batch, request: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of one request in float64."""
    slots = data.slots(request)
    heads = []
    for head, queries in enumerate(q[request].double().view(KV_HEADS, -1, DIM)):
        scores = queries @ k[slots, head].double().T * DIM**-0.5
        heads.append(torch.softmax(scores, -1) @ v[slots, head].double())
    return torch.cat(heads)


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.double() - wanted).norm() / wanted.norm())


def measure(clock: Clock, rounds: int, theirs: Any) -> None:
    fitting = [row for row in ROWS if row[0] * row[1] * TOKEN_BYTES <= MOST_BYTES]
    for row in ROWS:
        if row not in fitting:
            print(f"skipped: batch {row[0]}, context {row[1]}, page {row[2]}: K and V exceed {MOST_BYTES >> 30} GiB")
    slots = max(batch * context for batch, context, _ in fitting)
    k, v = (torch.empty((slots, KV_HEADS, DIM), dtype=torch.bfloat16, device="cuda").normal_() for _ in range(2))
    print(
        "| batch | context | page | index bytes, tokens / pages | build + plan ms | ratio | decode ms | ratio | error |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for batch, context, page in fitting:
        data = Batch(batch, context, page, "cuda")
        q = torch.randn((batch, Q_HEADS, DIM), device="cuda").to(torch.bfloat16)
        used = [side[: batch * context] for side in (k, v)]
        sides = {"tokens": Plans(data, 1, theirs), "pages": Plans(data, page)}
        errors = dict.fromkeys(sides, 0.0)
        for plans in sides.values():
            plans.step()
        for request in (0, batch // 2, batch - 1):
            wanted = exact(data, request, q, *used)
            for name, plans in sides.items():
                errors[name] = max(errors[name], relative(plans.run(q, *used)[request], wanted))
        assert errors["pages"] < max(0.01, 1.5 * errors["tokens"]), f"attention is wrong: {errors}"
        prepared = {name: wall_ms(plans.step, 21) for name, plans in sides.items()}
        runs = {name: partial(plans.run, q, *used) for name, plans in sides.items()}
        ms = {name: value / 1e3 for name, value in clock.medians_us(runs, rounds).items()}
        cells = (
            f"{sides['tokens'].index_bytes:,} / {sides['pages'].index_bytes:,}",
            f"{prepared['tokens']:.3f} / {prepared['pages']:.3f}",
            f"{prepared['tokens'] / prepared['pages']:.2f}",
            f"{ms['tokens']:.3f} / {ms['pages']:.3f}",
            f"{ms['tokens'] / ms['pages']:.2f}",
            f"{errors['tokens']:.5f} / {errors['pages']:.5f}",
        )
        print(f"| {batch} | {context} | {page} | {' | '.join(cells)} |", flush=True)
        del sides, runs, data
        torch.cuda.empty_cache()


def check(device: str) -> None:
    """AssertionError where our kernel's indices are not those of its twin."""
    for batch, context, page in ((3, 200, 1), (5, 512, 16), (130, 256, 64)):
        data = Batch(batch, context // page * page, page, device)
        written = []
        for write in (page_plan_triton.write_page_plan, write_page_plan_torch):
            ints = partial(torch.zeros, dtype=torch.int32, device=device)
            into = {
                "indptr": ints(batch + 1),
                "indices": ints(most_pages(int(data.lens_cpu.sum()), batch, page)),
                "last_page_tokens": ints(batch),
            }
            write(data.req_to_token, data.rows, data.lens, page, **into)
            written.append(into)
        assert all(torch.equal(written[0][name], written[1][name]) for name in written[0])
    print("check: indices are those of the twin", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: the check, in the interpreter")
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    check(arguments.device)
    if arguments.device == "cpu":
        return
    print(gpu())
    start_s = time.perf_counter()
    measure(Clock(), arguments.rounds, engine_kernel())
    print(f"{time.perf_counter() - start_s:.0f} s")


if __name__ == "__main__":
    main()
