"""How scattered SGLang's slots become under churn, by page size: what a status of a long-running server would say.

    python benchmarks/fragmentation.py --pool 262144 --requests 4000

No model and no server: the engine's own allocators, fresh from start, under a batch of running requests. A request
takes its prompt at once and then one token a step, side by side with the others; when it ends, all of its slots are
freed. Printed once the pool was turned over many times: contiguous runs of a running request's slots, the free pages'
runs, and whether an allocation of all that is free succeeds.
"""

from __future__ import annotations

import argparse
import random
import statistics
from typing import Any

import torch
from engine_caches import print_machine
from kvpolicy_sglang.fragmentation import runs_in_order, runs_of_set
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator


def churn(page: int, pool: int, requests: int, batch: int) -> dict[str, Any]:
    rng = random.Random(1)
    common: dict[str, Any] = {"dtype": torch.float16, "device": "cpu", "kvcache": None, "need_sort": False}
    if page == 1:
        allocator: Any = TokenToKVPoolAllocator(size=pool, **common)
    else:
        allocator = PagedTokenToKVPoolAllocator(size=pool, page_size=page, **common)
    running: list[list[Any]] = []  # [chunks of slots, tokens in the last page, steps left]

    def take(tokens: int) -> Any:
        return allocator.alloc(-(-tokens // page) * page)

    ended, turned, fresh = 0, 0, None
    while ended < requests:
        while len(running) < batch:
            prompt, steps = int(rng.lognormvariate(6.5, 1.0)) + 1, int(rng.lognormvariate(5.0, 0.8)) + 1
            slots = take(min(prompt, pool // batch // 2))
            running.append([[slots], prompt % page or page, min(steps, pool // batch // 2)])
            turned += len(slots)
        for request in running:
            if request[1] == page:  # its page is full
                request[0].append(take(1))
                turned += page
                request[1] = 0
            request[1] += 1
            request[2] -= 1
        if fresh is None and turned > pool // 4:
            fresh = [runs_in_order(torch.cat(request[0])) for request in running]
        for request in running:
            if request[2] <= 0:
                allocator.free(torch.cat(request[0]))
                ended += 1
        running = [request for request in running if request[2] > 0]
    runs = [runs_in_order(torch.cat(request[0])) for request in running]
    tokens = [sum(map(len, request[0])) for request in running]
    free = allocator.free_pages
    free_runs, longest = runs_of_set(free)
    return {
        "page": page,
        "turnovers": turned / pool,
        "tokens": statistics.fmean(tokens),
        "fresh": statistics.fmean(fresh or [0]),
        "runs": statistics.fmean(runs),
        "free": len(free),
        "free runs": free_runs,
        "longest": longest,
        "all free at once": allocator.alloc(len(free) * page) is not None,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pool", type=int, default=262144)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pages", default="1,16,64")
    args = parser.parse_args()
    print_machine()
    for page in map(int, args.pages.split(",")):
        print({key: round(value, 1) if isinstance(value, float) else value
               for key, value in churn(page, args.pool, args.requests, args.batch).items()}, flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
