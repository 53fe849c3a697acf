"""Runs where Triton is: its forms of the kernels against those in PyTorch, on CPU tensors in Triton's interpreter."""

from __future__ import annotations

import json
import random

import torch

from kvpolicy.kernels import bitmap, bitmap_triton, page_plan, page_plan_triton, pages, pages_triton


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


def check_bitmap(rng: random.Random, blocks: int, share: float) -> None:
    flags = [rng.random() < share for _ in range(blocks * bitmap.BLOCK)]
    maps = [torch.tensor(flags) for _ in range(2)]
    counts = [found.view(-1, bitmap.BLOCK).sum(1, dtype=torch.int32) for found in maps]
    held: list[torch.Tensor] = []
    for _ in range(6):
        count = rng.randrange(min(3000, int(counts[0].sum())) + 1)
        taken = bitmap_triton.take_lowest(maps[0], counts[0], count)
        assert torch.equal(taken, bitmap.take_lowest_torch(maps[1], counts[1], count))
        held.append(taken)
        for one_map, one_counts in zip(maps, counts, strict=True):
            bitmap.put_back(one_map, one_counts, held[0][::2])
        held[0] = held[0][1::2]
        assert torch.equal(*maps)
        assert torch.equal(*counts)
        assert torch.equal(counts[0], maps[0].view(-1, bitmap.BLOCK).sum(1, dtype=torch.int32))


def check_page_plan(rng: random.Random, batch: int, page_size: int, longest: int) -> None:
    """The largest batch needs several steps of the sum, the longest request several of the copy."""
    count = -(-longest // page_size)
    pages = torch.randperm(batch * count, dtype=torch.int32).view(batch, count)
    req_to_token = (pages[:, :, None] * page_size + torch.arange(page_size, dtype=torch.int32)).flatten(1)
    rows = tensor(rng.sample(range(batch), batch))
    lens = tensor([rng.choice((0, 1, min(page_size, longest), rng.randrange(longest) + 1)) for _ in range(batch)])
    for kind in (torch.int64, torch.int32):
        written = []
        for write in (page_plan_triton.write_page_plan, page_plan.write_page_plan_torch):
            entries = page_plan.most_pages(int(lens.sum()), batch, page_size)
            into = [torch.full((count,), -1, dtype=torch.int32) for count in (batch + 3, entries + 3, batch + 2)]
            names = dict(zip(("indptr", "indices", "last_page_tokens"), into, strict=True))
            write(req_to_token, rows.to(kind), lens.to(kind), page_size, **names)
            written.append(torch.cat(into))
        assert torch.equal(*written)


def main() -> None:
    assert pages_triton.available()
    rng, cases = random.Random(0), 0
    maps = [(1, 1.0), (3, 0.5), (5, 0.02), (2, 0.0)]
    for blocks, share in maps:
        check_bitmap(rng, blocks, share)
    for page_size in (2, 16, 64):
        for batch, longest in ((1, 300), (2, 5), (33, 40), (1100, 3)):
            for _ in range(3):
                check_pages(rng, batch, page_size, longest)
                cases += 1
    plans = [(1, 1, 900), (1, 16, 5000), (3, 16, 40), (70, 64, 90), (1100, 2, 70)]
    for plan in plans:
        check_page_plan(rng, *plan)
    print("TOLD " + json.dumps({"page cases": cases, "maps": len(maps), "plans": len(plans)}))


main()
