"""Findings about int8 and int4 KV on SGLang, which kvpolicy's own pool stores: whether a model can have them.

The adapter's own table (`kvpolicy_sglang.pool_support.ENCODING_FEATURES`), as far as model, device and settings tell.
"""

from __future__ import annotations

from kvpolicy.facts.encodings import ENCODED, HEAD_DIMS
from kvpolicy.facts.findings import Deployment, Findings
from kvpolicy.facts.model import ORDINARY, ModelFacts
from kvpolicy.facts.resolve import Outcome
from kvpolicy.facts.sglang_layers import READERS, is_cpu
from kvpolicy.language import Severity

__all__ = ["encoding_problem", "report_encoding"]

_PATH = "cache.kv_dtype"


def encoding_problem(model: ModelFacts) -> str | None:
    """Why the model's K and V cannot be encoded."""
    if model.is_mla or model.swa_layers or model.linear_layers:
        return f"not in {model.attention_kind} models"
    if model.head_dim != model.v_head_dim or model.head_dim not in HEAD_DIMS:
        sizes = ", ".join(map(str, HEAD_DIMS))
        return f"K and V must have heads of one width, one of {sizes}; this model has {model.head_dim}"
    return None


def report_encoding(findings: Findings, where: Deployment, outcome: Outcome) -> None:
    """Add a conflict for an outcome that starts but cannot store what it says (KVP511)."""
    dtype = outcome.kv_dtype
    if dtype not in ENCODED:
        return
    backends = {outcome.attention, outcome.prefill_attention, outcome.decode_attention} - {None}
    others = sorted(name for name in map(str, backends) if name not in READERS)
    if others:
        found = f"{others[0]} does not read it"
        help = f"set `backend: {{attention: {'torch_native' if is_cpu(where) else 'triton'}}}`"
    elif problem := encoding_problem(where.model or ORDINARY):
        found, help = problem, "take another KV dtype"
    else:
        return
    severity: Severity = "error" if findings.policy.on_conflict == "error" else "warning"
    findings.add("KVP511", severity, _PATH, f"no {dtype} KV here: {found}", help, {"kv_dtype": dtype})
