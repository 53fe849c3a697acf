"""Decode-attention time over a pool that churned under each allocator order: does it matter where the slots lie?

    python benchmarks/churned_attention.py                    # on a GPU, with SGLang and FlashInfer
    python benchmarks/churned_attention.py --device cpu       # the runs alone: no kernel is timed

`--steps` decode steps of a batch are simulated on each order's free list, the same requests for all: prompts of
`--prompt` tokens, outputs of up to as many, and each request that ends makes room for a new one. `stock` is the order
that SGLang has at that page size (the ids are its allocator's, as the tests prove): first in first out at page 1, last
in first out above. `one piece` and `shuffled` are the best and the worst there could be. Then one layer's decode
attention is timed over the very slots that each order chose: SGLang's Triton kernel and FlashInfer's decode, which
SGLang plans with pages of 1 whatever the page size is. 32 query heads, 8 KV heads, head_dim 128, bfloat16.

Printed: runs a request (stretches of neighbouring slots) and milliseconds, median of `--rounds` with the sides in
turn, with the ratio to stock's.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable

import torch
from pressure import machine

from kvpolicy.allocators import make_free_list

HEADS, KV_HEADS, HEAD_DIM, SPLITS = 32, 8, 128, 8
Call = Callable[[], None]


class Pool:
    """The slots of a running batch, in the pages that one free list handed out."""

    def __init__(self, order: str, page: int, num_pages: int) -> None:
        self.page = page
        self.free = make_free_list(order, num_pages, "cpu")
        self.pages: list[list[int]] = []
        self.lengths: list[int] = []

    def admit(self, at: int, prompt_tokens: int) -> None:
        count = -(-prompt_tokens // self.page)
        got = self.free.take_after(torch.tensor([-1]), [count]).tolist()
        if at == len(self.pages):
            self.pages.append(got)
            self.lengths.append(prompt_tokens)
        else:
            self.pages[at], self.lengths[at] = got, prompt_tokens

    def finish(self, at: int) -> None:
        self.free.give(torch.tensor(self.pages[at]))

    def decode(self) -> None:
        counts = [int(length % self.page == 0) for length in self.lengths]
        if sum(counts):
            last = torch.tensor([pages[-1] if self.page > 1 else -1 for pages in self.pages])  # at 1 SGLang names none
            got = iter(self.free.take_after(last, counts).tolist())
            for pages, count in zip(self.pages, counts, strict=True):
                if count:
                    pages.append(next(got))
        self.lengths = [length + 1 for length in self.lengths]

    def slots(self) -> list[torch.Tensor]:
        inside = torch.arange(self.page)
        return [
            (torch.tensor(pages)[:, None] * self.page + inside).flatten()[:length]
            for pages, length in zip(self.pages, self.lengths, strict=True)
        ]


def churn(order: str, page: int, args: argparse.Namespace) -> list[torch.Tensor]:
    """The slots of each request after `steps`; the traffic is the same for every order."""
    rng = random.Random(0)
    pool = Pool(order, page, args.batch * args.prompt * 2 // page + args.batch)
    left = []
    for at in range(args.batch):
        pool.admit(at, rng.randrange(args.prompt // 2, args.prompt))
        left.append(rng.randrange(1, args.prompt))
    for _ in range(args.steps):
        pool.decode()
        left = [steps - 1 for steps in left]
        done = [at for at, steps in enumerate(left) if steps == 0]
        for at in done:
            pool.finish(at)
        for at in done:
            pool.admit(at, rng.randrange(args.prompt // 2, args.prompt))
            left[at] = rng.randrange(1, args.prompt)
    return pool.slots()


def shuffled(lengths: list[int], page: int) -> list[torch.Tensor]:
    """Every page anywhere."""
    counts = [-(-length // page) for length in lengths]
    pages = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0)) + 1
    inside = torch.arange(page)
    rows = (part[:, None] * page + inside for part in pages.split(counts))
    return [row.flatten()[:length] for row, length in zip(rows, lengths, strict=True)]


def runs(slots: list[torch.Tensor]) -> float:
    """Stretches of neighbouring slots, a request."""
    return statistics.mean(1 + int((row.diff() != 1).sum()) for row in slots)


def triton_call(q: torch.Tensor, kv: list[torch.Tensor], indptr: torch.Tensor, indices: torch.Tensor) -> Call:
    from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd

    batch = q.shape[0]
    out = torch.empty_like(q)
    logits = torch.empty((batch, HEADS, SPLITS, HEAD_DIM), dtype=torch.float32, device=q.device)
    lse = torch.empty((batch, HEADS, SPLITS), dtype=torch.float32, device=q.device)
    splits = torch.full((batch,), SPLITS, dtype=torch.int32, device=q.device)
    scale = HEAD_DIM**-0.5

    def call() -> None:
        decode_attention_fwd(q, *kv, out, indptr, indices, logits, lse, splits, SPLITS, scale, 1.0, 1.0)

    return call


def flashinfer_call(q: torch.Tensor, kv: list[torch.Tensor], indptr: torch.Tensor, indices: torch.Tensor) -> Call:
    import flashinfer

    workspace = torch.empty(256 << 20, dtype=torch.uint8, device=q.device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    last = torch.ones(q.shape[0], dtype=torch.int32, device=q.device)
    wrapper.plan(indptr.int(), indices.int(), last, HEADS, KV_HEADS, HEAD_DIM, 1, q_data_type=q.dtype)
    paged = tuple(each.unsqueeze(1) for each in kv)

    def call() -> None:
        wrapper.run(q, paged)

    return call


def timed(sides: dict[str, Call], rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 5):
        for name, call in sides.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            if number >= 5:
                found[name].append(begin.elapsed_time(end))
    return {name: statistics.median(each) for name, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--pages", default="1,16")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=8192, help="tokens")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--backends", default="triton,flashinfer")
    args = parser.parse_args()
    print("machine:", machine())
    backends = {"triton": triton_call, "flashinfer": flashinfer_call}
    chosen = {name: backends[name] for name in args.backends.split(",")} if args.device == "cuda" else {}
    print(f"{'page':>4} {'slots':10} {'runs a request':>14}" + "".join(f"{f'{name} ms':>22}" for name in chosen))
    for page in map(int, args.pages.split(",")):
        stock = "fifo" if page == 1 else "lifo"
        slots = {
            ("stock" if order == stock else order): churn(order, page, args) for order in (stock, "address", "runs")
        }
        lengths = [row.numel() for row in slots["stock"]]
        total = sum(lengths)
        slots["one piece"] = list(torch.arange(page, page + total).split(lengths))
        slots["shuffled"] = shuffled(lengths, page)
        ms: dict[str, dict[str, float]] = {}
        if chosen:
            size = 1 + max(int(row.max()) for rows in slots.values() for row in rows)
            kv = [torch.randn((size, KV_HEADS, HEAD_DIM), device="cuda", dtype=torch.bfloat16) for _ in "kv"]
            q = torch.randn((len(lengths), HEADS, HEAD_DIM), device="cuda", dtype=torch.bfloat16)
            indptr = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], device="cuda", dtype=torch.int32)
            for backend, make in chosen.items():
                sides = {name: make(q, kv, indptr, torch.cat(rows).cuda()) for name, rows in slots.items()}
                ms[backend] = timed(sides, args.rounds)
        for name, rows in slots.items():
            cells = [f"{took[name]:.3f} = {took[name] / took['stock']:.3f} x" for took in ms.values()]
            print(f"{page:4} {name:10} {runs(rows):14.1f}" + "".join(f"{cell:>22}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
