"""The schedule: rounds of one window a side, in alternating order, and what came of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvpolicy.bench.base import Failed, Side, Target, Traffic, Window
from kvpolicy.bench.clients import measure
from kvpolicy.bench.servers import empty_cache, kv_tokens

__all__ = ["Outcome", "run_rounds"]

#: A server's first window pays for what is compiled and allocated once; this part of one goes before it, unmeasured.
_WARM_UP_SHARE = 4

#: (server, traffic, seed) -> what it measured.
Measure = Callable[[Target, Traffic, int], Window]


@dataclass(slots=True)
class Outcome:
    """All windows of one side, by round; KV tokens as the server last said them."""

    label: str
    windows: list[Window] = field(default_factory=list)
    kv_tokens: int | None = None


def run_rounds(
    a: Side, b: Side, traffic: Traffic, rounds: int, seed: int,
    tell: Callable[[str], None], measure: Measure = measure,
) -> tuple[Outcome, Outcome]:  # fmt: skip
    """``rounds`` windows a side. A round's two windows have the same requests; other rounds have others.

    Failed, naming the side, where a request failed; BenchError and LiveError where a window could not be made.
    """
    outcomes = {a.label: Outcome(a.label), b.label: Outcome(b.label)}
    warm: set[str] = set()
    for number in range(rounds):
        order = (a, b) if number % 2 == 0 else (b, a)  # what drifts through a round favours each side as often
        for side in order:
            outcome = outcomes[side.label]
            with side.serving() as target:
                if target.url not in warm:
                    warm.add(target.url)
                    tell(f"warming up {side.label} ...")
                    measure(target, traffic.scaled(traffic.requests // _WARM_UP_SHARE), seed - 1)
                if target.is_ours:
                    empty_cache(target)
                try:
                    window = measure(target, traffic, seed + number)
                except Failed as failed:
                    raise Failed(f"{side.label}, round {number + 1}: {failed}") from None
                outcome.windows.append(window)
                outcome.kv_tokens = kv_tokens(target) or outcome.kv_tokens
            tell(f"round {number + 1} of {rounds}, {side.label}: {window.output_tokens_per_s:,.1f} output tokens/s")
    return outcomes[a.label], outcomes[b.label]
