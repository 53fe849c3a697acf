"""Findings about `backend.page_native` on SGLang: whether FlashInfer can be planned by pages there.

The adapter's own table (`kvpolicy_sglang.attention_pages_support`), as far as model, device and settings tell.
"""

from __future__ import annotations

from kvpolicy.facts.findings import Deployment, Findings
from kvpolicy.facts.model import ORDINARY, ModelFacts
from kvpolicy.facts.resolve import Outcome
from kvpolicy.facts.sglang_flashinfer import add_conflict, has_copies, odd_model
from kvpolicy.language import Policy

__all__ = ["plans_by_pages", "report_page_plans"]

_PATH = "backend.page_native"


def plans_by_pages(policy: Policy, model: ModelFacts | None, outcome: Outcome) -> bool:
    """Whether the policy asks for it and gets it; also true at a page size of 1, where a page is a token."""
    return _is_asked_for(policy) and _problem(model or ORDINARY, outcome) is None


def report_page_plans(findings: Findings, where: Deployment, outcome: Outcome) -> None:
    """Add what comes of it for an outcome that starts: a conflict (KVP511), or a fact."""
    if not _is_asked_for(findings.policy):
        return
    if (problem := _problem(where.model or ORDINARY, outcome)) is not None:
        add_conflict(findings, _PATH, problem)
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
    if (odd := odd_model(model)) is not None:
        return f"FlashInfer is not planned by pages in {odd}", "drop `page_native`"
    if has_copies(outcome):
        return (
            f"FlashInfer is not planned by pages with {outcome.kv_dtype} KV: it reads a copy",
            "take another KV dtype",
        )
    return None
