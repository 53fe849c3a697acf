"""What a status tells of misses, in words: what was evicted, by which rule, how long before it was asked for again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .words import counted, duration, number, page_tokens, share

__all__ = ["explanation", "report"]


def report(block: Mapping[str, Any], most: int) -> Iterator[str]:
    """Lines on one engine's status block, with the `most` latest misses."""
    yield f"policy {block['name']}, digest {block['digest'][:12]}"
    if (traffic := block.get("traffic")) is not None and traffic["short_prompts"]:
        yield (
            f"{number(traffic['short_prompts'])} of {counted(traffic['requests'], 'prompt')} were shorter than a page: "
            "nothing of them is cached"
        )
    why = block.get("why")
    if why is None:
        yield from _not_remembered(block)
        return
    if why["fault"]:
        yield f"evictions are remembered no more, after a fault: {why['fault']}"
    evicted, again = block["evictions"], why["evicted_before_reuse"]
    if not evicted:
        yield "nothing was evicted yet"
        return
    yield from _table(
        ("rule", "evicted", "asked for again", "tokens again"),
        [
            (
                rule,
                number(evicted.get(rule, 0)),
                f"{number(again.get(rule, 0))} ({share(again.get(rule, 0), evicted.get(rule, 0))})",
                number(why["evicted_before_reuse_tokens"].get(rule, 0)),
            )
            for rule in sorted(evicted.keys() | again.keys(), key=lambda rule: -evicted.get(rule, 0))
        ],
    )
    yield f"{'age at eviction':<26} {_quantiles(why['age_s'], duration)}"
    yield f"{'hits at eviction':<26} {_quantiles(why['hits'], number)}"
    if sum(why["away_s"]["counts"]):
        yield f"{'from eviction to the miss':<26} {_quantiles(why['away_s'], duration)}"
        yield f"{'  in requests':<26} {_quantiles(why['away_requests'], number)}"
    yield f"{counted(why['remembered_units'], 'evicted unit')} remembered, at most {number(why['most_units'])}"
    if not why["misses"]:
        yield "no miss that an eviction explains"
        return
    yield ""
    page = page_tokens(block)
    for miss in why["misses"][:most]:
        yield from explanation(miss, page)


def explanation(miss: Mapping[str, Any], page: int | None) -> Iterator[str]:
    """One miss in a sentence or two; `page` in tokens, None where it is not known."""
    start = f"after the first {number(miss['start_tokens'])}" if miss["start_tokens"] else "from the start of a prompt"
    rule = "under no rule" if miss["rule"] == "none" else f"by rule {miss['rule']}"
    if miss["score"] is not None:
        order = f"score {miss['score']:.4g}, cutoff {_score(miss['cutoff'])}"
    else:
        order = f"idle for {counted(miss['idle_requests'], 'request')}"
    wanted = number(miss["wanted_tokens"]) + " tokens"
    if page:
        wanted = f"{counted(-(-miss['wanted_tokens'] // page), 'page')} ({wanted})"
    yield (
        f"{duration(miss['ago_s'])} ago: {counted(miss['tokens'], 'token')} missing {start}, evicted "
        f"{duration(miss['evicted_ago_s'])} ({counted(miss['evicted_ago_requests'], 'request')}) earlier"
    )
    yield f"    {rule} ({order}, {counted(miss['hits'], 'hit')}); keeping it needed {wanted} more"


def _not_remembered(block: Mapping[str, Any]) -> Iterator[str]:
    if block["core"] != "kvpolicy":
        yield f"the engine's own order serves ({block['core_reason']}), so nothing is known of what it evicts"
    else:
        yield "evictions are not remembered under this policy's order; start the server with KVPOLICY_WHY=1"


def _score(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


def _quantiles(histogram: Mapping[str, Any], shown: Any) -> str:
    """The buckets in which the median and the ninth tenth lie."""
    return f"median <= {_quantile(histogram, 0.5, shown)}, 90 % <= {_quantile(histogram, 0.9, shown)}"


def _quantile(histogram: Mapping[str, Any], part: float, shown: Any) -> str:
    counts, bounds = histogram["counts"], histogram["bounds"]
    wanted, passed = part * sum(counts), 0
    for bound, count in zip(bounds, counts, strict=False):
        passed += count
        if passed >= wanted:
            return str(shown(bound))
    return f"(more than {shown(bounds[-1])})"


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    cells = [header, *rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(header))]
    for row in cells:
        first, *rest = (
            f"{cell:<{width}}" if at == 0 else f"{cell:>{width}}"
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join([first, *rest])
