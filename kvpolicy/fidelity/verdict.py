"""ok, noticeable or bad: the limits, where they come from, and what is too small to count.

The perplexity limits are set by what people already accept from quantized *weights*, as llama.cpp lists it for Llama 2
70B (its examples/perplexity/README.md, bits a weight from the file sizes there): +0.40 % at 5.7 bits (Q5_K_M), +1.20 %
at 4.8 (Q4_K_M), +4.72 % at 3.8 (Q3_K_M), +8.82 % at 3.4 (Q2_K). `noticeable` begins near the first, `bad` near the
third. The KL and agreement limits are a judgement: set so that the three speak up at about the same distance. None of
them measures anybody's task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from kvpolicy.fidelity.comparison import Difference

__all__ = ["LIMITS", "Level", "Limits", "Verdict", "change_text", "judge"]

Level = Literal["ok", "noticeable", "bad"]


@dataclass(frozen=True, slots=True)
class Limits:
    """A level is reached when any of these is passed."""

    kl_mean: float  # nats a token, above
    top1_agreement: float  # share of tokens, below
    perplexity_change: float  # share, above


LIMITS: dict[Level, Limits] = {"noticeable": Limits(0.01, 0.97, 0.005), "bad": Limits(0.1, 0.90, 0.05)}


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reasons``: what passed the limits of the level; for `ok`, empty."""

    level: Level
    reasons: tuple[str, ...] = ()


def judge(passes: dict[str, Difference], floor: Difference) -> Verdict:
    """The worst of the passes.

    Not counted: a KL or disagreement within twice ``floor``, which the engine's rounding reaches by itself, and a
    change of perplexity within two standard errors of none.
    """
    levels: tuple[Level, ...] = ("bad", "noticeable")
    for level in levels:
        reasons = [
            f"{name}: {reason}" for name, found in passes.items() for reason in _passed(LIMITS[level], found, floor)
        ]
        if reasons:
            return Verdict(level, tuple(reasons))
    return Verdict("ok")


def change_text(found: Difference) -> str:
    """`+1.20%`, or `x5,165` where a percentage says nothing any more."""
    change = found.perplexity_change
    return f"{change:+.2%}" if change < 9 else f"x{1 + change:,.0f}"


def _passed(limits: Limits, found: Difference, floor: Difference) -> list[str]:
    reasons = []
    if found.kl_mean > max(limits.kl_mean, 2 * floor.kl_mean):
        reasons.append(f"mean KL {found.kl_mean:.4f} nats > {limits.kl_mean:g}")
    if 1 - found.top1_agreement > max(1 - limits.top1_agreement, 2 * (1 - floor.top1_agreement)):
        reasons.append(f"top-1 agreement {found.top1_agreement:.1%} < {limits.top1_agreement:.0%}")
    certain = math.expm1(found.nll_change - 2 * found.nll_change_error)
    if found.perplexity_change > limits.perplexity_change and certain > 0:
        reasons.append(f"perplexity {change_text(found)} > {limits.perplexity_change:+.1%}")
    return reasons
