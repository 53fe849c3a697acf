"""What passes between `kvpolicy fidelity` and the child program that holds the engine, and what an adapter provides.

The parent writes a :class:`Job` to the child's standard input; the child answers with JSON lines on a pipe, and exits.
A text is cut into windows, each scored twice:

- ``cached``: in steps of ``stride_tokens``, each a request of its own whose prefix comes from the cache. Every token
  but the last few before it is read back from storage, as decoding reads it, on every backend.
- ``cold``: in one prefill that reuses nothing. Some backends attend to the fresh keys rather than the stored ones
  here, and then a dtype costs nothing in this pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

__all__ = ["PASSES", "FidelityError", "Job", "Scored", "Scorer", "Settings"]

PASSES = ("cached", "cold")  # in the order they run: the first finds an empty cache


class FidelityError(Exception):
    """A measurement that cannot be made; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Job:
    """What one child measures. ``engine_args``: keyword arguments of the engine's own class, for both runs alike."""

    model: str
    policy: str  # a policy file, of `cache` and `backend` only
    text: str
    window_tokens: int
    max_tokens: int  # of the text, at most
    top_k: int
    engine_args: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """What an engine really runs."""

    engine: str
    version: str
    device: str  # "cpu", or the GPU's name
    model_dtype: str  # the dtype it computes in
    kv_dtype: str  # the dtype it stores, canonical names
    kv_layers: Mapping[str, str]  # layer -> dtype, of layers that differ
    page_size: int
    attention: str


class Scored(NamedTuple):
    """Distributions of ``tokens[start + 1:]``, in order: the text's own logprob, and the top k's ids and logprobs."""

    actual: Sequence[float]
    ids: Sequence[Sequence[int]]
    logprobs: Sequence[Sequence[float]]
    cached_tokens: int  # how many of ``tokens`` the engine took from its cache


class Scorer(Protocol):
    """An engine that scores. The adapters' ``score`` modules implement it."""

    def settings(self) -> Settings:
        """What runs, as far as the engine tells."""

    def encode(self, text: str) -> list[int]:
        """Token ids, with the special tokens that the model's tokenizer puts around a text."""

    def score(self, tokens: list[int], start: int, *, reuse: bool) -> Scored:
        """One request. ``reuse``: take ``tokens[:start]`` from the cache; otherwise nothing (``start`` is 0)."""

    def close(self) -> None:
        """End the engine and its processes."""
