"""Fits the cost model's constants to measured rows: least squares of the relative error, a dozen unknowns at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvpolicy.attention.cost import Cascade, Constants, Flat, Heads, Load, Plain, Plan

__all__ = ["Row", "fit"]


@dataclass(frozen=True, slots=True)
class Row:
    """One measured load: milliseconds of a layer on the GPU, and of a plan on the host."""

    load: Load
    plain_ms: float
    tensor_ms: float
    cascade_ms: float
    plan_flat_ms: float
    plan_cascade_ms: float


def fit(gpu: str, source: str, heads: Heads, rows: Sequence[Row]) -> Constants:
    """The constants that come nearest to ``rows``, in share of each row. ValueError where they do not settle them.

    Five loads with different requests, shared and unique tokens are needed, one of them at two page sizes.
    """
    loads = [row.load for row in rows]
    plain = _least_squares([[1.0, load.read_tokens] for load in loads], [row.plain_ms for row in rows])
    flat = _least_squares(
        [[1.0, load.read_tokens, load.distinct_tokens, load.requests, load.entries] for load in loads],
        [row.tensor_ms for row in rows],
    )
    cascade = _least_squares(
        [
            [
                1.0,
                load.requests * load.unique_tokens,
                load.shared_tokens,
                load.requests * load.shared_tokens,
                load.requests,
            ]
            for load in loads
        ],
        [row.cascade_ms for row in rows],
    )
    requests = [[1.0, load.requests] for load in loads]
    plan_flat = _least_squares(requests, [row.plan_flat_ms for row in rows])
    plan_cascade = _least_squares(requests, [row.plan_cascade_ms for row in rows])
    return Constants(
        gpu,
        source,
        heads,
        Plain(plain[0] * 1e3, plain[1] * 1e6),
        Flat(flat[0] * 1e3, *(value * 1e6 for value in flat[1:])),
        Cascade(cascade[0] * 1e3, *(value * 1e6 for value in cascade[1:])),
        Plan(plan_flat[0] * 1e3, plan_flat[1] * 1e3),
        Plan(plan_cascade[0] * 1e3, plan_cascade[1] * 1e3),
        most_requests=max(load.requests for load in loads),
        most_shared_tokens=max(load.shared_tokens for load in loads),
        most_unique_tokens=max(load.unique_tokens for load in loads),
    )


def _least_squares(features: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Weights that make ``features @ weights / values`` nearest to 1; the normal equations, columns scaled to one."""
    scales = [max(abs(row[i]) for row in features) for i in range(len(features[0]))]
    shares = [
        [x / scale / value for x, scale in zip(row, scales, strict=True)]
        for row, value in zip(features, values, strict=True)
    ]
    columns = list(zip(*shares, strict=True))
    system = [[sum(x * y for x, y in zip(a, b, strict=True)) for b in columns] + [sum(a)] for a in columns]
    return [weight / scale for weight, scale in zip(_solved(system), scales, strict=True)]


def _solved(system: list[list[float]]) -> list[float]:
    """Gauss and Jordan with pivots, on ``[A | b]`` in place."""
    size = len(system)
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(system[row][i]))
        if abs(system[pivot][i]) < 1e-12:
            raise ValueError("the measured rows do not settle every constant: measure more different loads")
        system[i], system[pivot] = system[pivot], system[i]
        system[i] = [value / system[i][i] for value in system[i]]
        for row in range(size):
            if row != i:
                factor = system[row][i]
                system[row] = [a - factor * b for a, b in zip(system[row], system[i], strict=True)]
    return [row[-1] for row in system]
