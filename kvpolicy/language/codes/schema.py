"""KVP2xx: keys, types, units and ranges."""

from __future__ import annotations

from kvpolicy.language.codes.base import HEADER, Code, codes

__all__ = ["SCHEMA"]

SCHEMA = codes(
    Code(
        "KVP201",
        "unknown key",
        "The grammar has no such key at this place. It would have been ignored, so it is an error.",
        bad="cache: {page_siz: 16}\n",
        good="cache: {page_size: 16}\n",
    ),
    Code(
        "KVP202",
        "missing key",
        "A key that has no default is not given.",
        bad="kind: KVPolicy\n",
        good=HEADER,
        raw=True,
    ),
    Code(
        "KVP203",
        "wrong type",
        "The value is of another kind than the key takes: text for a number, a word for a list, nothing at all. "
        'Quoted scalars are text, never numbers: "16" is not 16.',
        bad='cache: {page_size: "16"}\n',
        good="cache: {page_size: 16}\n",
    ),
    Code(
        "KVP204",
        "unknown word",
        "The key takes one of a fixed set of words.",
        bad="allocator: {order: adress}\n",
        good="allocator: {order: address}\n",
    ),
    Code(
        "KVP205",
        "wrong unit",
        "Shares are percentages (2%), durations have ms, s, m or h (600s), token counts are bare or have k, M, G, "
        "Ki, Mi or Gi (8Ki).",
        bad="hints: {max_ttl: 900}\n",
        good="hints: {max_ttl: 900s}\n",
    ),
    Code(
        "KVP206",
        "out of range",
        "The number, text or list is outside what the key takes.",
        bad="allocator: {watermark: {low: 2%, high: 105%}}\n",
        good="allocator: {watermark: {low: 2%, high: 5%}}\n",
    ),
    Code(
        "KVP207",
        "page size is not a power of two",
        "Engines lay pages out in powers of two; another size would be changed or refused at start.",
        bad="cache: {page_size: 24}\n",
        good="cache: {page_size: 32}\n",
    ),
    Code(
        "KVP208",
        "unusable name",
        "Names of policies and rules become metric labels: letters, digits, '.', '_' and '-', at most 63.",
        bad="metadata: {name: my policy}\n",
        good="metadata: {name: my-policy}\n",
    ),
    Code(
        "KVP209",
        "unreadable layer range",
        "Layers are single (5, -1), inclusive ranges (0-1), slices from either end (:4, -2:), or several of these "
        "(0-1,62-63).",
        bad='cache: {kv_dtype: {default: fp8_e4m3, layers: {"first": bf16}}}\n',
        good='cache: {kv_dtype: {default: fp8_e4m3, layers: {"0-1": bf16}}}\n',
    ),
    Code(
        "KVP210",
        "unknown apiVersion",
        "The file is written for another version of the language. Nothing is guessed.",
        bad="apiVersion: kvpolicy/v2\nkind: KVPolicy\n",
        good=HEADER,
        raw=True,
    ),
    Code(
        "KVP211",
        "too many findings",
        "The first 200 are listed. A file with more is probably not a policy, or one mistake near its top repeats.",
        bad="".join(f"key{i}: {i}\n" for i in range(300)),
        good="",
    ),
)
