"""Scores text through a real SGLang for `kvpolicy fidelity`: a child program, see kvpolicy/fidelity/base.py."""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Any

from kvpolicy.facts.dtypes import canonical
from kvpolicy.facts.measured import differing_layers
from kvpolicy.fidelity.base import FidelityError, Job, Scored, Settings
from kvpolicy.fidelity.child import main
from kvpolicy_sglang import probe


class SglangScorer:
    """One `sglang.Engine` with the job's policy. Raises FidelityError where it does not start."""

    def __init__(self, job: Job) -> None:
        import kvpolicy_sglang

        self._top_k = job.top_k
        arguments = {**_defaults(job), **job.engine_args}
        try:
            self._engine = kvpolicy_sglang.Engine(policy=job.policy, model_path=job.model, **arguments)
        except kvpolicy_sglang.StartError as error:
            raise FidelityError(str(error)) from None
        except (TypeError, ValueError) as error:  # an argument that the engine has not, or does not take
            raise FidelityError(f"sglang does not start: {error}") from None

    def settings(self) -> Settings:
        block = self._engine.get_server_info()["internal_states"][0]["kvpolicy"]
        built, asked = block["built"], block["settings"]
        arguments = self._engine.server_args
        model = self._engine.tokenizer_manager.model_config
        model_dtype, kv_dtype = canonical(str(model.dtype)), built["kv_cache_dtype"]
        ranges = asked.get("cache.kv_dtype.layers", {}).get("effective") or {}
        backend = probe.resolved(arguments, "attention_backend")  # for classes that serve several names
        return Settings(
            engine="sglang",
            version=importlib.metadata.version("sglang"),
            device=_device(arguments.device),
            model_dtype=model_dtype,
            kv_dtype=kv_dtype,
            kv_layers=differing_layers(
                ranges.items(), layers=int(model.num_hidden_layers), compute=model_dtype, rest=kv_dtype
            ),
            page_size=int(built["page_size"]),
            attention=str(built.get("attention_backend", backend)),
        )

    def encode(self, text: str) -> list[int]:
        return list(self._engine.tokenizer_manager.tokenizer.encode(text))

    def score(self, tokens: list[int], start: int, *, reuse: bool) -> Scored:
        # A request that wants logprobs from `start` on reuses no more than the tokens before it.
        answer = self._engine.generate(
            input_ids=tokens,
            sampling_params={"temperature": 0, "max_new_tokens": 1},
            return_logprob=True,
            logprob_start_len=start,
            top_logprobs_num=self._top_k,
        )
        told = answer["meta_info"]
        # The first entry stands for the token at `start`, which nothing predicts.
        actual = [entry[0] for entry in told["input_token_logprobs"][1:]]
        tops = told["input_top_logprobs"][1:]
        ids = [[entry[1] for entry in top] for top in tops]
        return Scored(actual, ids, [[entry[0] for entry in top] for top in tops], told["cached_tokens"])

    def close(self) -> None:
        self._engine.shutdown()


def _defaults(job: Job) -> dict[str, Any]:
    """Nothing is decoded, so no graph is worth its capture; on a CPU SGLang would take most of the memory for KV."""
    import torch

    common: dict[str, Any] = {"disable_cuda_graph": True, "log_level": "error"}
    if torch.cuda.is_available():
        return common
    pool_tokens = 4 * job.window_tokens
    return {**common, "device": "cpu", "sampling_backend": "pytorch", "max_total_tokens": pool_tokens}


def _device(kind: str) -> str:
    import torch

    return str(torch.cuda.get_device_name()) if kind == "cuda" else kind


if __name__ == "__main__":
    sys.exit(main(SglangScorer))
