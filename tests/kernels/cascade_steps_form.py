"""Runs where Triton is: a batch decoded step after step over tables that stay where they are, against float64."""

from __future__ import annotations

import json
import random

import torch

from kvpolicy.kernels.cascade_steps import LEVELS, CascadeTables, Shared
from kvpolicy.kernels.cascade_triton import CascadeShape, cascade_attention

SMALL = CascadeShape(block_m=16, block_n=16, programs_per_sm=4, own_block_n=16)
HEADS, QUERIES, DIM = 2, 4, 32
ROW_TOKENS, SLOTS = 256, 4096
#: Nested groups: some of those that share 100 tokens share 37 more, some of these 9 more; two others share 64.
NESTED = [
    Shared(0, 100, [0, 1, 2, 3, 4, 6]),
    Shared(100, 37, [1, 2, 6]),
    Shared(137, 9, [2, 6]),
    Shared(0, 64, [5, 7]),
]
BATCHES: list[list[Shared]] = [[], NESTED, NESTED[:1], [*NESTED[:1], Shared(120, 10, [1, 2])], NESTED[3:]]


class Requests:
    """Rows of slots as an engine keeps them: shared tokens have the same slots, others their own."""

    def __init__(self, count: int, groups: list[Shared], rng: random.Random) -> None:
        free = iter(rng.sample(range(1, SLOTS), SLOTS - 1))
        self.rows = torch.tensor(rng.sample(range(2 * count), count))
        self.req_to_token = torch.zeros((2 * count, ROW_TOKENS + 8), dtype=torch.int32)
        self.lens = torch.zeros(count, dtype=torch.int64)
        shared_to = [0] * count
        for one in groups:
            slots = torch.tensor([next(free) for _ in range(one.tokens)], dtype=torch.int32)
            for request in one.requests:
                self.req_to_token[self.rows[request], one.start_tokens : one.start_tokens + one.tokens] = slots
                shared_to[request] = one.start_tokens + one.tokens
        for request in range(count):
            own = rng.randint(1, 70)
            tokens = shared_to[request] + own
            slots = torch.tensor([next(free) for _ in range(own + 3)], dtype=torch.int32)
            self.req_to_token[self.rows[request], shared_to[request] : tokens + 3] = slots
            self.lens[request] = tokens


def exact(q: torch.Tensor, pool: torch.Tensor, requests: Requests) -> torch.Tensor:
    out = torch.empty(q.shape, dtype=torch.float64)
    for request, (row, tokens) in enumerate(zip(requests.rows, requests.lens, strict=True)):
        slots = requests.req_to_token[row, :tokens].long()
        k, v = pool[:, slots].double().transpose(1, 2)
        scores = q[request].double().view(HEADS, QUERIES, DIM) @ k.transpose(1, 2) * DIM**-0.5
        out[request] = (torch.softmax(scores, -1) @ v).view(-1, DIM)
    return out


def main() -> None:
    seed = torch.seed() % 2**31
    rng = random.Random(seed)
    torch.manual_seed(seed)
    count = 8
    tables = CascadeTables(count, HEADS * QUERIES, HEADS, ROW_TOKENS, "cpu", shape=SMALL)
    where = [tensor.data_ptr() for one in tables.plan.launches for tensor in (*one.tiles, one.member_ids)]
    errors, taken = [], []
    for groups in BATCHES:
        taken.append(len(tables.group(groups)))
        requests = Requests(count, groups, rng)
        pool = torch.full((2, SLOTS, HEADS, DIM), float("nan"), dtype=torch.float16)
        used = requests.req_to_token[requests.rows].flatten().long().unique()
        pool[:, used] = torch.randn((2, len(used), HEADS, DIM)).half()
        for _ in range(3):  # steps: everybody has a token more
            q = (2 * torch.randn((count, HEADS * QUERIES, DIM))).half()
            tables.stage(requests.req_to_token, requests.rows, requests.lens)
            got = cascade_attention(q, pool[0], pool[1], tables.pages, 1, tables.plan, DIM**-0.5)
            wanted = exact(q, pool, requests)
            errors.append(float((got.double() - wanted).norm() / wanted.norm()))
            requests.lens += 1
    # Without the group that its requests' own tokens begin behind, a prefix is not read.
    tables.group(NESTED[:1])
    requests = Requests(count, NESTED[:1], rng)
    pool = torch.randn((2, SLOTS, HEADS, DIM)).half()
    q = (2 * torch.randn((count, HEADS * QUERIES, DIM))).half()
    tables.plan.launches[0].tiles[1].zero_()
    tables.stage(requests.req_to_token, requests.rows, requests.lens)
    got = cascade_attention(q, pool[0], pool[1], tables.pages, 1, tables.plan, DIM**-0.5)
    wanted = exact(q, pool, requests)
    lost = float((got.double() - wanted).norm() / wanted.norm())

    too_deep = [Shared(10 * level, 10, [0, 1]) for level in range(LEVELS + 1)]
    pairs = [Shared(0, 10, [2 * pair, 2 * pair + 1]) for pair in range(count // 2)]
    stays = where == [tensor.data_ptr() for one in tables.plan.launches for tensor in (*one.tiles, one.member_ids)]
    try:
        CascadeTables(count, HEADS * QUERIES, HEADS, ROW_TOKENS, "cpu", torch.zeros(count * ROW_TOKENS - 1))
        short = ""
    except ValueError as error:
        short = str(error)
    told = {
        "short": short,
        "errors": errors,
        "lost": lost,
        "taken": taken,
        "levels": len(tables.group(too_deep)),
        "pairs": len(tables.group(pairs)),
        "tiles": tables.tiles,
        "stays": stays,
    }
    print("TOLD " + json.dumps({"seed": seed, **told}))


if __name__ == "__main__":
    main()
