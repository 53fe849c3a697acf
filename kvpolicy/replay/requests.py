"""What a trace is made of once its format is out of the way: requests in the order in which they arrive.

A *block* is what the trace itself knows a prefix by: a hash id for a fixed number of tokens, or (``block_tokens`` 1)
the token. A *page* is what the replayed cache keeps. `pages.py` makes the second from the first.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from kvpolicy.eviction.base import RequestInfo

__all__ = ["NOBODY", "Request", "Session", "TraceInfo"]

#: What a policy sees of a request of which the trace says nothing.
NOBODY = RequestInfo()


@dataclass(slots=True)
class Request:
    """One request. Blocks are equal exactly where the prefixes up to them are equal."""

    arrival_ms: int
    input_tokens: int
    output_tokens: int
    blocks: Sequence[Hashable]  # of the prompt; the last one may be partly filled
    full_blocks: Sequence[Hashable] | None = None  # of prompt and output, where the trace holds the output
    info: RequestInfo = NOBODY
    duration_ms: int | None = None  # from arrival to the last token, where the trace says it


@dataclass(slots=True)
class Session:
    """Requests whose times count from the session's own start: somebody has to decide when it starts."""

    requests: Iterator[Request]


@dataclass(slots=True)
class TraceInfo:
    """What holds for a whole trace, known when the first row is read."""

    format: str
    block_tokens: int  # 1: the trace holds the tokens themselves
    has_sessions: bool = False  # rows are sessions on clocks of their own
    has_times: bool = True
    has_outputs: bool = False
    is_exact: bool = False  # blocks are hashes, but of real tokens: full ones only, and with their outputs
    ahead_pages: int = 1  # of such a trace: what a running request claims beyond the tokens it computes
    notes: list[str] = field(default_factory=list)
