"""KVP6xx: what a policy asks for and an engine cannot give (error or warning by `cache.on_conflict`)."""

from __future__ import annotations

from kvpolicy.language.codes.base import Code, codes

__all__ = ["CONFLICTS"]

CONFLICTS = codes(
    Code(
        "KVP601",
        "not honoured on this engine yet",
        "The field is part of the language, but this version's adapter for the engine does nothing with it. It is "
        "never ignored silently: remove it, drop it for one engine (`engines: {sglang: {allocator: null}}`), or set "
        "`cache.on_conflict: warn`.",
        bad="allocator: {watermark: {low: 2%, high: 5%}}\n",
        good="allocator: {watermark: {low: 2%, high: 5%}}\nengines: {sglang: {allocator: null}}\n",
        args=("--engine", "sglang"),
    ),
    Code(
        "KVP602",
        "the engine has no such dtype or backend",
        "Neither the preferred value nor one of `accept` is known to the engine.",
        bad="cache: {kv_dtype: fp16}\n",
        good="cache: {kv_dtype: {prefer: fp16, accept: [fp16, bf16]}}\n",
        args=("--engine", "sglang"),
    ),
)
