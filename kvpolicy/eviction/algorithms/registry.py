"""The built-in eviction algorithms by name, with their parameters as data."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from kvpolicy.eviction.algorithms import lru
from kvpolicy.eviction.algorithms.spec import Algorithm, AlgorithmSpec, Param
from kvpolicy.eviction.base import PolicyClock

__all__ = ["ALGORITHMS", "AlgorithmSpec", "Param", "get_spec", "make_algorithm"]

#: In the order in which they are listed to people.
ALGORITHMS: dict[str, AlgorithmSpec] = {module.SPEC.name: module.SPEC for module in (lru,)}


def get_spec(name: str) -> AlgorithmSpec:
    """The algorithm called ``name``. Raises ValueError with a suggestion."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    close = difflib.get_close_matches(name, ALGORITHMS, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"unknown eviction policy {name!r}{hint} (known: {', '.join(ALGORITHMS)})")


def make_algorithm(name: str, params: Mapping[str, Any], clock: PolicyClock) -> Algorithm:
    """Build one. Raises ValueError for an unknown name or a bad parameter."""
    spec = get_spec(name)
    return spec.build(clock, **spec.validate_params(params))
