"""The same prompts through in-process LLMs, one a policy: outputs and figures of each as a JSON line."""

from __future__ import annotations

import argparse
import json
import random
from typing import Any

from activation import activate
from kvpolicy_vllm import cache_guard
from kvpolicy_vllm.cache_hooks import install
from kvpolicy_vllm.cache_units import CachedUnits
from vllm import LLM, SamplingParams

BLOCK_TOKENS, BLOCKS = 32, 26
EVICTIONS: dict[str, dict[str, Any]] = {
    "lfu": {"policy": "lfu"},
    "lru": {"policy": "lru", "core": "kvpolicy"},
    "rules": {"rules": [{"name": "r", "match": "hits >= 1", "retain": {"weight": 3, "ttl": "60s", "budget": "40%"}}]},
    "score": {"score": "log1p(hits) / (1 + idle_requests)", "tenants": {"by": "cache_salt", "cap": "60%"}},
    "lfu, ahead": {"policy": "lfu"},  # of need, as pools of this size are not evicted
}


def prompts() -> list[list[dict[str, Any]]]:
    """Ten batches of six: documents that come back, with questions that do not."""
    rng = random.Random(1)
    documents = [_tokens(rng, rng.choice([64, 96, 160])) for _ in range(12)]

    def prompt() -> dict[str, Any]:
        question = _tokens(rng, rng.choice([0, 20, 70]))
        return {"prompt_token_ids": rng.choice(documents) + question, "cache_salt": rng.choice(["a", "b"])}

    return [[prompt() for _ in range(6)] for _ in range(10)]


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(3, 300) for _ in range(count)]


def run(model: str, name: str, eviction: dict[str, Any] | None) -> None:
    active = None
    if eviction is not None:
        active = activate("vllm", eviction)
        cache_guard.AHEAD_SHARE = 1 / 4 if "ahead" in name else 0
        install(active, None)
    llm = LLM(
        model, dtype="float32", max_model_len=512, enforce_eager=True, block_size=BLOCK_TOKENS, max_num_seqs=6,
        num_gpu_blocks_override=BLOCKS, kv_cache_memory_bytes=32 << 20, seed=0,
    )  # fmt: skip
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    pool, preemptions = scheduler.kv_cache_manager.block_pool, 0
    preempt = scheduler._preempt_request

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal preemptions
        preemptions += 1
        return preempt(*args, **kwargs)

    scheduler._preempt_request = counted
    outputs, cached = [], 0
    for batch in prompts():
        answers = llm.generate(batch, SamplingParams(max_tokens=48, temperature=0, ignore_eos=True), use_tqdm=False)
        outputs += [list(answer.outputs[0].token_ids) for answer in answers]
        cached += sum(answer.num_cached_tokens or 0 for answer in answers)
        if active is not None and name != "corrupt":
            pool.guard.units.check(pool.blocks)
    told: dict[str, Any] = {"policy": name, "outputs": outputs, "cached_tokens": cached, "preemptions": preemptions}
    if active is not None:
        told |= {"core": active.core, "fallbacks": active.fallbacks, "victims": active.index.victims}
    print(json.dumps(told), flush=True)


def keep_hashes() -> None:
    """The fault: a victim is handed out, and its content still counts as cached."""
    from kvpolicy_vllm.cache_pool import PolicyBlockPool

    PolicyBlockPool._maybe_evict_cached_block = lambda pool, block: block.reset_hash()
    CachedUnits.cached = lambda *_: None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--corrupt", action="store_true")
    arguments = parser.parse_args()
    run(arguments.model, "stock", None)
    if arguments.corrupt:
        keep_hashes()
        run(arguments.model, "corrupt", EVICTIONS["lfu"])
        return
    for name, eviction in EVICTIONS.items():
        run(arguments.model, name, eviction)


if __name__ == "__main__":
    main()
