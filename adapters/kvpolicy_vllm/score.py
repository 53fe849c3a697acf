"""Scores text through a real vLLM for `kvpolicy fidelity`: a child program, see kvpolicy/fidelity/base.py."""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
from typing import Any

from kvpolicy.facts.dtypes import canonical
from kvpolicy.fidelity.base import FidelityError, Job, Scored, Settings
from kvpolicy.fidelity.child import main


class VllmScorer:
    """One `vllm.LLM` with the job's policy. Raises FidelityError where it does not start."""

    def __init__(self, job: Job) -> None:
        import kvpolicy_vllm

        self._top_k = job.top_k
        arguments = {**_defaults(job), **job.engine_args}
        try:
            self._llm = kvpolicy_vllm.LLM(job.model, policy=job.policy, **arguments)
        except kvpolicy_vllm.StartError as error:
            raise FidelityError(str(error)) from None
        except (TypeError, ValueError) as error:  # an argument that the engine has not, or does not take
            raise FidelityError(f"vllm does not start: {error}") from None

    def settings(self) -> Settings:
        import kvpolicy_vllm

        (block, *_) = kvpolicy_vllm.status(self._llm)
        built, asked = block["built"], block["settings"]
        model_dtype = canonical(str(self._llm.llm_engine.vllm_config.model_config.dtype))
        skipped = asked.get("cache.kv_dtype.layers", {}).get("effective") or ()
        return Settings(
            engine="vllm",
            version=importlib.metadata.version("vllm"),
            device=_device(),
            model_dtype=model_dtype,
            kv_dtype=built["kv_cache_dtype"],
            kv_layers=dict.fromkeys(skipped, model_dtype),
            page_size=int(built["block_size"]),
            attention=built["attention_backend"],
        )

    def encode(self, text: str) -> list[int]:
        return list(self._llm.get_tokenizer().encode(text))

    def score(self, tokens: list[int], start: int, *, reuse: bool) -> Scored:
        from vllm import SamplingParams

        sampling = SamplingParams(
            temperature=0,
            max_tokens=1,
            prompt_logprobs=self._top_k,
            detokenize=False,
            # vLLM reuses nothing for prompt logprobs unless told to: those of reused tokens are never computed.
            skip_reading_prefix_cache=not reuse,
        )
        (answer,) = self._llm.generate([{"prompt_token_ids": tokens}], sampling, use_tqdm=False)
        count = len(tokens) - start - 1
        actual, ids, logprobs = [], [], []
        # From the end: what stands for reused tokens is missing or meaningless, by release.
        for token, entry in zip(tokens[-count:], answer.prompt_logprobs[-count:], strict=True):
            # The text's own token is among them whatever its rank; the top k are those of rank k or less.
            top = {at: found.logprob for at, found in entry.items() if found.rank <= self._top_k}
            actual.append(entry[token].logprob)
            ids.append(list(top))
            logprobs.append(list(top.values()))
        return Scored(actual, ids, logprobs, answer.num_cached_tokens or 0)

    def close(self) -> None:
        with contextlib.suppress(Exception):  # all is told by now, and the parent ends what is left of the engine
            self._llm.llm_engine.engine_core.shutdown()


def _defaults(job: Job) -> dict[str, Any]:
    """Nothing is decoded, so no graph is worth its capture; on a CPU vLLM would take half of the memory for KV."""
    from vllm.platforms import current_platform

    common: dict[str, Any] = {
        "enforce_eager": True,
        "max_model_len": job.window_tokens + 1,
        "max_logprobs": job.top_k,
        "disable_log_stats": True,
    }
    return {**common, "kv_cache_memory_bytes": 1 << 30} if current_platform.is_cpu() else common


def _device() -> str:
    from vllm.platforms import current_platform

    return "cpu" if current_platform.is_cpu() else str(current_platform.get_device_name())


if __name__ == "__main__":
    sys.exit(main(VllmScorer))
