"""Findings that only vLLM gives cause for: kernel blocks, layers of another dtype, prefix caching turned off."""

from __future__ import annotations

from kvpolicy.facts.engines import EngineTarget
from kvpolicy.facts.findings import Deployment, Findings
from kvpolicy.facts.layer_dtypes import layer_dtypes
from kvpolicy.facts.model import ORDINARY
from kvpolicy.facts.resolve import Outcome
from kvpolicy.facts.resolve_vllm import compute_dtype
from kvpolicy.facts.vllm_cascade import CASCADE_BACKENDS, MIN_REQUESTS, MIN_SHARED_TOKENS, has_cascade
from kvpolicy.language import Severity

__all__ = ["report_cascade", "report_vllm"]

_SKIP_OPTION = "--kv-cache-dtype-skip-layers"


def report_cascade(findings: Findings, where: Deployment, target: EngineTarget) -> None:
    """A conflict where the release has no cascade at all, which needs no device to be known."""
    if _asks_for_cascade(findings) and not has_cascade(target.facts):
        _no_cascade(findings, where, "it was removed in 0.32, and its option has no effect")


def _cascade_in_use(findings: Findings, where: Deployment, outcome: Outcome) -> None:
    assert where.target is not None
    if not _asks_for_cascade(findings) or not has_cascade(where.target.facts):
        return
    if outcome.attention not in CASCADE_BACKENDS:
        _no_cascade(findings, where, f"{outcome.attention} never uses one, {', '.join(CASCADE_BACKENDS)} does")
        return
    message = (
        f"vLLM decides per batch whether to cascade: for a prefix that all running requests share, of "
        f"{MIN_SHARED_TOKENS} tokens and {MIN_REQUESTS} requests at least"
    )
    findings.info("KVP507", "backend.cascade", message)


def _asks_for_cascade(findings: Findings) -> bool:
    return findings.policy.backend is not None and findings.policy.backend.cascade == "auto"


def _no_cascade(findings: Findings, where: Deployment, why: str) -> None:
    severity: Severity = "error" if findings.policy.on_conflict == "error" else "warning"
    message = f"{where.engine_label} runs no cascade attention: {why}"
    help = "write `cascade: off`, or drop it for this engine: `engines: {vllm: {backend: {cascade: null}}}`"
    findings.add("KVP511", severity, "backend.cascade", message, help, {"asked": "auto", "effective": "off"})


def report_vllm(findings: Findings, where: Deployment, outcome: Outcome, layers: tuple[tuple[str, str], ...]) -> None:
    """Add them for an outcome that starts. ``layers``: the policy's (layer range, dtype) pairs."""
    if outcome.kernel_page is not None and outcome.kernel_page != outcome.page_size:
        message = (
            f"pages of {outcome.page_size} tokens are what is cached and evicted; {outcome.attention} reads them as "
            f"blocks of {outcome.kernel_page}"
        )
        data = {"page_size": outcome.page_size, "kernel_page": outcome.kernel_page}
        findings.info("KVP507", "cache.page_size", message, data)
    _cascade_in_use(findings, where, outcome)
    if not layers:
        return
    assert where.gpu is not None
    model = where.model or ORDINARY
    compute = compute_dtype(model, where.gpu)
    path, found = "cache.kv_dtype", layer_dtypes(layers, model, compute)
    if found.unexpressed:
        text, dtype = found.unexpressed[0]
        message = (
            f"layers {text} cannot have {dtype} in {where.engine_label}: it can leave layers in the model's dtype "
            f"({compute}), and in no other"
        )
        severity: Severity = "error" if findings.policy.on_conflict == "error" else "warning"
        findings.add("KVP511", severity, path, message, f"give them {compute}", {"layers": text, "asked": dtype})
        return
    if outcome.skip_layers:
        listed = " ".join(outcome.skip_layers)
        message = f"layers {listed} keep {compute}: {_SKIP_OPTION} {listed}"
        findings.info("KVP507", path, message, {"layers": list(outcome.skip_layers), "kv_dtype": compute})
