"""Findings about `backend.cascade` on SGLang: whether decode steps can read shared prefixes once there.

The adapter's own table (`kvpolicy_sglang.attention_cascade_support`), as far as model, device and settings tell.
"""

from __future__ import annotations

from kvpolicy.facts.encodings import ENCODED
from kvpolicy.facts.findings import Deployment, Findings
from kvpolicy.facts.model import ORDINARY, ModelFacts
from kvpolicy.facts.resolve import Outcome
from kvpolicy.facts.sglang_flashinfer import add_conflict, has_copies, odd_model

__all__ = ["report_sglang_cascade"]

_PATH = "backend.cascade"


def report_sglang_cascade(findings: Findings, where: Deployment, outcome: Outcome) -> None:
    """Add what comes of it for an outcome that starts: a conflict (KVP511), or a fact."""
    backend = findings.policy.backend
    if backend is None or backend.cascade in (None, "off"):
        return
    if (problem := _problem(where.model or ORDINARY, outcome)) is not None:
        add_conflict(findings, _PATH, problem)
        return
    when = "where the cost model says that it pays" if backend.cascade == "auto" else "by thresholds"
    message = f"decode steps read what requests share once, {when}; other steps are FlashInfer's"
    findings.info("KVP507", _PATH, message, {"asked": True, "effective": True})


def _problem(model: ModelFacts, outcome: Outcome) -> tuple[str, str] | None:
    """Why not, and what to do."""
    if outcome.decode_attention != "flashinfer":
        return (
            f"the cascade stands beside FlashInfer's decode kernels, and {outcome.decode_attention} decodes here",
            "set `backend: {attention: flashinfer}`, or drop `cascade`",
        )
    if (odd := odd_model(model)) is not None:
        return f"shared prefixes are not read once in {odd}", "drop `cascade`"
    if has_copies(outcome) or outcome.kv_dtype in ENCODED:
        return f"the cascade's kernel does not read {outcome.kv_dtype} KV", "take bf16, fp16 or fp8, or drop `cascade`"
    return None
