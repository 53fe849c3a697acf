"""What the findings about SGLang's FlashInfer backend have in common: where it reads plain K and V of all tokens."""

from __future__ import annotations

from kvpolicy.facts.findings import Findings
from kvpolicy.facts.model import ModelFacts
from kvpolicy.facts.resolve import Outcome
from kvpolicy.language import Severity

__all__ = ["add_conflict", "has_copies", "odd_model"]

# Models with `get_attention_sliding_window_size` (srt/models/): some layers, in a pool of their own or not.
_WINDOWED = ("Afmoe", "Exaone4", "Gemma2", "Gemma3", "Gemma4", "GptOss", "Mellum", "Olmo2", "Olmo3")
_WITH_COPIES = ("fp4_e2m1", "fp4_mx_block16", "mxfp8", "nvfp4")


def odd_model(model: ModelFacts) -> str | None:
    """What models whose layers do not all read K and V of all tokens are called; None for others."""
    if model.is_mla or model.swa_layers or model.linear_layers:
        return f"{model.attention_kind} models"
    if model.sliding_window and model.architecture.startswith(_WINDOWED):
        return "models with sliding windows"
    return None


def has_copies(outcome: Outcome) -> bool:
    """Whether FlashInfer reads a copy of K and V, in another form than they are kept in."""
    return outcome.kv_dtype in _WITH_COPIES


def add_conflict(findings: Findings, path: str, problem: tuple[str, str]) -> None:
    """KVP511 for a field that asks for what does not happen; `problem`: why not, and what to do."""
    severity: Severity = "error" if findings.policy.on_conflict == "error" else "warning"
    message, help = problem
    findings.add("KVP511", severity, path, message, help, {"asked": True, "effective": False})
