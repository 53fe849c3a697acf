"""What is in a trace: counts, lengths, times, how much is shared, and how much room it takes to share it."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from kvpolicy.replay.clairvoyant import TraceRecord
from kvpolicy.replay.pages import Pager
from kvpolicy.replay.table import tokens_text
from kvpolicy.replay.trace import Trace

__all__ = ["Profile", "profile", "render_profile"]


@dataclass(slots=True)
class Profile:
    """Figures of one trace."""

    trace: str
    format: str
    block_tokens: int
    requests: int = 0
    span_s: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    input_quantiles: tuple[int, int, int] = (0, 0, 0)  # median, 90 %, most
    output_quantiles: tuple[int, int, int] = (0, 0, 0)
    sessions: int | None = None
    salts: int = 0
    adapters: int = 0
    priorities: int = 0
    distinct_tokens: int = 0
    infinite_hit_rate: float = 0.0
    reuse_gap_s: tuple[float | None, float | None, float | None] = (None, None, None)  # 10, 50, 90 % of hit tokens
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def profile(trace: Trace, progress: Callable[[int, str], None] | None = None) -> Profile:
    """Read the whole trace. Raises TraceError for a bad row."""
    info = trace.info
    page_tokens = 16 if info.block_tokens == 1 else info.block_tokens
    pager, record = Pager(info.block_tokens, page_tokens), TraceRecord(page_tokens)
    inputs, outputs = array("q"), array("q")
    sessions: set[str] = set()
    salts: set[str] = set()
    adapters: set[str] = set()
    priorities: set[int] = set()
    first_ms, last_ms = 1 << 62, 0
    for request in trace.requests():
        inputs.append(request.input_tokens)
        outputs.append(request.output_tokens)
        first_ms, last_ms = min(first_ms, request.arrival_ms), max(last_ms, request.arrival_ms)
        who = request.info
        for seen, value in ((sessions, who.session_id), (salts, who.cache_salt), (adapters, who.lora)):
            if value is not None:
                seen.add(value)
        if who.priority is not None:
            priorities.add(who.priority)
        pages = pager.pages(request.blocks, request.input_tokens)
        full = pages
        if request.full_blocks is not None:
            full = pager.pages(request.full_blocks, request.input_tokens + request.output_tokens)
        record.add(request, pager.reusable(len(pages), request.input_tokens), full)
        if progress is not None:
            progress(len(inputs), "")
    found = Profile(trace.name, info.format, info.block_tokens, len(inputs), max(0, last_ms - first_ms) / 1000)
    found.input_tokens, found.output_tokens = sum(inputs), sum(outputs)
    found.input_quantiles, found.output_quantiles = _quantiles(inputs), _quantiles(outputs)
    found.sessions = len(sessions) or None
    found.salts, found.adapters, found.priorities = len(salts), len(adapters), len(priorities)
    found.distinct_tokens = record.distinct_pages * page_tokens
    if found.input_tokens:
        found.infinite_hit_rate = sum(record.infinite_hit_tokens) / found.input_tokens
    gaps = record.reuse_gaps
    found.reuse_gap_s = (gaps.quantile_s(0.1), gaps.quantile_s(0.5), gaps.quantile_s(0.9))
    found.notes = list(info.notes)
    if info.has_sessions:
        found.notes.insert(0, f"sessions: {trace.interleaving}")
    if trace.out_of_order:
        found.notes.append(f"{trace.out_of_order:,} requests arrive before their predecessor in the file")
    if trace.bad_rows:
        found.notes.append(f"{trace.bad_rows:,} bad rows skipped, the first: {trace.first_bad}")
    return found


def render_profile(found: Profile) -> str:
    """For people."""
    lines = [
        f"{found.trace}: {found.format}, blocks of {found.block_tokens} token{'s' if found.block_tokens > 1 else ''}",
        f"  requests   {found.requests:,} over {found.span_s / 60:.1f} min",
        f"  input      {tokens_text(found.input_tokens)} tokens; a request {_shown(found.input_quantiles)}",
        f"  output     {tokens_text(found.output_tokens)} tokens; a request {_shown(found.output_quantiles)}",
        f"  shared     {100 * found.infinite_hit_rate:.1f} % of the input would hit in an infinite cache, "
        f"which would hold {tokens_text(found.distinct_tokens)} tokens",
    ]
    if found.reuse_gap_s[0] is not None:
        gaps = ", ".join(f"{gap:.1f}" for gap in found.reuse_gap_s if gap is not None)
        lines.append(f"  reuse      10, 50, 90 % of it within {gaps} s of the last use")
    who = [
        f"{count:,} {name}"
        for count, name in (
            (found.sessions or 0, "sessions"),
            (found.salts, "cache salts"),
            (found.adapters, "adapters"),
            (found.priorities, "priorities"),
        )
        if count
    ]
    if who:
        lines.append(f"  from       {', '.join(who)}")
    lines += [f"  note       {note}" for note in found.notes]
    return "\n".join(lines) + "\n"


def _quantiles(values: array[int]) -> tuple[int, int, int]:
    ordered = sorted(values)
    if not ordered:
        return (0, 0, 0)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 9 // 10], ordered[-1]


def _shown(quantiles: tuple[int, int, int]) -> str:
    return "median {:,}, 90 % {:,}, most {:,}".format(*quantiles)
