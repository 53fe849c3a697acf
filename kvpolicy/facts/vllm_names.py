"""Names that vLLM's ``--kv-cache-dtype`` and ``--attention-backend`` take, by release.

``config/cache.py CacheDType`` (since 0.33 open to registration) and ``v1/attention/backends/registry.py``.
"""

from __future__ import annotations

from kvpolicy.facts.engines import Version
from kvpolicy.facts.rules import Field, Value
from kvpolicy.facts.vllm_backends import rows_of, since_when

__all__ = ["KV_DTYPE_SINCE", "name_refusal"]

#: Canonical KV dtype -> first release read that takes it.
KV_DTYPE_SINCE: dict[str, Version] = {
    **dict.fromkeys(("auto", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla", "nvfp4"), (0, 26, 0)),
    **dict.fromkeys(("int4_per_token_head", "int8_per_token_head", "fp8_per_token_head"), (0, 26, 0)),
    **dict.fromkeys(("turboquant_k8v4", "turboquant_4bit_nc"), (0, 26, 0)),
    **dict.fromkeys(("turboquant_k3v4_nc", "turboquant_3bit_nc"), (0, 26, 0)),
    "nvfp4_4over6": (0, 28, 0),
    "nvfp4_ds_mla": (0, 30, 0),
    "ultraquant_4bit": (0, 32, 0),
    **dict.fromkeys(("octave_k3v4", "octave_k3v3", "octave_k3v3_compact"), (0, 33, 0)),
}


def name_refusal(field: str, value: Value | None, version: Version) -> tuple[Field, str, str, str] | None:
    """(field, rule, reason, source) where the release does not know the name; None where it does."""
    if value is None:
        return None
    name = str(value)
    if field == "kv_dtype":
        since = KV_DTYPE_SINCE.get(name)
        source = "config/cache.py CacheDType"
        if since is None:
            return "kv_dtype", "dtype-names", f"vLLM has no KV dtype {name}", source
        return None if version >= since else ("kv_dtype", "dtype-names", _not_before(since), source)
    if next(rows_of(name, version), None) is not None:
        return None
    first = since_when(name)
    reason = f"vLLM has no attention backend {name}" if first is None else _not_before(first)
    return "attention", "attention-names", reason, "v1/attention/backends/registry.py AttentionBackendEnum"


def _not_before(since: Version) -> str:
    return f"not before vLLM {'.'.join(map(str, since))}"
