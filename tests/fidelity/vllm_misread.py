"""Runs in a vLLM's environment: one text with the model's own KV dtype, and with one that this vLLM misreads.

Arguments: a model directory, a policy that asks for nothing. Tells the evidence of the comparison. The policy's own way
to this dtype is closed (the adapter leaves the flag alone there), so it is asked for as an engine's argument.
"""

from __future__ import annotations

import json
import sys

from kvpolicy.facts import load_model
from kvpolicy.facts.measured import shape_of
from kvpolicy.fidelity.base import Job
from kvpolicy.fidelity.result import result_of, to_json
from kvpolicy.fidelity.run import run_child

TEXT = "The harbour office is open from seven to nineteen. Tickets cost twenty euros, and children travel free. " * 12


def main() -> None:
    model, policy = sys.argv[1:]
    dtypes = ({}, {"kv_cache_dtype": "bfloat16"})
    jobs = [Job(model, policy, TEXT, 256, 256, 64, {"dtype": "float32", **dtype}) for dtype in dtypes]
    runs = [run_child("vllm", job, lambda done, total: None) for job in jobs]
    told = {"policy": "none", "digest": "", "text_name": "text", "text": TEXT, "top_k": 64}
    print("TOLD " + json.dumps(to_json(result_of(*runs, model=shape_of(load_model(model)), **told))))


if __name__ == "__main__":
    main()
