"""What a status says of shadow policies, in lines of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .words import counted, duration, number, share

__all__ = ["shadow_lines"]


def shadow_lines(shadows: Mapping[str, Any]) -> Iterator[str]:
    """The table of one engine's shadows, the running policy's own ghost first."""
    if shadows["state"] == "dead":
        yield f"shadows    none any more: {shadows['ended']}; {_dropped(shadows)}"
        return
    if not shadows["policies"]:
        return
    if shadows.get("fault"):
        yield f"shadows    stopped, after a fault: {shadows['fault']}"
        return
    if shadows.get("active") is None:
        yield "shadows    starting"
        return
    asked = shadows["input_tokens"]
    yield (
        f"shadows    {counted(shadows['requests'], 'request')} in {duration(shadows['since_s'])}, "
        f"{number(asked)} prompt tokens, {share(shadows['engine_hit_tokens'], asked)} hit here; {_dropped(shadows)}"
    )
    window = shadows["window"]
    yield f"{'policy':<24}{'hit tokens':>14}{'hit':>6}{'prefill':>9}{'regret':>12}{'to clairvoyant':>15}"
    pairs = shadows["active"]["prefill_pairs"]
    for at, row in enumerate([shadows["active"], *shadows["shadows"]]):
        late = row["regret_clairvoyant_tokens"]
        yield (
            f"{_cut(('' if at else '* ') + row['name'], 23):<24}{number(row['hit_tokens']):>14}"
            f"{share(row['hit_tokens'], asked):>6}{share(row['prefill_pairs'], pairs):>9}"
            f"{'' if not at else number(row['regret_active_tokens']):>12}"
            f"{'' if late is None else share(late, window['input_tokens']):>15}"
            + (f"  {row['faults']} faults" if row["faults"] else "")
        )
    if window is None:
        yield "* runs here. The clairvoyant is known when the first window of requests is over"
        return
    yield (
        f"* runs here. To the clairvoyant: of {number(window['input_tokens'])} tokens of the last "
        f"{number(window['requests'])} requests"
    )


def _dropped(shadows: Mapping[str, Any]) -> str:
    return f"{number(shadows['dropped_requests'])} dropped"


def _cut(text: str, width: int) -> str:
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= width else text[: width - 3] + "..."
