"""Runs inside one SGLang: its own allocator and ours under one random stream of the scheduler's calls.

In the engine's own order every call must answer the same ids, and free lists must look the same to whoever reads them.
In every order no slot may be handed out twice, and what is free and what is held must add up. Tells one JSON line for
each order, page size and need_sort: `differential.py STEPS`.
"""

from __future__ import annotations

import json
import random
import sys
from types import SimpleNamespace
from typing import Any

import torch
from kvpolicy_sglang.allocator import ENGINE_ORDER, substitute
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator

from kvpolicy.allocators import ORDERS
from kvpolicy.allocators.guard import Guard

UNITS = 96


def stock(page: int, need_sort: bool) -> Any:
    common = {"dtype": torch.float16, "device": "cpu", "kvcache": None, "need_sort": need_sort}
    if page == 1:
        return TokenToKVPoolAllocator(UNITS, **common)
    return PagedTokenToKVPoolAllocator(UNITS * page, page_size=page, **common)


class Request:
    """One request's row of slots."""

    def __init__(self, slots: torch.Tensor) -> None:
        self.slots = slots


class Stream:
    """Random calls, made on every side alike."""

    def __init__(self, sides: list[Any], page: int, seed: int) -> None:
        self.sides, self.page = sides, page
        self.rng = random.Random(seed)
        self.requests: list[Request] = []
        self.calls = 0

    def both(self, call: Any) -> torch.Tensor | None:
        """The answer of `call`, equal on all sides."""
        self.calls += 1
        answers = [call(side) for side in self.sides]
        for answer in answers[1:]:
            assert (answer is None) == (answers[0] is None)
            assert answer is None or torch.equal(answer, answers[0]), (answer, answers[0])
        self.assert_alike()
        return answers[0]

    def assert_alike(self) -> None:
        ours = self.sides[-1]
        for side in self.sides:
            assert side.available_size() == self.sides[0].available_size()
        if len(self.sides) > 1:
            assert torch.equal(ours.free_pages, self.sides[0].free_pages)
            if hasattr(self.sides[0], "get_all_free_pages"):
                assert torch.equal(ours.get_all_free_pages(), self.sides[0].get_all_free_pages())
            elif self.sides[0].release_pages is not None:  # waiting, to be sorted: their order means nothing
                assert torch.equal(ours.release_pages.sort().values, self.sides[0].release_pages.sort().values)

    def assert_sound(self) -> None:
        """No unit is held twice, and none is lost."""
        ours = self.sides[-1]
        free = ours.get_all_free_pages()
        held = [request.slots // self.page for request in self.requests]
        held_units = torch.cat([unit.unique() for unit in held]) if held else free[:0]
        units = torch.cat([free, held_units]).sort().values
        assert torch.equal(units, torch.arange(1, ours.size // self.page + 1)), "a unit is lost, or there twice"

    def extend(self) -> None:
        """A batch of requests grows: new ones, and chunks of running ones."""
        rng = self.rng
        grown = rng.sample(self.requests, min(len(self.requests), rng.randrange(3)))
        grown = [*grown, *(Request(torch.empty(0, dtype=torch.int64)) for _ in range(rng.randrange(1, 3)))]
        prefix = torch.tensor([request.slots.numel() for request in grown])
        seq = prefix + torch.tensor([rng.randrange(1, 3 * self.page + 2) for _ in grown])
        tokens = int((seq - prefix).sum())
        if self.page == 1:
            slots = self.both(lambda side: side.alloc(tokens))
        else:
            last = torch.tensor([int(request.slots[-1]) if request.slots.numel() else -1 for request in grown])
            slots = self.both(lambda side: side.alloc_extend(prefix, prefix, seq, seq, last, tokens))
        if slots is not None:
            self.append(grown, slots, (seq - prefix).tolist())

    def decode(self) -> None:
        """One step of every running request."""
        batch = self.requests
        if not batch:
            return
        seq = torch.tensor([request.slots.numel() + 1 for request in batch])
        last = torch.tensor([int(request.slots[-1]) for request in batch])
        if self.page == 1:
            slots = self.both(lambda side: side.alloc(len(batch)))
        else:
            slots = self.both(lambda side: side.alloc_decode(seq, seq, last))
        if slots is not None:
            self.append(batch, slots, [1] * len(batch))

    def append(self, batch: list[Request], slots: torch.Tensor, counts: list[int]) -> None:
        for request, own in zip(batch, slots.split(counts), strict=True):
            request.slots = torch.cat([request.slots, own])
            if request not in self.requests:
                self.requests.append(request)

    def finish(self, grouped: bool = False) -> None:
        """Requests end, through one of the ways in which the engine frees."""
        rng = self.rng
        done = rng.sample(self.requests, min(len(self.requests), rng.randrange(1, 4)))
        self.requests = [request for request in self.requests if request not in done]
        ways = [rng.choice(self.ways()) for _ in done]

        def free(side: Any) -> None:
            if grouped:
                side.free_group_begin()
            for request, way in zip(done, ways, strict=True):
                way(side, request.slots)
            if grouped:
                side.free_group_end()

        self.both(free)

    def ways(self) -> list[Any]:
        side, page = self.sides[-1], self.page
        ways = [lambda side, slots: side.free(slots)]
        if hasattr(side, "free_segment"):
            ways.append(lambda side, slots: side.free_segment(slots, start_pos=0))
        if hasattr(side, "free_page_ids") and hasattr(self.sides[0], "free_page_ids"):
            ways.append(lambda side, slots: side.free_page_ids(slots[::page] // page))
        if hasattr(side, "free_segments"):
            cut = page
            ways.append(lambda side, slots: side.free_segments([(slots[:cut], 0), (slots[cut:], cut)]))
        return ways

    def whole_pages(self) -> None:
        count = self.rng.randrange(1, 5) * self.page
        slots = self.both(lambda side: side.alloc(count))
        if slots is not None:
            self.append([request := Request(slots[:0])], slots, [count])
            assert request.slots.numel() == count

    def reset(self) -> None:
        self.requests = []
        if self.rng.random() < 0.5:
            self.both(lambda side: side.clear())
        else:
            tokens = self.rng.randrange(UNITS // 2, UNITS + 1) * self.page
            self.both(lambda side: side.resize(SimpleNamespace(max_total_num_tokens=tokens)))

    def rehearse(self) -> None:
        """Speculative decoding of 0.5.16 allocates and takes it back."""
        if not hasattr(self.sides[0], "backup_state"):
            return

        def call(side: Any) -> Any:
            state = side.backup_state()
            slots = side.alloc(2 * self.page)
            side.restore_state(state)
            return slots

        self.both(call)

    def run(self, steps: int) -> None:
        rng = self.rng
        for _ in range(steps):
            action = rng.choices(
                (self.extend, self.decode, self.finish, self.whole_pages, self.rehearse, self.reset),
                (30, 30, 30, 5, 5, 0.3),
            )[0]
            if action == self.finish:
                self.finish(grouped=rng.random() < 0.3)
            else:
                action()
            if rng.random() < 0.05:
                self.both(lambda side: side.merge_and_sort_free())
            self.assert_sound()


def run(order: str, page: int, need_sort: bool, steps: int) -> dict[str, Any]:
    engine = stock(page, need_sort)
    guard = Guard("full", lambda *_: None)
    ours = substitute(stock(page, need_sort), order, guard)
    assert isinstance(ours, type(engine))
    is_engine_order = order == ENGINE_ORDER[type(engine)]
    stream = Stream([engine, ours] if is_engine_order else [ours], page, seed=page)
    stream.run(steps)
    assert not guard.faults, guard.faults
    return {"order": order, "page": page, "need_sort": need_sort, "sides": len(stream.sides), "calls": stream.calls}


def main() -> None:
    steps = int(sys.argv[1])
    for page in (1, 16):
        for order in ORDERS:
            for need_sort in (False, True):
                print("TOLD " + json.dumps(run(order, page, need_sort, steps)))


main()
