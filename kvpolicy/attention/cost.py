"""What one layer's decode attention costs on a GPU: flat, or with the shared prefix read once a group (a cascade).

A model of few terms, each with a meaning, whose constants were fitted to measurements (`measured.py` has them, with
the error on every row):

- ``plain`` (no tensor cores) is bound by arithmetic: a launch, and a cost for every token that a request reads.
- ``tensor``: every token read passes through L2, every distinct one comes from memory, and requests and index entries
  cost a little each.
- ``cascade`` (ours, or FlashInfer's with two levels): a launch of some kernels, each request's own tokens, the shared
  tokens once from memory and once a request through the tensor cores, and a merge for each request.

Times are of one layer. A plan is made on the host once a step, for all layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Cascade", "Constants", "Estimate", "Flat", "Heads", "Load", "Plain", "Plan", "estimate", "least_shared"]

_LONGEST_TOKENS = 1 << 24


@dataclass(frozen=True, slots=True)
class Heads:
    """One layer's heads on one rank."""

    query: int
    kv: int
    dim: int
    element_bytes: float = 2.0  # of a stored K or V element

    @property
    def token_bytes(self) -> float:
        """Of K and V."""
        return 2 * self.kv * self.dim * self.element_bytes


class Reads(Protocol):
    """What one step reads, whoever shares what."""

    @property
    def requests(self) -> int: ...
    @property
    def read_tokens(self) -> int:
        """By all requests together, where each reads all of its own context."""

    @property
    def distinct_tokens(self) -> int:
        """Each counted once."""

    @property
    def entries(self) -> int:
        """Of the flat index."""


@dataclass(frozen=True, slots=True)
class Load:
    """One decode step: ``requests`` that share ``shared_tokens`` and have ``unique_tokens`` each of their own."""

    requests: int
    shared_tokens: int
    unique_tokens: int
    page_tokens: int = 1

    @property
    def read_tokens(self) -> int:
        """By all requests together, where each reads all of its own context."""
        return self.requests * (self.shared_tokens + self.unique_tokens)

    @property
    def distinct_tokens(self) -> int:
        return self.shared_tokens + self.requests * self.unique_tokens

    @property
    def entries(self) -> int:
        """Of the flat index."""
        return self.requests * self._pages(self.shared_tokens, self.unique_tokens)

    @property
    def cascade_entries(self) -> int:
        return self._pages(self.shared_tokens) + self.requests * self._pages(self.unique_tokens)

    def _pages(self, *parts: int) -> int:
        return sum(-(-tokens // self.page_tokens) for tokens in parts)


@dataclass(frozen=True, slots=True)
class Plain:
    """Decode without tensor cores."""

    launch_us: float
    read_ns: float  # a token read


@dataclass(frozen=True, slots=True)
class Flat:
    """Decode with tensor cores."""

    launch_us: float
    read_ns: float
    distinct_ns: float  # a token, once, from memory
    request_ns: float
    entry_ns: float


@dataclass(frozen=True, slots=True)
class Cascade:
    """Shared parts, own parts, and their merge."""

    launch_us: float
    unique_ns: float
    shared_ns: float  # a shared token, from memory
    read_ns: float  # the same for each request that reads it
    request_ns: float


@dataclass(frozen=True, slots=True)
class Plan:
    """On the host."""

    fixed_us: float
    request_us: float

    def ms(self, load: Reads) -> float:
        return (self.fixed_us + self.request_us * load.requests) / 1e3


@dataclass(frozen=True, slots=True)
class Constants:
    """Of one GPU and one library, fitted to rows measured with ``heads``."""

    gpu: str
    source: str  # what was measured, with which version
    heads: Heads
    plain: Plain
    flat: Flat
    cascade: Cascade
    plan_flat: Plan
    plan_cascade: Plan
    most_requests: int  # what the rows span; beyond it the model extrapolates
    most_shared_tokens: int
    most_unique_tokens: int

    def covers(self, load: Load, heads: Heads) -> bool:
        """Whether rows were measured around there."""
        return (
            heads == self.heads
            and load.requests <= self.most_requests
            and load.shared_tokens <= self.most_shared_tokens
            and load.unique_tokens <= self.most_unique_tokens
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    """Milliseconds: of one layer on the GPU, and of one plan on the host."""

    plain_ms: float
    tensor_ms: float
    cascade_ms: float
    plan_flat_ms: float
    plan_cascade_ms: float

    @property
    def flat_ms(self) -> float:
        """The better of the two ways to read everything for every request."""
        return min(self.plain_ms, self.tensor_ms)

    def gain_ms(self, layers: int) -> float:
        """What a cascade saves a step over all layers, its longer plan taken off; negative: it costs."""
        return layers * (self.flat_ms - self.cascade_ms) - (self.plan_cascade_ms - self.plan_flat_ms)


def flat_ms(constants: Constants, reads: Reads, heads: Heads) -> tuple[float, float]:
    """(without tensor cores, with them). Terms in tokens scale with a token's bytes, ``plain`` with the arithmetic."""
    arithmetic = heads.query * heads.dim / (constants.heads.query * constants.heads.dim)
    size = heads.token_bytes / constants.heads.token_bytes
    plain, flat = constants.plain, constants.flat
    plain_ns = plain.read_ns * arithmetic * reads.read_tokens
    tensor_ns = (
        size * (flat.read_ns * reads.read_tokens + flat.distinct_ns * reads.distinct_tokens)
        + flat.request_ns * reads.requests
        + flat.entry_ns * reads.entries
    )
    return plain.launch_us / 1e3 + plain_ns / 1e6, flat.launch_us / 1e3 + tensor_ns / 1e6


def estimate(constants: Constants, load: Load, heads: Heads) -> Estimate:
    """Of a load whose requests all share one prefix."""
    size = heads.token_bytes / constants.heads.token_bytes
    cascade = constants.cascade
    shared_ns = cascade.shared_ns + cascade.read_ns * load.requests
    cascade_ns = (
        size * (cascade.unique_ns * load.requests * load.unique_tokens + shared_ns * load.shared_tokens)
        + cascade.request_ns * load.requests
    )
    plain_ms, tensor_ms = flat_ms(constants, load, heads)
    return Estimate(
        plain_ms=plain_ms,
        tensor_ms=tensor_ms,
        cascade_ms=cascade.launch_us / 1e3 + cascade_ns / 1e6,
        plan_flat_ms=constants.plan_flat.ms(load),
        plan_cascade_ms=constants.plan_cascade.ms(load),
    )


def least_shared(constants: Constants, load: Load, heads: Heads, layers: int) -> int | None:
    """The shortest shared prefix, in tokens, for which a cascade pays with so many requests; None: none does."""

    def pays(tokens: int) -> bool:
        tried = Load(load.requests, tokens, load.unique_tokens, load.page_tokens)
        return estimate(constants, tried, heads).gain_ms(layers) > 0

    if not pays(_LONGEST_TOKENS):
        return None
    low, high = 0, _LONGEST_TOKENS  # the gain grows with the shared tokens, or it never pays
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high
