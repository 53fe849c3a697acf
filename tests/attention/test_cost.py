"""The cost model against the measured rows: error, held-out error, and whether it would have chosen well."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from kvpolicy.attention.cost import Constants, Heads, Load, estimate, least_shared
from kvpolicy.attention.fit import Row, fit
from kvpolicy.attention.measured import (
    CONSTANTS,
    FLASHINFER_CASCADE,
    H200_FLASHINFER_ROWS,
    H200_ROWS,
    WORST_HELD_OUT,
)

H200, FLASHINFER = CONSTANTS["h200"], FLASHINFER_CASCADE["h200"]
HEADS = H200.heads
#: Each row, with the constants fitted to it and its like.
ALL_ROWS = [*((H200, row) for row in H200_ROWS), *((FLASHINFER, row) for row in H200_FLASHINFER_ROWS)]
IDS = [f"{'ours' if constants is H200 else 'theirs'} {str(row.load)[5:-1]}" for constants, row in ALL_ROWS]


def errors(constants: Constants, row: Row) -> dict[str, float]:
    """Shares by which the model is off."""
    told = estimate(constants, row.load, HEADS)
    return {
        name: getattr(told, name) / getattr(row, name) - 1
        for name in ("plain_ms", "tensor_ms", "cascade_ms", "plan_flat_ms", "plan_cascade_ms")
    }


@pytest.mark.parametrize(("constants", "row"), ALL_ROWS, ids=IDS)
def test_rows_of_the_fit(constants: Constants, row: Row) -> None:
    off = errors(constants, row)
    assert max(abs(off[name]) for name in ("plain_ms", "tensor_ms")) < 0.07
    assert abs(off["cascade_ms"]) < (0.12 if constants is H200 else 0.05)
    assert max(abs(off[name]) for name in ("plan_flat_ms", "plan_cascade_ms")) < 0.45, "the host's clock"


def held_out(constants: Constants, row: Row) -> Constants:
    """Fitted without any row of that load, whatever its page."""
    of = replace(row.load, page_tokens=1)
    rows = H200_ROWS if constants is H200 else H200_FLASHINFER_ROWS
    return fit("h200", "", HEADS, [other for other in rows if replace(other.load, page_tokens=1) != of])


def test_a_load_that_was_not_fitted() -> None:
    worst = max(
        abs(off)
        for constants, row in ALL_ROWS
        for name, off in errors(held_out(constants, row), row).items()
        if not name.startswith("plan")
    )
    assert 0.8 * WORST_HELD_OUT < worst < WORST_HELD_OUT, "what is told of the error is what it is"


def test_the_errors_that_are_documented() -> None:
    """docs/page-size.md has the largest error of each kernel, fitted and held out, rounded up."""
    document = (Path(__file__).parents[2] / "docs/page-size.md").read_text()
    kinds = {
        "decode without tensor cores": (H200, "plain_ms"),
        "decode with tensor cores": (H200, "tensor_ms"),
        "cascade, kvpolicy's": (H200, "cascade_ms"),
        "cascade, FlashInfer's": (FLASHINFER, "cascade_ms"),
    }
    for words, (constants, name) in kinds.items():
        rows = [row for of, row in ALL_ROWS if of is constants]
        fitted = max(abs(errors(constants, row)[name]) for row in rows)
        unseen = max(abs(errors(held_out(constants, row), row)[name]) for row in rows)
        assert f"| {words} | {math.ceil(100 * fitted)} % | {math.ceil(100 * unseen)} % |" in document


@pytest.mark.parametrize(("constants", "row"), ALL_ROWS, ids=IDS)
def test_the_choice_is_within_two_percent_of_the_best(constants: Constants, row: Row) -> None:
    """Also with constants that have not seen the load."""
    for known in (constants, held_out(constants, row)):
        told = estimate(known, row.load, HEADS)
        chosen = min(("plain_ms", "tensor_ms", "cascade_ms"), key=lambda name: getattr(told, name))
        best = min(row.plain_ms, row.tensor_ms, row.cascade_ms)
        assert best / getattr(row, chosen) >= 0.98


def test_a_wrong_constant_is_seen() -> None:
    """The checks above can fail: a cascade that reads its shared part at half the price changes rows and choices."""
    wrong = replace(H200, cascade=replace(H200.cascade, shared_ns=H200.cascade.shared_ns / 4))
    assert any(abs(errors(wrong, row)["cascade_ms"]) > 0.15 for row in H200_ROWS)
    told = [estimate(wrong, row.load, HEADS) for row in H200_ROWS]
    assert any(
        (each.cascade_ms < each.flat_ms) != (row.cascade_ms < min(row.plain_ms, row.tensor_ms))
        for each, row in zip(told, H200_ROWS, strict=True)
    )


def test_a_fit_finds_the_constants_that_made_the_rows() -> None:
    rng = random.Random(5)
    loads = [
        Load(rng.randint(4, 300), 64 * rng.randint(1, 600), 64 * rng.randint(1, 30), rng.choice((1, 16, 64)))
        for _ in range(12)
    ]
    rows = []
    for load in loads:
        told = estimate(H200, load, HEADS)
        rows.append(Row(load, told.plain_ms, told.tensor_ms, told.cascade_ms, told.plan_flat_ms, told.plan_cascade_ms))
    again = fit("h200", H200.source, HEADS, rows)
    for part in ("plain", "flat", "cascade", "plan_flat", "plan_cascade"):
        for name in getattr(H200, part).__slots__:
            assert getattr(getattr(again, part), name) == pytest.approx(getattr(getattr(H200, part), name), rel=1e-3)


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="measure more different loads"):
        fit("h200", "", HEADS, H200_ROWS[4:6])


def test_index_entries() -> None:
    load = Load(requests=4, shared_tokens=100, unique_tokens=40, page_tokens=16)
    assert load.entries == 4 * (7 + 3)
    assert load.cascade_entries == 7 + 4 * 3
    assert replace(load, page_tokens=1).entries == 4 * 140
    assert (load.read_tokens, load.distinct_tokens) == (560, 260)


def test_where_a_cascade_begins_to_pay() -> None:
    load = Load(128, 0, 256, 16)
    least = least_shared(H200, load, HEADS, layers=32)
    assert least is not None
    assert estimate(H200, replace(load, shared_tokens=least), HEADS).gain_ms(32) > 0
    assert estimate(H200, replace(load, shared_tokens=least - 1), HEADS).gain_ms(32) <= 0
    assert least_shared(H200, replace(load, requests=4), HEADS, layers=32) is None, "reading it flat is cheaper"
    theirs = [least_shared(FLASHINFER, load, HEADS, layers) for layers in (32, 80)]
    assert theirs[0] is not None
    assert theirs[1] is not None
    assert least < theirs[1] < theirs[0], "a plan serves all layers"


def test_smaller_tokens_cost_less() -> None:
    """Half the KV heads on a rank: token terms halve, launches stay."""
    load = Load(128, 8192, 256, 16)
    whole, half = estimate(H200, load, HEADS), estimate(H200, load, Heads(16, 4, 128))
    assert 0.5 < half.tensor_ms / whole.tensor_ms < 0.6
    assert 0.5 < half.plain_ms / whole.plain_ms < 0.53
    assert half.cascade_ms < whole.cascade_ms
    assert H200.covers(load, HEADS)
    assert not H200.covers(load, Heads(16, 4, 128))
    assert not H200.covers(replace(load, requests=512), HEADS)
