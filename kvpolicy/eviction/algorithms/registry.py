"""The built-in eviction algorithms by name. Names, parameters and ranges are words of the language: its vocabulary
lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvpolicy.eviction.algorithms.adaptive import Adaptive
from kvpolicy.eviction.algorithms.fifo import FIFO
from kvpolicy.eviction.algorithms.filo import FILO
from kvpolicy.eviction.algorithms.gdsf import GDSF
from kvpolicy.eviction.algorithms.hit_density import HitDensity
from kvpolicy.eviction.algorithms.lfu import LFU
from kvpolicy.eviction.algorithms.lru import LRU
from kvpolicy.eviction.algorithms.mru import MRU
from kvpolicy.eviction.algorithms.priority import Priority
from kvpolicy.eviction.algorithms.reuse_rate import ReuseRate
from kvpolicy.eviction.algorithms.s3fifo import S3FIFO
from kvpolicy.eviction.algorithms.sieve import Sieve
from kvpolicy.eviction.algorithms.slru import SLRU
from kvpolicy.eviction.algorithms.spec import Algorithm
from kvpolicy.eviction.algorithms.tlru import TLRU
from kvpolicy.eviction.base import PolicyClock

__all__ = ["ALGORITHMS", "make_algorithm"]

ALGORITHMS: dict[str, type[Algorithm]] = {
    "lru": LRU,
    "lfu": LFU,
    "fifo": FIFO,
    "filo": FILO,
    "mru": MRU,
    "slru": SLRU,
    "priority": Priority,
    "tlru": TLRU,
    "gdsf": GDSF,
    "s3fifo": S3FIFO,
    "sieve": Sieve,
    "hit_density": HitDensity,
    "reuse_rate": ReuseRate,
    "adaptive": Adaptive,
}


def make_algorithm(name: str, params: Mapping[str, Any], clock: PolicyClock) -> Algorithm:
    """Build one; ``params`` are canonical numbers (``language.eviction_words.resolved_params``).

    Raises KeyError, naming what there is, for an unknown name.
    """
    if name not in ALGORITHMS:
        raise KeyError(f"unknown eviction policy {name!r}; known: {', '.join(ALGORITHMS)}")
    build: Callable[..., Algorithm] = ALGORITHMS[name]
    return build(clock, **params)
