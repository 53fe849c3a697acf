"""Do tensor-parallel ranks of a real SGLang server evict the same while its policy is swapped under pressure?

    python benchmarks/rank_swaps.py --model DIR --ranks 2 -- --attention-backend triton --load-format dummy

One server whose pool holds a third of what is asked for, always full of requests; policies take over one after the
other. At each swap the ranks gather the digest of all they have evicted so far: printed, with how long the swap took.
Twenty prompts are asked one at a time before and after, and outputs that differ then are counted. What follows `--`
goes to the server. The exit code is 1 if ranks evicted differently, a swap was refused, or a policy failed.
"""

from __future__ import annotations

import argparse
import concurrent.futures as futures
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from pressure import machine, split_arguments
from sglang_outputs import free_port
from sglang_pressure import Side, launch_command, start_all

PROMPTS, PROMPT_TOKENS, NEW_TOKENS, BATCH = 600, 200, 8, 32
PAGE_TOKENS = 16
POOL_TOKENS = PROMPTS * PROMPT_TOKENS // 3
EVICTIONS: list[dict[str, Any]] = [
    {"policy": "lru", "rules": [{"name": "hit", "match": "hits >= 2", "retain": {"weight": 8, "ttl": "2s"}}]},
    {"score": "log1p(hits) / (1 + idle_s)"},
    {"policy": "gdsf", "tenants": {"by": "cache_salt", "cap": "60%"}},
    {"policy": "adaptive"},
    {"policy": "sieve"},
]


def document(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "kvpolicy/v1",
        "kind": "KVPolicy",
        "metadata": {"name": f"number-{number}"},
        "cache": {"page_size": PAGE_TOKENS},
        "eviction": EVICTIONS[number % len(EVICTIONS)],
    }


def status(side: Side) -> dict[str, Any]:
    block: dict[str, Any] = json.loads(side.call("/server_info"))["internal_states"][0]["kvpolicy"]
    return block


def one_at_a_time(side: Side, prompts: list[list[int]]) -> list[Any]:
    return [side.generate([prompt], NEW_TOKENS)[0]["output_ids"] for prompt in prompts]


def pressed(side: Side, prompts: list[list[int]], stop: threading.Event) -> int:
    """Requests in batches until `stop`; how many were answered."""
    rng, count = random.Random(7), 0
    while not stop.is_set():
        asked = [min(rng.randrange(PROMPTS), rng.randrange(PROMPTS)) for _ in range(BATCH)]
        count += len(side.generate([prompts[which] for which in asked], NEW_TOKENS))
    return count


def swaps(side: Side, count: int, between_s: float) -> int:
    """Print each one; 1 if something is wrong."""
    wrong, took_s = 0, []
    for number in range(1, count + 1):
        time.sleep(between_s)
        start_s = time.perf_counter()
        side.call("/kvpolicy/apply", {"policy": document(number), "source": "rank_swaps"})
        took_s.append(time.perf_counter() - start_s)
        block = status(side)
        ranks = block["live"]["rank_victim_digests"]
        same = len(set(ranks)) == 1 and len(ranks) > 1
        wrong |= not same or block["live"]["state"] != "applied"
        verdict = "equal" if same else "DIFFERENT"
        print(f"{number:>3} {took_s[-1]:6.2f} s {block['evict_calls']:>7} evictions  {verdict}  {' '.join(ranks)}")
    print(f"a swap took {statistics.median(took_s):.2f} s in the median, {max(took_s):.2f} s at most")
    fallbacks = status(side)["fallbacks"]
    print(f"fallbacks: {fallbacks or 'none'}")
    return int(wrong or bool(fallbacks))


def main() -> int:
    own, engine_arguments = split_arguments(sys.argv[1:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--swaps", type=int, default=20)
    parser.add_argument("--between-s", type=float, default=1.0)
    parser.add_argument("--vocabulary", type=int, default=40_000)
    parser.add_argument("--start-s", type=float, default=300)
    parser.add_argument("--logs", type=Path, default=Path("/tmp"))
    args = parser.parse_args(own)
    os.environ["KVPOLICY_APPLY"] = "loopback"
    print("machine:", machine())
    rng = random.Random(3)
    prompts = [[rng.randrange(10, args.vocabulary) for _ in range(PROMPT_TOKENS)] for _ in range(PROMPTS)]
    tensor_parallel = ("--tp-size", str(args.ranks), "--max-total-tokens", str(POOL_TOKENS))
    command = launch_command(args.model, *tensor_parallel, *engine_arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.yaml"
        path.write_text(json.dumps(document(0)))
        side = Side("ranks", str(path), free_port(), args.logs / "rank-swaps.log")
        try:
            start_all([side], command, args.start_s)
            before = one_at_a_time(side, prompts[:20])
            stop = threading.Event()
            with futures.ThreadPoolExecutor(2) as pool:
                clients = [pool.submit(pressed, side, prompts, stop) for _ in range(2)]
                try:
                    failed = swaps(side, args.swaps, args.between_s)
                finally:
                    stop.set()
                answered = sum(client.result() for client in clients)
            after = one_at_a_time(side, prompts[:20])
            differing = sum(a != b for a, b in zip(before, after, strict=True))
            print(f"{answered} requests answered meanwhile; of 20 asked before and after, {differing} differ")
            return failed
        finally:
            side.stop()


if __name__ == "__main__":
    raise SystemExit(main())
