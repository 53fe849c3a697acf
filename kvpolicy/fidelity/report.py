"""A result as text for people."""

from __future__ import annotations

from kvpolicy.fidelity.base import Settings
from kvpolicy.fidelity.comparison import Difference
from kvpolicy.fidelity.result import Result
from kvpolicy.fidelity.verdict import change_text

__all__ = ["render_result"]

_TITLES = {"cached": "after cache hits", "cold": "in one prefill"}
_HEAD = f"  {'':<22}{'tokens':>7}  {'KL mean':>8}  {'KL p99':>8}  {'same top-1':>10}  {'perplexity':>22}\n"


def render_result(result: Result) -> str:
    """A table a pass, then the verdict."""
    measured, reference = result.measured, result.reference
    windows = f"{result.windows} windows of at most" if result.windows > 1 else "one window of"
    text = (
        f"{result.model.name} on {_engine(result)}, {measured.device}: KV {_dtype(measured)} against "
        f"{_dtype(reference)} (the model computes in {measured.model_dtype})\n"
        f"{result.text}: {windows} {result.longest_window_tokens} tokens; "
        f"pages of {measured.page_size}, attention {measured.attention}\n"
    )
    if reference.attention != measured.attention:
        text += f"note: the reference ran attention {reference.attention}; its rounding is part of the difference\n"
    if result.is_control:
        text += "note: both runs store the same, so this is a control: only the engine's own rounding can differ\n"
    steps = f"prefix from the cache, in steps of {result.stride_tokens}"
    for kind, (whole, buckets) in result.passes.items():
        text += f"\n{_TITLES[kind]} ({steps if kind == 'cached' else 'nothing reused'})\n{_HEAD}"
        for bucket in buckets:
            last = min(bucket.end, result.longest_window_tokens) - 1
            text += _line(f"positions {bucket.first}-{last}", bucket.difference)
        text += _line("all", whole)
    text += "\n" + _line("rounding alone", result.floor).replace("\n", "   (the reference's two passes)\n")
    mass = min(whole.listed_mass for whole, _ in result.passes.values())
    text += (
        f"\nKL in nats a token, a lower bound from the top {result.top_k} of both runs, which hold {mass:.1%} of the "
        f"probability\nverdict: {result.verdict.level}"
    )
    return text + "".join(f"\n  {reason}" for reason in result.verdict.reasons) + "\n"


def _engine(result: Result) -> str:
    name = {"sglang": "SGLang", "vllm": "vLLM"}[result.measured.engine]
    return f"{name} {result.measured.version}"


def _dtype(settings: Settings) -> str:
    """`fp8_e4m3 (bf16 in layers 0, 1)`."""
    groups: dict[str, list[str]] = {}
    for layer, dtype in settings.kv_layers.items():
        groups.setdefault(dtype, []).append(layer)
    named = "; ".join(f"{dtype} in layers {', '.join(layers)}" for dtype, layers in groups.items())
    return f"{settings.kv_dtype} ({named})" if named else settings.kv_dtype


def _line(label: str, found: Difference) -> str:
    perplexity = f"{found.perplexity_reference:.2f} {change_text(found)} ±{found.nll_change_error:.2%}"
    return (
        f"  {label:<22}{found.tokens:>7}  {found.kl_mean:>8.5f}  {found.kl_p99:>8.5f}  {found.top1_agreement:>10.2%}"
        f"  {perplexity:>22}\n"
    )
