"""What a benchmark sends, what one window of it measured, and what a side of the comparison can do."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

__all__ = ["BenchError", "Failed", "Side", "Target", "Traffic", "Window"]


class BenchError(Exception):
    """A benchmark that cannot be run; the text says why and what to do."""


class Failed(BenchError):
    """Requests of a window failed: its figures would compare different work."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """One window's requests: random tokens, of which the first ``shared_tokens`` are the same within a group."""

    requests: int = 64
    input_tokens: int = 512  # of a request's own
    output_tokens: int = 64
    shared_tokens: int = 0
    groups: int = 1
    rate: float | None = None  # requests a second, Poisson; None: all at once
    concurrency: int | None = None  # at most so many at a time
    extra: tuple[str, ...] = ()  # further arguments of the engine's benchmark

    def scaled(self, requests: int) -> Traffic:
        """The same with at least ``requests`` requests, a whole number of groups."""
        whole = max(1, -(-requests // self.groups)) * self.groups
        return Traffic(
            min(whole, self.requests), self.input_tokens, self.output_tokens, self.shared_tokens, self.groups,
            self.rate, self.concurrency, self.extra,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Window:
    """What the engine's benchmark said of one window."""

    requests: int
    duration_s: float
    output_tokens_per_s: float
    ttft_ms: float  # mean
    ttft_p99_ms: float
    tpot_ms: float  # mean
    hit_rate: float | None  # of the prompt tokens; None: the server has no /metrics


@dataclass(frozen=True, slots=True)
class Target:
    """A server to send a window to."""

    engine: str
    url: str
    model: str  # as requests name it
    tokenizer: str  # a folder, or a name that the engine's benchmark resolves
    api_key: str | None = None
    is_ours: bool = False  # started here: its cache is emptied before every window


class Side(Protocol):
    """One of the two that are compared."""

    @property
    def label(self) -> str:
        """``A`` or ``B``."""

    def serving(self) -> AbstractContextManager[Target]:
        """The server under this side's policy, for one window. BenchError, LiveError."""
