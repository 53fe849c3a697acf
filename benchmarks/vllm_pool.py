"""vLLM's block pool with a policy attached, beside stock: what one block costs from allocation to eviction.

    python benchmarks/vllm_pool.py --blocks 100000 --batch 16

Every side is a full pool of that many free, cached blocks in chains of ``--batch``. Two operations, each as the
scheduler calls it (the hooks that know the request included), all of our bookkeeping inside the timed part. A pool of
that size is evicted up to 64 blocks ahead of need, so every fourth turnover pays for four:

``turnover``  a request evicts ``--batch`` blocks, caches its own in them, and frees them; a new prompt each time
``hit``       a request takes ``--batch`` cached blocks of a random resident prompt, one more block, and frees them

Sides: ``stock``, then ``lru`` (vLLM's own queue in our pool), then our index: ``lru (index)``, other orders, and the
shipped policies. Windows of all sides alternate; each figure is the median over windows of CPU us a block (and the
smallest, nearest to an idle machine), its ratio to stock's in the same round (median of ratios), and what it adds.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import os
import platform
import random
import shlex
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvpolicy_vllm import cache_hooks
from kvpolicy_vllm.cache_pool import PolicyBlockPool
from vllm.v1.core.block_pool import BlockPool

from kvpolicy.compiler import compile_policy
from kvpolicy.language import load_policy, policy_from_flat
from kvpolicy.runtime.active import ActivePolicy

CLOCK = time.thread_time
BLOCK_TOKENS = 16
WHY = "+why"  # ends the name of a side whose evictions are remembered, to explain misses
POLICIES_FOLDER = Path(__file__).resolve().parent.parent / "policies"
SHIPPED = ("adaptive", "agentic", "batch", "chat", "long_context", "multi_tenant", "rag")

_LRU: dict[str, Any] = {"policy": "lru"}
EVICTIONS: dict[str, dict[str, Any] | None] = {
    "stock": None,
    "lru": _LRU,
    "lru (index)": {**_LRU, "core": "kvpolicy"},
    "lfu": {"policy": "lfu"},
    "gdsf": {"policy": "gdsf"},
    "s3fifo": {"policy": "s3fifo"},
    "sieve": {"policy": "sieve"},
    "hit_density": {"policy": "hit_density"},
    "reuse_rate": {"policy": "reuse_rate"},
    "score": {"score": "log1p(hits) / (1 + idle_requests)"},
}


class Side:
    """One pool, and requests as the scheduler would send them."""

    def __init__(self, name: str, blocks: int, batch: int) -> None:
        self.name, self.batch = name, batch
        self.rng = random.Random(1)
        is_stock = name == "stock"
        make: Any = BlockPool if is_stock else PolicyBlockPool
        self.pool = make(blocks + 1, True, BLOCK_TOKENS)
        if not is_stock:
            self.active = active_policy(name)
            cache_hooks.attach(self.active, self.pool, None, None, BLOCK_TOKENS)
        manager = SimpleNamespace(block_pool=self.pool)
        scheduler = SimpleNamespace(kv_cache_manager=manager)
        self.hooks = [
            (cache_hooks.arriving(lambda *_: None), scheduler), (cache_hooks.looking_up(lambda *_: None), manager)
        ]  # fmt: skip
        self.count = 0
        self.prompts: list[list[bytes]] = []
        for _ in range(blocks // batch):
            self.turnover(self.request(self.new_hashes()))
        for request in [self.request(self.hashes_of_some()) for _ in range(blocks // batch // 4)]:
            self.hit(request)

    def new_hashes(self) -> list[bytes]:
        self.count += 1
        digest = hashlib.sha256(str(self.count).encode()).digest()
        hashes = [i.to_bytes(4, "big") + digest[4:] for i in range(self.batch)]
        self.prompts.append(hashes)
        return hashes

    def hashes_of_some(self) -> list[bytes]:
        """A prompt that is resident in whole, found by trial among the recent ones."""
        recent = self.prompts[-max(1, self.pool.num_gpu_blocks // self.batch // 2) :]
        while True:
            hashes = self.rng.choice(recent)
            if all(self.pool.get_cached_block(block_hash, [0]) for block_hash in hashes):
                return hashes

    def request(self, hashes: list[bytes]) -> Any:
        self.arrivals = getattr(self, "arrivals", 0) + 1
        return SimpleNamespace(
            request_id=str(self.arrivals), block_hashes=hashes, num_prompt_tokens=len(hashes) * BLOCK_TOKENS,
            arrival_time=1e9 + self.arrivals * 0.01, sampling_params=None, lora_request=None, priority=0,
            cache_salt=f"tenant-{self.arrivals % 7}", session_id=None,
        )  # fmt: skip

    def turnover(self, request: Any) -> None:
        self._arrives(request)
        blocks = self.pool.get_new_blocks(self.batch)
        self.pool.cache_full_blocks(request, blocks, 0, self.batch, BLOCK_TOKENS, 0)
        self.pool.free_blocks(reversed(blocks))

    def hit(self, request: Any) -> None:
        self._arrives(request)
        blocks = [self.pool.get_cached_block(block_hash, [0])[0] for block_hash in request.block_hashes]
        self.pool.touch(blocks)
        self.pool.free_blocks(reversed(blocks + self.pool.get_new_blocks(1)))

    def _arrives(self, request: Any) -> None:
        if self.name != "stock":
            for hook, of in self.hooks:
                hook(of, request)

    def window_us(self, operation: str, requests: int) -> float:
        """CPU us a block over that many requests."""
        if operation == "turnover":
            ready, run = [self.request(self.new_hashes()) for _ in range(requests)], self.turnover
        else:
            ready, run = [self.request(self.hashes_of_some()) for _ in range(requests)], self.hit
        start = CLOCK()
        for request in ready:
            run(request)
        return (CLOCK() - start) / (requests * self.batch) * 1e6


def active_policy(name: str) -> ActivePolicy:
    explains, name = name.endswith(WHY), name.removesuffix(WHY)
    if name in SHIPPED:
        flat = load_policy(POLICIES_FOLDER / f"{name}.yaml").flat
    else:
        metadata = {"name": "benchmark"}
        flat = {
            "apiVersion": "kvpolicy/v1", "kind": "KVPolicy", "metadata": metadata, "eviction": EVICTIONS[name]
        }  # fmt: skip
    policy = policy_from_flat(flat, engine="vllm")
    compiled = compile_policy(policy, "vllm")
    compiled = replace(compiled, eviction=replace(compiled.eviction, explains=explains))
    return ActivePolicy(policy, flat, "", "scheduler", compiled=compiled)


def print_machine() -> None:
    from vllm.version import __version__

    lines = Path("/proc/cpuinfo").read_text().splitlines() if os.path.exists("/proc/cpuinfo") else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    print(f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
          f"Python {platform.python_version()}, vLLM {__version__}")  # fmt: skip
    start = CLOCK()
    total = 0
    for i in range(1_000_000):
        total += i
    print(f"1M loop turns: {(CLOCK() - start) * 1e3:.0f} ms (about 40 on an idle current core)")
    print(f"python {shlex.join(sys.argv)}\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=16, help="blocks a request")
    parser.add_argument("--rounds", type=int, default=21, help="windows of each side")
    parser.add_argument("--requests", type=int, default=256, help="requests a window")
    parser.add_argument("--sides", default=",".join([*EVICTIONS, *SHIPPED]))
    arguments = parser.parse_args()
    print_machine()
    names = arguments.sides.split(",")
    sides = [Side(name, arguments.blocks, arguments.batch) for name in ["stock", *(n for n in names if n != "stock")]]
    gc.collect()
    gc.freeze()  # as the EngineCore does once it is built
    for operation in ("turnover", "hit"):
        figures: dict[str, list[float]] = {side.name: [] for side in sides}
        for _ in range(arguments.rounds):
            for side in sides:
                figures[side.name].append(side.window_us(operation, arguments.requests))
        stock = figures["stock"]
        print(f"{operation:14} us a block (smallest)   to stock   adds us")
        for name, own in figures.items():
            ratio = statistics.median(a / b for a, b in zip(own, stock, strict=True))
            adds = statistics.median(a - b for a, b in zip(own, stock, strict=True))
            print(f"{name:14} {statistics.median(own):10.2f} {f'({min(own):.2f})':>10} {ratio:10.2f} {adds:9.2f}")
        print(flush=True)
    for side in sides[1:]:
        guard = side.pool.guard
        assert not side.active.fallbacks, side.active.fallbacks
        if guard is not None:
            guard.units.check(side.pool.blocks)


if __name__ == "__main__":
    main()
