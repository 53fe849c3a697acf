"""vLLM's cascade attention: which releases have it, on which backend, and what it takes.

Read in the sources of 0.26.0, 0.28.0, 0.30.0, 0.32.0 and 0.33.0: `config/model.py` (`disable_cascade_attn`, True unless
asked otherwise), `v1/attention/backends/*.py` (`use_cascade_attention`: every builder but FlashAttention's returns
False), `v1/worker/{gpu,cpu,xpu}_model_runner.py`. From 0.32 the option has no effect and warns.
"""

from __future__ import annotations

from kvpolicy.facts.engines import Version

__all__ = ["CASCADE_BACKENDS", "MIN_REQUESTS", "MIN_SHARED_TOKENS", "REMOVED", "has_cascade"]

REMOVED: Version = (0, 32, 0)
CASCADE_BACKENDS = frozenset({"flash_attn"})
#: vLLM's own thresholds, constants of its source.
MIN_SHARED_TOKENS = 256
MIN_REQUESTS = 8


def has_cascade(version: Version) -> bool:
    """0.31 was not read; it answers as 0.30 does."""
    return version < REMOVED
