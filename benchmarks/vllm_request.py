"""What a policy adds to one request on vLLM's scheduler thread: vLLM's KVCacheManager with our pool, beside stock.

    python benchmarks/vllm_request.py --blocks 20000 --prompt-blocks 64

Every side is a full pool. A request is what the scheduler does with it: ``add_request``'s hook, ``get_computed_blocks``
and ``allocate_slots`` (which caches its blocks and evicts what is in the way), ``free``. Its tokens are hashed before.

``new``     a prompt of ``--prompt-blocks`` blocks, and a token, that nobody asked before
``again``   a resident one: all of its blocks are hit

Figures are CPU us: of a request, and what it adds to stock's, medians over windows of all sides in turn.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from typing import Any

from kvpolicy_vllm import cache_hooks
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import block_pool, kv_cache_coordinator
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request
from vllm_pool import BLOCK_TOKENS, EVICTIONS, SHIPPED, active_policy, print_machine

CLOCK = time.thread_time


class Side:
    """One manager and its full pool."""

    def __init__(self, name: str, blocks: int, prompt_blocks: int) -> None:
        import torch

        self.name, self.prompt_blocks = name, prompt_blocks
        self.rng, self.count = random.Random(1), 0
        if name == "stock":
            kv_cache_coordinator.BlockPool = block_pool.BlockPool
        else:
            self.active = active_policy(name)
            cache_hooks.install(self.active, None)
        spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=32, dtype=torch.float32)
        self.manager: Any = KVCacheManager(
            KVCacheConfig(blocks + 1, [], [KVCacheGroupSpec(["layer"], spec)]),
            max_model_len=1 << 16,
            scheduler_block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
        )
        self.scheduler = type("Scheduler", (), {"kv_cache_manager": self.manager})()
        self.arrive = cache_hooks.arriving(lambda *_: None)
        self.hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)
        self.prompts: list[list[int]] = []
        for _ in range(blocks // prompt_blocks + 1):
            self.serve(self.request(self.prompt()))

    def prompt(self) -> list[int]:
        self.prompts.append(self.rng.choices(range(1000), k=self.prompt_blocks * BLOCK_TOKENS + 1))
        return self.prompts[-1]

    def request(self, tokens: list[int]) -> Any:
        self.count += 1
        return Request(
            request_id=str(self.count), prompt_token_ids=tokens, sampling_params=SamplingParams(max_tokens=64),
            pooling_params=None, arrival_time=1e6 + self.count * 0.01, cache_salt=f"tenant-{len(tokens) % 7}",
            block_hasher=self.hasher,
        )  # fmt: skip

    def serve(self, request: Any) -> None:
        manager = self.manager
        self.arrive(self.scheduler, request)
        cached, tokens, _ = manager.get_computed_blocks(request)
        assert manager.allocate_slots(request, request.num_tokens - tokens, tokens, cached) is not None
        request.num_computed_tokens = request.num_tokens
        manager.free(request)

    def window_us(self, what: str, requests: int) -> float:
        """CPU us a request."""
        recent = len(self.prompts) // 2
        ready = [
            self.request(self.prompt() if what == "new" else self.rng.choice(self.prompts[-recent:]))
            for _ in range(requests)
        ]
        start = CLOCK()
        for request in ready:
            self.serve(request)
        return (CLOCK() - start) / requests * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=20_000)
    parser.add_argument("--prompt-blocks", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15, help="windows of each side")
    parser.add_argument("--requests", type=int, default=32, help="requests a window")
    parser.add_argument("--sides", default=",".join([*EVICTIONS, *SHIPPED]))
    arguments = parser.parse_args()
    print_machine()
    init_none_hash(sha256)
    names = ["stock", *(name for name in arguments.sides.split(",") if name != "stock")]
    sides = [Side(name, arguments.blocks, arguments.prompt_blocks) for name in names]
    gc.collect()
    gc.freeze()
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for what in ("new", "again"):
        taken: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(arguments.rounds):
            for side in sides:
                taken[side.name].append(side.window_us(what, arguments.requests))
        for name, own in taken.items():
            adds = statistics.median(a - b for a, b in zip(own, taken["stock"], strict=True))
            figures[name].append((statistics.median(own), adds))
    print("us a request     new      adds     again      adds")
    for name, ((new, new_adds), (again, again_adds)) in figures.items():
        print(f"{name:14} {new:7.0f} {new_adds:9.0f} {again:9.0f} {again_adds:9.0f}")
    for side in sides[1:]:
        assert not side.active.fallbacks, side.active.fallbacks


if __name__ == "__main__":
    main()
