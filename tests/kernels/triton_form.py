"""Runs where Triton is: its forms of the kernels against those in PyTorch, on CPU tensors in Triton's interpreter."""

from __future__ import annotations

import json
import random

import torch

from kvpolicy.kernels import pages, pages_triton


def tensor(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def check_pages(rng: random.Random, batch: int, page_size: int, longest: int) -> None:
    prefix = tensor([rng.choice((0, rng.randrange(longest))) for _ in range(batch)])
    seq = prefix + tensor([rng.choice((0, 1, rng.randrange(longest))) for _ in range(batch)])
    last = tensor([rng.randrange(10_000) for _ in range(batch)]) * page_size + (prefix - 1) % page_size
    tokens = int((seq - prefix).sum())
    new = tensor(rng.sample(range(1, 1 << 20), sum(pages.new_pages_of_extend(prefix, seq, page_size))))
    for kind in (torch.int64, torch.int32):
        given = (prefix.to(kind), seq.to(kind), last.to(kind), new, tokens, page_size)
        assert torch.equal(pages_triton.extend_slots(*given), pages.extend_slots_torch(*given))

    after = seq + 1
    new = tensor(rng.sample(range(1, 1 << 20), sum(pages.new_pages_of_decode(after, page_size))))
    if new.numel():
        step = (after, last, new, page_size)
        assert torch.equal(pages_triton.decode_slots(*step), pages.decode_slots_torch(*step))


def main() -> None:
    assert pages_triton.available()
    rng, cases = random.Random(0), 0
    for page_size in (2, 16, 64):
        for batch, longest in ((1, 300), (2, 5), (33, 40), (1100, 3)):
            for _ in range(3):
                check_pages(rng, batch, page_size, longest)
                cases += 1
    print("TOLD " + json.dumps({"page cases": cases}))


main()
