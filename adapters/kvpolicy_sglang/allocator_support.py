"""Which of SGLang's slot allocators the policy's `allocator:` can take the place of, as one table.

The scheduler knows only once it has built one; `docs/allocators.md` prints the table, and a test compares the two.
"""

from __future__ import annotations

from typing import Any

from kvpolicy.runtime.support import Feature, Verdict, decide

__all__ = ["FEATURES", "supported"]

_REPLACED = ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator")
_PAIRS = "its allocator hands out slots of two pools together"


def _is(allocator: Any, *words: str) -> bool:
    return any(word in type(allocator).__name__ for word in words)


#: Tried in order with the allocator that SGLang built; the first that is in use and not `supported` decides.
FEATURES: tuple[Feature[Any], ...] = (
    Feature("sliding-window attention", "a sliding-window model", "stock", _PAIRS, lambda built: _is(built, "SWA")),
    Feature("HiSparse", "--enable-hisparse", "stock", _PAIRS, lambda built: _is(built, "HiSparse")),
    Feature(
        "pages sharded over GPUs",
        "KV sharding",
        "stock",
        "a page lies in a shard, and each shard has free pages of its own",
        lambda built: _is(built, "PageInterleave"),
    ),
    Feature(
        "one memory pool for keys, values and state",
        "--enable-unified-memory",
        "stock",
        "slots have virtual ids there, and bytes are what is allocated",
        lambda built: _is(built, "Unified", "MultiEnded"),
    ),
    Feature(
        "another allocator",
        "another platform's or plugin's class",
        "stock",
        "only SGLang's own two classes are known here",
        lambda built: type(built).__name__ not in _REPLACED or not type(built).__module__.startswith("sglang."),
    ),
    Feature(
        "prefill/decode disaggregation",
        "--disaggregation-mode",
        "supported",
        "frees are sorted in when the list runs short, as in stock, so that transfers find contiguous pages",
        lambda built: bool(built.need_sort),
    ),
    Feature(
        "speculative decoding",
        "--speculative-algorithm",
        "supported",
        "draft and target share one allocator, and it is replaced once",
        lambda built: True,
    ),
    Feature(
        "Mamba and linear attention",
        "a hybrid state-space model",
        "supported",
        "the slots of its attention layers; state slots keep the engine's list",
        lambda built: True,
    ),
    Feature(
        "tensor, pipeline and data parallelism",
        "--tp-size, --pp-size, --dp-size",
        "supported",
        "equal calls get equal slots on every rank",
        lambda built: True,
    ),
)


def supported(built: Any) -> Verdict:
    """Whether the policy's order and guard can work under the allocator that SGLang built."""
    return decide(FEATURES, built, "allocator")
