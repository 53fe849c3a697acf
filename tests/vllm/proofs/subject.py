"""Imported by the programs of this folder, which run in vLLM's own environment: one engine in this process, and a look
into its block pool."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import vllm

#: What every engine here gets. Block size, KV dtype and attention backend are absent: they are the policy's.
COMMON: dict[str, Any] = {
    "dtype": "float32",  # several times faster than bf16 on a CPU without AMX
    "enforce_eager": True,
    "kv_cache_memory_bytes": 64 << 20,
    "max_num_batched_tokens": 1024,
    "seed": 0,
}


class Subject:
    """A running engine with a policy or (None) stock, and a pool of `blocks` blocks beside vLLM's null block."""

    def __init__(self, model: str, policy: str | None, blocks: int, max_tokens: int, **arguments: Any) -> None:
        given = {**COMMON, "num_gpu_blocks_override": blocks + 1, "max_model_len": max_tokens, **arguments}
        gc.collect()  # an engine before this one must be gone: vLLM's process groups are the process's
        if policy is None:
            self.llm = vllm.LLM(model, **given)
        else:
            import kvpolicy_vllm

            self.llm = kvpolicy_vllm.LLM(model, policy=policy, **given)
        self.engine = self.llm.llm_engine
        self.core = self.engine.engine_core.engine_core
        self.pool = self.core.scheduler.kv_cache_manager.block_pool
        self.now_s = 1_000_000.0  # requests are stamped with this; it moves by hand
        self.asked = 0

    def __enter__(self) -> Subject:
        return self

    def __exit__(self, *_: object) -> None:
        del self.llm, self.engine, self.core, self.pool
        gc.collect()

    def add(self, tokens: Sequence[int], new_tokens: int, *, salt: str | None = None, **request: Any) -> str:
        """Queue a request; `vllm_xargs` and `priority` as in a server's. Its id."""
        params = vllm.SamplingParams(
            temperature=0, max_tokens=new_tokens, ignore_eos=True, logprobs=0,
            extra_args=request.pop("vllm_xargs", None),
        )  # fmt: skip
        prompt: dict[str, Any] = {"prompt_token_ids": list(tokens)}
        if salt is not None:
            prompt["cache_salt"] = salt
        self.asked += 1
        name = str(self.asked)
        self.engine.add_request(name, prompt, params, arrival_time=self.now_s, **request)
        return name

    def step(self) -> list[Any]:
        """One step of the scheduler: the requests that it finished."""
        return [output for output in self.engine.step() if output.finished]

    def run(self, names: Sequence[str]) -> list[Any]:
        """Step until all of the engine's requests are finished; the outputs of `names`, in that order."""
        done: dict[str, Any] = {}
        while self.engine.has_unfinished_requests():
            done |= {output.request_id: output for output in self.step()}
        return [done[name] for name in names]

    def ask(self, tokens: Sequence[int], new_tokens: int = 2, **request: Any) -> Any:
        """One request alone: vLLM's `RequestOutput`."""
        return self.run([self.add(tokens, new_tokens, **request)])[0]

    def cached(self, tokens: Sequence[int], new_tokens: int = 2, **request: Any) -> int:
        """Tokens of the prompt that were found in the cache."""
        return int(self.ask(tokens, new_tokens, **request).num_cached_tokens)

    def status(self) -> dict[str, Any] | None:
        """The `kvpolicy` block; None on stock."""
        import kvpolicy_vllm

        blocks = kvpolicy_vllm.status(self.llm)
        return blocks[0] if blocks else None

    def witness(self) -> dict[str, Any]:
        """What the block pool of an idle engine holds, and what is wrong with it (all of it counted, none allowed)."""
        pool = self.pool
        free, blocks = pool.free_block_queue.get_all_free_blocks(), pool.blocks[1:]
        held = Counter(id(block) for block in free)
        guard, check = getattr(pool, "guard", None), ""
        if guard is not None:
            try:
                guard.units.check(pool.blocks)
            except AssertionError as error:
                check = f"broken: {error}"
        return {
            "block_tokens": self.core.vllm_config.cache_config.block_size,
            "blocks": len(blocks),
            "free_blocks": pool.get_num_free_blocks(),
            "cached_blocks": sum(block.block_hash is not None for block in blocks),
            "contents": sorted(block.block_hash.hex() for block in blocks if block.block_hash is not None),
            "listed_twice": sum(count - 1 for count in held.values()),
            "nowhere": len(blocks) - len(held),
            "in_use": sum(block.ref_cnt != 0 for block in blocks),
            "check": check,
        }


def tell(value: Any) -> None:
    print("TOLD " + json.dumps(value), flush=True)
