"""Cost of the scheduler's calls on its slot allocator: SGLang's own class beside ours in each order.

    python benchmarks/allocator.py                                  # on the CPU
    python benchmarks/allocator.py --device cuda --units 1048576    # on a GPU

Each side is an allocator of the same pool, half of it free. `fresh`: the free half is one stretch. `churned`: it lies
in pieces of 1 to 32 units in random order, as a pool looks that served requests in the engine's order for long; ours
take it over as it is. Units are slots at page size 1, pages above. Calls, in microseconds, sides in turn:

``pair``     16 units allocated and given back at once
``free``     the units of one earlier request given back: 256 slots, or 16 pages, through `free_segment` if there is one
``extend``   a batch of 8 requests grows by 256 tokens each
``decode``   a step of 64 requests; at page 16 every 16th needs a page

Every figure is a median, with its ratio to stock's median of the same rounds: 0.10 is a tenth. On the CPU it is CPU
time of the thread; on a GPU the wall time until the device has finished. Between two calls of a side the others ran, so
that its data is as cold as after a model's step.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from engine_caches import CLOCK, print_machine
from kvpolicy_sglang.allocator import substitute
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator

from kvpolicy.allocators import ORDERS
from kvpolicy.allocators.guard import Guard

CALLS = ("pair", "free", "extend", "decode")
REQUEST_TOKENS = 256
BATCH_EXTEND, BATCH_DECODE = 8, 64


def make_stock(page: int, units: int, device: str) -> Any:
    common = {"dtype": torch.float16, "device": device, "kvcache": None, "need_sort": False}
    if page == 1:
        return TokenToKVPoolAllocator(units, **common)
    stock = PagedTokenToKVPoolAllocator(units * page, page_size=page, **common)
    if device == "cpu" and hasattr(stock, "use_triton_kernels"):
        stock.use_triton_kernels = False
    return stock


def half_of(units: int, state: str, device: str) -> torch.Tensor:
    """The ids of the free half, in the order in which they came back."""
    if state == "fresh":
        return torch.arange(units // 2 + 1, units + 1, device=device)
    rng = random.Random(0)
    pieces, start = [], 1
    while start <= units:
        length = rng.randrange(1, 33)
        pieces.append((start, min(start + length, units + 1)))
        start += length
    rng.shuffle(pieces)
    free = torch.cat([torch.arange(*piece) for piece in pieces[: len(pieces) // 2]])
    return free.to(device)


class Side:
    """One allocator, and the rows of requests that it serves."""

    def __init__(self, name: str, allocator: Any, free: torch.Tensor, device: str) -> None:
        self.name, self.allocator, self.device = name, allocator, device
        self.page = allocator.page_size
        allocator.free_pages = free.clone()
        prefix = torch.tensor([100 + 3 * i for i in range(BATCH_EXTEND)])
        steps = torch.arange(BATCH_DECODE) + self.page * 20 + 1  # at page 16 every 16th opens a page
        self.lens = {
            "extend": (prefix, prefix + REQUEST_TOKENS),
            "decode": (steps - 1, steps),
        }
        self.on_device = {key: tuple(lens.to(device) for lens in pair) for key, pair in self.lens.items()}
        self.last = {key: pair[0].sub(1).remainder(self.page).add(self.page) for key, pair in self.on_device.items()}
        self.rows = [self.alloc(REQUEST_TOKENS) for _ in range(40)]

    def alloc(self, tokens: int) -> torch.Tensor:
        slots = self.allocator.alloc(tokens)
        assert slots is not None
        return slots

    def free(self, slots: torch.Tensor) -> None:
        if self.page > 1 and hasattr(self.allocator, "free_segment"):
            self.allocator.free_segment(slots, start_pos=0)
        else:
            self.allocator.free(slots)

    # -- what is timed: (prepare, call, undo) --

    def pair(self) -> None:
        self.free(self.alloc(16 * self.page))

    def extend(self) -> torch.Tensor:
        if self.page == 1:
            return self.alloc(BATCH_EXTEND * REQUEST_TOKENS)
        (prefix, seq), (prefix_cpu, seq_cpu) = self.on_device["extend"], self.lens["extend"]
        last, tokens = self.last["extend"], BATCH_EXTEND * REQUEST_TOKENS
        out: torch.Tensor = self.allocator.alloc_extend(prefix, prefix_cpu, seq, seq_cpu, last, tokens)
        return out

    def decode(self) -> torch.Tensor:
        if self.page == 1:
            return self.alloc(BATCH_DECODE)
        (_, seq), (_, seq_cpu) = self.on_device["decode"], self.lens["decode"]
        out: torch.Tensor = self.allocator.alloc_decode(seq, seq_cpu, self.last["decode"])
        return out

    def give_back(self, call: str, slots: torch.Tensor) -> None:
        """Undo an extend or a decode: only what came from the free list goes back."""
        if self.page > 1:
            slots = slots[slots >= 2 * self.page]  # the last page of each prefix is page 1
        self.allocator.free(slots)


def timed(call: Callable[[], Any], device: str) -> tuple[Any, float]:
    if device == "cpu":
        start_s = CLOCK()
        answer = call()
        return answer, (CLOCK() - start_s) * 1e6
    torch.cuda.synchronize()
    start_s = perf_counter()
    answer = call()
    torch.cuda.synchronize()
    return answer, (perf_counter() - start_s) * 1e6


def measure(sides: list[Side], call: str, rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {side.name: [] for side in sides}
    for number in range(rounds + 3):
        for side in sides:
            if call == "free":
                row = side.rows[number % len(side.rows)]
                _, us = timed(lambda side=side, row=row: side.free(row), side.device)
                side.rows[number % len(side.rows)] = side.alloc(REQUEST_TOKENS)
            else:
                slots, us = timed(getattr(side, call), side.device)
                if slots is not None:
                    side.give_back(call, slots)
            if number >= 3:
                found[side.name].append(us)
    return {name: statistics.median(us) for name, us in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--units", default="65536,1048576,4194304", help="slots at page 1, pages above")
    parser.add_argument("--pages", default="1,16", help="page sizes")
    parser.add_argument("--states", default="fresh,churned")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--guard", action="store_true", help="measure each order under the full guard")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print_machine()
    print(f"{'page':>4} {'units':>9} {'state':8} {'side':8}" + "".join(f"{call:>20}" for call in CALLS))
    for page in map(int, args.pages.split(",")):
        for units in map(int, args.units.split(",")):
            for state in args.states.split(","):
                free = half_of(units, state, args.device)
                sides = [Side("stock", make_stock(page, units, args.device), free, args.device)]
                for order in ORDERS:
                    guard = Guard("full", lambda *_: None) if args.guard else None
                    ours = substitute(make_stock(page, units, args.device), order, guard)
                    sides.append(Side(order, ours, free, args.device))
                figures = {call: measure(sides, call, args.rounds) for call in CALLS}
                for side in sides:
                    cells = [f"{us[side.name]:,.0f} = {us[side.name] / us['stock']:.2f} x" for us in figures.values()]
                    line = "".join(f"{cell:>20}" for cell in cells)
                    print(f"{page:4} {units:9,} {state:8} {side.name:8}{line}", flush=True)


if __name__ == "__main__":
    main()
