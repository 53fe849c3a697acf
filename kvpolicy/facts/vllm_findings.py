"""Findings that only vLLM gives cause for: kernel blocks, layers of another dtype, prefix caching turned off."""

from __future__ import annotations

from kvpolicy.facts.findings import Deployment, Findings
from kvpolicy.facts.layer_dtypes import layer_dtypes
from kvpolicy.facts.model import ORDINARY
from kvpolicy.facts.resolve import Outcome
from kvpolicy.facts.resolve_vllm import compute_dtype
from kvpolicy.language import Severity

__all__ = ["report_vllm"]

_SKIP_OPTION = "--kv-cache-dtype-skip-layers"


def report_vllm(findings: Findings, where: Deployment, outcome: Outcome, layers: tuple[tuple[str, str], ...]) -> None:
    """Add them for an outcome that starts. ``layers``: the policy's (layer range, dtype) pairs."""
    if outcome.kernel_page is not None and outcome.kernel_page != outcome.page_size:
        message = (
            f"pages of {outcome.page_size} tokens are what is cached and evicted; {outcome.attention} reads them as "
            f"blocks of {outcome.kernel_page}"
        )
        data = {"page_size": outcome.page_size, "kernel_page": outcome.kernel_page}
        findings.info("KVP507", "cache.page_size", message, data)
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
