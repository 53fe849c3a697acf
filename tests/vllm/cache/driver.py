"""Drives a real KVCacheManager as vLLM's scheduler does, without a model: the same calls, in the same order."""

from __future__ import annotations

import random
from typing import Any

from activation import activate
from kvpolicy_vllm import cache_hooks
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import block_pool, kv_cache_coordinator
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from kvpolicy.live.preparation import Both
from kvpolicy.runtime.active import ActivePolicy

BLOCK_TOKENS = 16

init_none_hash(sha256)
_hasher = get_request_block_hasher(BLOCK_TOKENS, sha256)


def groups(*specs: Any) -> list[Any]:
    return [KVCacheGroupSpec([f"layer{i}"], spec) for i, spec in enumerate(specs)]


def full_attention() -> Any:
    import torch

    return FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=32, dtype=torch.float32)


class Driver:
    """`eviction` is the policy's section; "stock" is vLLM's own pool, untouched."""

    def __init__(self, blocks: int, eviction: dict[str, Any] | str, *, events: bool = False, **sections: Any) -> None:
        self.active: ActivePolicy | None = None
        if isinstance(eviction, dict):
            self.active = activate("vllm", eviction, **sections)
            cache_hooks.install(self.active, None)
        else:
            kv_cache_coordinator.BlockPool = block_pool.BlockPool
        self.manager = KVCacheManager(
            KVCacheConfig(num_blocks=blocks + 1, kv_cache_tensors=[], kv_cache_groups=groups(full_attention())),
            max_model_len=1 << 16,
            scheduler_block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
            enable_kv_cache_events=events,
        )
        self.pool = self.manager.block_pool
        self.running: list[Request] = []
        self.evicted: list[bytes] = []  # contents, in order
        self._count = 0
        self._watch()

    def _watch(self) -> None:
        remove = self.pool._maybe_evict_cached_block

        def watched(block: Any) -> bool:
            block_hash = block.block_hash
            gone: bool = remove(block)
            if gone:
                self.evicted.append(block_hash)
            return gone

        self.pool._maybe_evict_cached_block = watched

    # -- what a scheduler does --

    def request(
        self,
        tokens: list[int],
        *,
        salt: str | None = None,
        priority: int = 0,
        arrival_ms: int | None = None,
        **extra: Any,
    ) -> Request:
        self._count += 1
        return Request(
            request_id=str(self._count),
            prompt_token_ids=tokens,
            sampling_params=SamplingParams(max_tokens=64, extra_args=extra or None),
            pooling_params=None,
            arrival_time=(1_000_000 + (self._count * 1000 if arrival_ms is None else arrival_ms)) / 1000,
            cache_salt=salt,
            priority=priority,
            block_hasher=_hasher,
        )

    def step(self) -> None:
        """What the hook of `Scheduler.schedule` does."""
        guard = getattr(self.pool, "guard", None)
        if guard is not None:
            guard.withdraw()

    def start(self, request: Request) -> int | None:
        """Schedule a waiting request: its cached tokens, None if there is no room."""
        self.step()
        cached, tokens, _ = self.manager.get_computed_blocks(request)
        blocks = self.manager.allocate_slots(request, request.num_tokens - tokens, tokens, cached)
        if blocks is None:
            return None
        request.num_computed_tokens = request.num_tokens
        self.running.append(request)
        return int(tokens)

    def decode(self, request: Request, token: int) -> bool:
        """One step; False: no room for it."""
        self.step()
        request.append_output_token_ids(token)
        if self.manager.allocate_slots(request, 1) is None:
            return False
        request.num_computed_tokens = request.num_tokens
        return True

    def finish(self, request: Request) -> None:
        self.running.remove(request)
        self.manager.free(request)

    def preempt(self, request: Request) -> None:
        self.finish(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1

    def serve(self, tokens: list[int], **request: Any) -> int:
        """A whole request without output: its cached tokens."""
        made = self.request(tokens, **request)
        cached = self.start(made)
        assert cached is not None, "no room"
        self.finish(made)
        return cached

    def resident(self, tokens: list[int], salt: str | None = None) -> int:
        """Tokens that a request with this prompt would find; nothing is touched."""
        return int(self.manager.get_computed_blocks(self.request(tokens, salt=salt))[1])

    # -- what must hold --

    def check(self) -> None:
        pool, queue = self.pool, self.pool.free_block_queue
        free = queue.get_all_free_blocks()
        assert len(free) == queue.num_free_blocks == len({id(block) for block in free}), "the free count is off"
        assert all(block.ref_cnt == 0 and not block.is_null for block in free), "a block in use is free"
        in_use = [block for block in pool.blocks if block.ref_cnt and not block.is_null]
        assert len(free) + len(in_use) == pool.num_gpu_blocks - 1, "a block was lost"
        guard = getattr(pool, "guard", None)
        if guard is not None and not guard.is_stale and not self._is_finding(guard):
            units = pool.guard.units
            units.check(pool.blocks, is_off=guard.is_off)
            assert units.free_units() == sum(block.block_hash is not None for block in free), "free contents miscounted"
            for rule, (held_tokens, _) in units.index.protected_tokens().items():
                held = sum(
                    units.index.meta(run).tokens for run in units.runs.each() if units.index.rule_of(run) == rule
                )
                assert held_tokens == held, "a rule's own tokens were miscounted"

    @staticmethod
    def _is_finding(guard: Any) -> bool:
        """Whether a policy is being prepared where nobody recorded anything, so that some contents are unknown yet."""
        index = guard.units.index
        return guard.is_off and isinstance(index, Both) and not index.preparation.is_ready


def random_run(driver: Driver, seed: int, steps: int, *, copies: bool = True, drops: bool = True) -> list[Any]:
    """A seeded stream of everything a scheduler does; what it got each time, block numbers included.

    `copies`: prompts may end at a block's end, whose last block vLLM then computes and caches a second time. `drops`:
    the engine empties the cache, or throws single blocks out of it.
    """
    rng = random.Random(seed)
    stems = [[rng.randrange(1000) for _ in range(BLOCK_TOKENS * rng.randrange(1, 7))] for _ in range(6)]
    waiting: list[Request] = []
    seen: list[Any] = []

    def blocks(request: Request) -> list[int]:
        return [block.block_id for block in driver.manager.get_blocks(request.request_id).blocks[0]]

    for _ in range(steps):
        choice = rng.random()
        if choice < 0.45 or not driver.running:
            stem = rng.choice(stems)
            extra = rng.choice([0, 16, 40]) if copies else rng.choice([3, 20, 45])
            tokens = stem + [rng.randrange(1000) for _ in range(extra)]
            request = waiting.pop() if waiting and rng.random() < 0.5 else driver.request(
                tokens, salt=rng.choice([None, None, "a", "b"]), priority=rng.choice([0, 0, 1, 3])
            )  # fmt: skip
            cached = driver.start(request)
            seen.append((cached, None if cached is None else blocks(request)))
        elif choice < 0.7:
            request = rng.choice(driver.running)
            if not driver.decode(request, rng.randrange(1000)):
                driver.preempt(request)
                waiting.append(request)
            else:
                seen.append(blocks(request))
        elif choice < 0.93:
            driver.finish(rng.choice(driver.running))
        elif choice < 0.97:
            request = rng.choice(driver.running)
            driver.preempt(request)
            waiting.append(request)
        elif drops:
            if rng.random() < 0.3:
                for request in list(driver.running):
                    driver.finish(request)
                seen.append(driver.manager.reset_prefix_cache())
            else:
                driver.manager.evict_blocks({rng.randrange(1, driver.pool.num_gpu_blocks) for _ in range(3)})
        driver.check()
    for request in list(driver.running):
        driver.finish(request)
    driver.check()
    return seen
