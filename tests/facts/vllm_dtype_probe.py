"""Runs inside a real vLLM on a CPU: what each KV dtype does to the answer of one prompt, against ``auto``.

Arguments: a model directory, a compute dtype, KV dtypes in vLLM's own names. One JSON line each: the greedy tokens
after a prefix-cache hit and the next token's distribution, or the error with which the engine refuses.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import sys
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "CRITICAL", "VLLM_PLUGINS": ""}

PROMPT = [3 + (7 * position) % 250 for position in range(449)]
TOKENS = 8


def main() -> None:
    model, compute, *dtypes = sys.argv[1:]
    for dtype in dtypes:
        try:
            answer = _ask(model, compute, dtype)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps({"kv_dtype": dtype, "compute": compute, **answer}), flush=True)


def _ask(model: str, compute: str, kv_dtype: str) -> dict[str, Any]:
    from vllm import LLM, SamplingParams
    from vllm.distributed import cleanup_dist_env_and_memory

    llm = LLM(
        model,
        skip_tokenizer_init=True,
        dtype=compute,
        kv_cache_dtype=kv_dtype,
        enforce_eager=True,
        kv_cache_memory_bytes=32 << 20,
        max_model_len=1024,
        max_logprobs=-1,
    )
    try:
        greedy = SamplingParams(temperature=0, max_tokens=TOKENS, logprobs=-1, detokenize=False, ignore_eos=True)
        llm.generate([{"prompt_token_ids": PROMPT}], greedy, use_tqdm=False)
        (answer,) = llm.generate([{"prompt_token_ids": PROMPT}], greedy, use_tqdm=False)
        output = answer.outputs[0]
        first = {token: math.exp(entry.logprob) for token, entry in output.logprobs[0].items()}
        return {
            "tokens": list(output.token_ids),
            "cached_tokens": answer.num_cached_tokens,
            "next": [round(first.get(token, 0.0), 8) for token in range(max(first) + 1)],
        }
    finally:
        with contextlib.suppress(Exception):
            llm.llm_engine.engine_core.shutdown()
        del llm
        cleanup_dist_env_and_memory()
        gc.collect()


if __name__ == "__main__":
    main()
