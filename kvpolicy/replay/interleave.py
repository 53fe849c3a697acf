"""Put sessions, each on a clock of its own, onto one clock: an explicit, seeded choice that every report prints."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass

from kvpolicy.replay.requests import Request, Session

__all__ = ["Interleaving", "interleave"]


@dataclass(slots=True)
class Interleaving:
    """Sessions start in file order, the gaps between starts drawn from an exponential distribution."""

    mean_gap_s: float = 30.0
    seed: int = 7
    tail_s: float | None = 3600.0  # requests later than this after the last start are dropped: few sessions are left
    max_sessions: int | None = None
    # -- filled while reading --
    sessions: int = 0
    dropped: int = 0

    def __str__(self) -> str:
        text = f"{self.sessions} sessions, exponential starts of mean {self.mean_gap_s:g} s, seed {self.seed}"
        if self.tail_s is None:
            return text
        return f"{text}, cut {self.tail_s:g} s after the last start ({self.dropped} requests dropped)"


def interleave(sessions: Iterator[Session], how: Interleaving) -> Iterator[Request]:
    """All requests in order of arrival; keeps only the sessions that are open. Ties go by session, then by row."""
    draw = random.Random(how.seed)
    start_ms = 0.0
    waiting: list[tuple[int, int, int, Request, Iterator[Request], float]] = []

    def push(number: int, row: int, requests: Iterator[Request], offset_ms: float) -> None:
        request = next(requests, None)
        if request is not None:
            request.arrival_ms = int(request.arrival_ms + offset_ms)
            heapq.heappush(waiting, (request.arrival_ms, number, row, request, requests, offset_ms))

    def pop() -> Request:
        _, number, row, request, requests, offset_ms = heapq.heappop(waiting)
        push(number, row + 1, requests, offset_ms)
        return request

    for session in sessions:
        how.sessions += 1
        start_ms += draw.expovariate(1.0 / how.mean_gap_s) * 1000 if how.mean_gap_s > 0 else 0.0
        while waiting and waiting[0][0] < start_ms:
            yield pop()
        push(how.sessions, 0, session.requests, start_ms)
        if how.sessions == how.max_sessions:
            break
    last_ms = float("inf") if how.tail_s is None else start_ms + how.tail_s * 1000
    while waiting:
        request = pop()
        if request.arrival_ms <= last_ms:
            yield request
        else:
            how.dropped += 1
