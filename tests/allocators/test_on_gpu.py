"""On a GPU: the ids of the host's lists, and no call that waits for the device."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from kvpolicy.allocators import ORDERS, make_free_list
from kvpolicy.kernels import pages

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

UNITS = 5000


@contextmanager
def no_waiting() -> Iterator[None]:
    """PyTorch raises where a call would wait for the GPU."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_waiting_is_seen() -> None:
    with pytest.raises(RuntimeError), no_waiting():
        torch.ones(3, device="cuda").sum().item()


@pytest.mark.parametrize("order", ORDERS)
def test_the_hosts_ids_without_waiting(order: str) -> None:
    host, gpu = make_free_list(order, UNITS, "cpu"), make_free_list(order, UNITS, "cuda")
    for free in (host, gpu):
        free.give(free.take(1))  # compiles, which may wait
    rng = random.Random(0)
    held: list[tuple[torch.Tensor, torch.Tensor]] = []
    for _ in range(200):
        if held and rng.random() < 0.5:
            ids, on_gpu = held.pop(rng.randrange(len(held)))
            host.give(ids)
            with no_waiting():
                gpu.give(on_gpu)
            continue
        counts = [rng.randrange(20) for _ in range(rng.randrange(1, 6))]
        if sum(counts) > host.available:
            continue
        last = [int(rng.choice(held)[0][-1]) if held and rng.random() < 0.5 else -1 for _ in counts]
        ids, last_on_gpu = host.take_after(torch.tensor(last), counts), torch.tensor(last, device="cuda")
        with no_waiting():
            on_gpu = gpu.take_after(last_on_gpu, counts)
        assert torch.equal(on_gpu.cpu(), ids)
        if ids.numel():
            held.append((ids, on_gpu))
        assert gpu.available == host.available
    assert sorted(gpu.all_free().tolist()) == sorted(host.all_free().tolist())


@pytest.mark.parametrize("page", [2, 16, 64])
def test_slots_without_waiting(page: int) -> None:
    rng = random.Random(page)
    prefix = torch.tensor([rng.randrange(200) for _ in range(700)])
    seq = prefix + torch.tensor([rng.randrange(1, 200) for _ in range(700)])
    last = (prefix - 1) % page + page
    counts = pages.new_pages_of_extend(prefix, seq, page)
    new_pages, tokens = torch.randperm(sum(counts)) + 2, int((seq - prefix).sum())
    expected = pages.extend_slots(prefix, seq, last, new_pages, tokens, page)
    step = seq + 1
    opened = torch.randperm(sum(pages.new_pages_of_decode(step, page))) + 2
    expected_step = pages.decode_slots(step, last, opened, page)
    gpu = [tensor.cuda() for tensor in (prefix, seq, last, new_pages, step, opened)]
    pages.extend_slots(*gpu[:4], tokens, page)  # compiles, which may wait
    pages.decode_slots(gpu[4], gpu[2], gpu[5], page)
    with no_waiting():
        slots = pages.extend_slots(*gpu[:4], tokens, page)
        step_slots = pages.decode_slots(gpu[4], gpu[2], gpu[5], page)
    assert torch.equal(slots.cpu(), expected)
    assert torch.equal(step_slots.cpu(), expected_step)
