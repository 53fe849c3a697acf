"""Findings about `backend.page_native` on SGLang: whether FlashInfer can be planned by pages there.

The adapter's own table (`kvpolicy_sglang.attention_pages_support`), as far as model, device and settings tell.
"""

from __future__ import annotations

from kvpolicy.facts.findings import Deployment, Findings
from kvpolicy.facts.model import ORDINARY, ModelFacts
from kvpolicy.facts.resolve import Outcome
from kvpolicy.language import Policy, Severity

__all__ = ["plans_by_pages", "report_page_plans"]

_PATH = "backend.page_native"
# Models with `get_attention_sliding_window_size` (srt/models/): some layers, in a pool of their own or not.
_WINDOWED = ("Afmoe", "Exaone4", "Gemma2", "Gemma3", "Gemma4", "GptOss", "Mellum", "Olmo2", "Olmo3")
_WITH_COPIES = ("fp4_e2m1", "fp4_mx_block16", "mxfp8", "nvfp4")


def plans_by_pages(policy: Policy, model: ModelFacts | None, outcome: Outcome) -> bool:
    """Whether the policy asks for it and gets it; also true at a page size of 1, where a page is a token."""
    return _is_asked_for(policy) and _problem(model or ORDINARY, outcome) is None


def report_page_plans(findings: Findings, where: Deployment, outcome: Outcome) -> None:
    """Add what comes of it for an outcome that starts: a conflict (KVP511), or a fact."""
    if not _is_asked_for(findings.policy):
        return
    if (problem := _problem(where.model or ORDINARY, outcome)) is not None:
        severity: Severity = "error" if findings.policy.on_conflict == "error" else "warning"
        message, help = problem
        findings.add("KVP511", severity, _PATH, message, help, {"asked": True, "effective": False})
        return
    page = outcome.page_size
    message = f"FlashInfer is planned by pages of {page} tokens"
    if page == 1:
        message = "page size 1: FlashInfer's plans are by pages of one token whatever `page_native` says"
    findings.info("KVP507", _PATH, message, {"asked": True, "effective": True, "page_size": page})


def _is_asked_for(policy: Policy) -> bool:
    return policy.backend is not None and bool(policy.backend.page_native)


def _problem(model: ModelFacts, outcome: Outcome) -> tuple[str, str] | None:
    """Why not, and what to do."""
    backends = {str(name) for name in (outcome.prefill_attention, outcome.decode_attention)}
    if others := sorted(backends - {"flashinfer"}):
        return (
            f"`page_native` is about FlashInfer's plans, and {others[0]} runs here",
            "set `backend: {attention: flashinfer}`, or drop `page_native`",
        )
    if model.is_mla or model.swa_layers or model.linear_layers:
        return f"FlashInfer is not planned by pages in {model.attention_kind} models", "drop `page_native`"
    if model.sliding_window and model.architecture.startswith(_WINDOWED):
        return "FlashInfer is not planned by pages in models with sliding windows", "drop `page_native`"
    if outcome.kv_dtype in _WITH_COPIES:
        return (
            f"FlashInfer is not planned by pages with {outcome.kv_dtype} KV: it reads a copy",
            "take another KV dtype",
        )
    return None
