"""Imported by the programs of this folder, which run inside an engine's environment: one engine, and talk to it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

#: What every engine here gets. Page size, KV dtype and attention backend are absent: they are the policy's.
COMMON: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",  # several times faster than bf16 on a CPU without AMX; the KV dtype is the policy's
    "sampling_backend": "pytorch",
    "disable_cuda_graph": True,
    "log_level": "warning",
}


class Subject:
    """A running engine, with a policy or (None) stock."""

    def __init__(self, model: str | Path, policy: str | Path | None, pool_tokens: int, **arguments: Any) -> None:
        given = {**COMMON, "model_path": str(model), "max_total_tokens": pool_tokens, **arguments}
        self.started_s = time.monotonic()
        if policy is None:
            import sglang

            self.engine = sglang.Engine(**given)
        else:
            import kvpolicy_sglang

            self.engine = kvpolicy_sglang.Engine(policy=str(policy), **given)
        self.start_s = time.monotonic() - self.started_s
        self.pool_tokens = pool_tokens

    def __enter__(self) -> Subject:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.shutdown()

    def generate(self, prompt: str | list[int] | list[list[int]], new_tokens: int = 2, **request: Any) -> Any:
        sampling = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
        if (custom := request.pop("custom_params", None)) is not None:
            sampling["custom_params"] = custom
        given = {"prompt": prompt} if isinstance(prompt, str) else {"input_ids": prompt}
        return self.engine.generate(**given, sampling_params=sampling, **request)

    def cached(self, prompt: str | list[int], new_tokens: int = 2, **request: Any) -> int:
        """Tokens of the prompt that were found in the cache."""
        return int(self.generate(prompt, new_tokens, **request)["meta_info"]["cached_tokens"])

    def flush(self) -> None:
        """Empty the cache; the engine refuses while it has not quite finished the last request."""
        for _ in range(100):
            self.engine.flush_cache()
            if self.witness()["nodes"] == 0:
                return
            time.sleep(0.1)
        raise TimeoutError("the cache was never flushed")

    def state(self) -> dict[str, Any]:
        """The scheduler's own state: blocks `kvpolicy` and `witness`."""
        state: dict[str, Any] = self.engine.get_server_info()["internal_states"][0]
        return state

    def witness(self) -> dict[str, Any]:
        block: dict[str, Any] = self.state()["witness"]
        return block


def tell(value: Any) -> None:
    print("TOLD " + json.dumps(value), flush=True)
