"""What an engine under a policy gave, compared with the same engine without one."""

from __future__ import annotations

from typing import Any


def assert_outputs_of_stock(case: str, ours: dict[str, Any], stock: dict[str, Any]) -> int:
    """Equal outputs, and equal log-probabilities as far as they must be; how many requests that is.

    Both told `output_ids`, `logprobs` and `cached` tokens of one workload, request by request.
    """
    assert (case, ours["output_ids"]) == (case, stock["output_ids"])
    # As long as the same prefixes are found, every number was computed alike, hence the log-probabilities too.
    cached = list(zip(ours["cached"], stock["cached"], strict=True))
    alike = next((i for i, (a, b) in enumerate(cached) if a != b), len(cached))
    assert (case, ours["logprobs"][:alike]) == (case, stock["logprobs"][:alike])
    return alike
