"""One finished measurement: both runs compared and judged, and its evidence file."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

from kvpolicy.facts.measured import KIND, VERSION, ModelShape
from kvpolicy.fidelity.base import PASSES, FidelityError, Settings
from kvpolicy.fidelity.comparison import Bucket, Difference, Run, compare, passes_apart
from kvpolicy.fidelity.verdict import LIMITS, Verdict, judge

__all__ = ["Result", "result_of", "to_json"]


@dataclass(frozen=True, slots=True)
class Result:
    """What `kvpolicy fidelity` prints and writes."""

    model: ModelShape
    policy: str  # as the user named it
    digest: str  # of the whole policy
    text: str  # name of the text
    text_sha256: str
    top_k: int
    reference: Settings
    measured: Settings
    windows: int
    longest_window_tokens: int
    stride_tokens: int
    passes: dict[str, tuple[Difference, list[Bucket]]]
    floor: Difference
    verdict: Verdict

    @property
    def is_control(self) -> bool:
        """Both runs store the same: the figures are the engine's own rounding."""
        return (self.reference.kv_dtype, self.reference.kv_layers) == (self.measured.kv_dtype, self.measured.kv_layers)


def result_of(
    reference: Run, measured: Run, *, model: ModelShape, policy: str, digest: str, text_name: str, text: str, top_k: int
) -> Result:
    """Compare and judge. FidelityError where the runs did not score the same tokens in the same steps."""
    if reference.windows != measured.windows:
        raise FidelityError("the two runs cut the text into different tokens: is the tokenizer deterministic?")
    if reference.stride_tokens != measured.stride_tokens:
        sizes = f"{reference.settings.page_size} and {measured.settings.page_size}"
        raise FidelityError(f"the engine's page size depends on the KV dtype ({sizes} tokens): set cache.page_size")
    passes = {kind: compare(reference.rows[kind], measured.rows[kind]) for kind in PASSES}
    floor = passes_apart(reference)
    return Result(
        model=model,
        policy=policy,
        digest=digest,
        text=text_name,
        text_sha256=hashlib.sha256(text.encode()).hexdigest(),
        top_k=top_k,
        reference=reference.settings,
        measured=measured.settings,
        windows=len(reference.windows),
        longest_window_tokens=max(map(len, reference.windows)),
        stride_tokens=reference.stride_tokens,
        passes=passes,
        floor=floor,
        verdict=judge({kind: whole for kind, (whole, _) in passes.items()}, floor),
    )


def to_json(result: Result) -> dict[str, Any]:
    """The evidence file, which is also what `--format json` prints: figures and what they were measured with."""
    measured = result.measured
    return {
        "kind": KIND,
        "version": VERSION,
        "verdict": {
            "level": result.verdict.level,
            "reasons": list(result.verdict.reasons),
            "limits": {level: asdict(limits) for level, limits in LIMITS.items()},
        },
        "model": asdict(result.model),
        "policy": {"source": result.policy, "digest": result.digest},
        "engine": {"name": measured.engine, "version": measured.version, "device": measured.device},
        "reference": _stored(result.reference),
        "measured": _stored(measured),
        "text": {
            "name": result.text,
            "sha256": result.text_sha256,
            "windows": result.windows,
            "longest_window_tokens": result.longest_window_tokens,
            "stride_tokens": result.stride_tokens,
        },
        "kl": f"lower bound from the top {result.top_k} of both runs; nats",
        "floor": _figures(result.floor),
        "passes": {
            kind: {
                "all": _figures(whole),
                "by_position": [
                    {"first": bucket.first, "end": bucket.end, **_figures(bucket.difference)} for bucket in buckets
                ],
            }
            for kind, (whole, buckets) in result.passes.items()
        },
    }


def _stored(settings: Settings) -> dict[str, Any]:
    return {
        "kv_dtype": settings.kv_dtype,
        "kv_layers": dict(settings.kv_layers),
        "model_dtype": settings.model_dtype,
        "page_size": settings.page_size,
        "attention": settings.attention,
    }


def _figures(found: Difference) -> dict[str, Any]:
    return {
        "tokens": found.tokens,
        "kl_mean_nats": _short(found.kl_mean),
        "kl_p99_nats": _short(found.kl_p99),
        "kl_max_nats": _short(found.kl_max),
        "top1_agreement": _short(found.top1_agreement),
        "perplexity_reference": _short(found.perplexity_reference),
        "perplexity": _short(found.perplexity),
        "perplexity_change": _short(found.perplexity_change),
        "nll_change_error": _short(found.nll_change_error),
        "listed_mass": _short(found.listed_mass),
    }


def _short(value: float) -> float:
    return float(f"{value:.6g}")
