"""Page-aware slots: the PyTorch form against positions counted one by one, and the Triton form against it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpolicy.kernels import pages
from tests.conftest import DEMO_VERSION
from tests.programs import Program, run_all, with_path
from tools.environment import EngineEnv

HERE = Path(__file__).resolve().parent

Case = tuple[int, list[tuple[int, int]]]  # page size, (prefix, new tokens) of each request
CASES = st.tuples(
    st.sampled_from([2, 16, 64]), st.lists(st.tuples(st.integers(0, 70), st.integers(0, 70)), min_size=1, max_size=9)
)


def one_by_one(page_size: int, prefix: int, seq: int, last_loc: int, new_pages: list[int]) -> list[int]:
    """Slots of one request's tokens `prefix` to `seq`, from its new pages, which are used up."""
    slots = []
    for position in range(prefix, seq):
        last_loc = new_pages.pop(0) * page_size if position % page_size == 0 else last_loc + 1
        slots.append(last_loc)
    return slots


def expected(case: Case) -> tuple[dict[str, torch.Tensor], list[int]]:
    page_size, requests = case
    prefix = [prefix for prefix, _ in requests]
    seq = [prefix + new for prefix, new in requests]
    last = [(1000 + i) * page_size + (p - 1) % page_size if p else -1 for i, p in enumerate(prefix)]
    needed = sum(-(-b // page_size) - -(-a // page_size) for a, b in zip(prefix, seq, strict=True))
    new_pages = [7 + 3 * i for i in range(needed)]
    left = new_pages.copy()
    slots = [slot for row in zip(prefix, seq, last, strict=True) for slot in one_by_one(page_size, *row, left)]
    assert not left
    arrays = {"prefix": prefix, "seq": seq, "last": last, "new_pages": new_pages}
    return {name: torch.tensor(values, dtype=torch.int64) for name, values in arrays.items()}, slots


def check_extend(case: Case, extend: Callable[..., torch.Tensor]) -> None:
    given, slots = expected(case)
    counts = pages.new_pages_of_extend(given["prefix"], given["seq"], case[0])
    assert sum(counts) == given["new_pages"].numel()
    out = extend(given["prefix"], given["seq"], given["last"], given["new_pages"], len(slots), case[0])
    assert out.dtype == torch.int64
    assert out.tolist() == slots


def check_decode(case: Case, decode: Callable[..., torch.Tensor]) -> None:
    step = (case[0], [(prefix, 1) for prefix, _ in case[1]])
    given, slots = expected(step)
    counts = pages.new_pages_of_decode(given["seq"], case[0])
    assert sum(counts) == given["new_pages"].numel()
    assert decode(given["seq"], given["last"], given["new_pages"], case[0]).tolist() == slots


@settings(max_examples=300, deadline=None)
@given(case=CASES)
def test_slots_one_by_one(case: Case) -> None:
    check_extend(case, pages.extend_slots)
    check_decode(case, pages.decode_slots)


def test_lengths_may_be_narrow() -> None:
    """SGLang keeps lengths as int64 or int32, depending on the path."""
    given, slots = expected((16, [(3, 40), (0, 16), (32, 1)]))
    narrow = [given[name].to(torch.int32) for name in ("prefix", "seq", "last")]
    assert pages.extend_slots(*narrow, given["new_pages"], len(slots), 16).tolist() == slots


@pytest.mark.engine
def test_the_triton_form_agrees(sglang_env: Callable[..., EngineEnv]) -> None:
    """In Triton's interpreter; the largest batch needs several steps of the scan."""
    assert run_all(Program(sglang_env(DEMO_VERSION), HERE / "triton_form.py")) == [
        {"page cases": 36, "maps": 4, "plans": 5}
    ]


@pytest.mark.engine
def test_triton_compiles_every_kernel(sglang_env: Callable[..., EngineEnv]) -> None:
    engine = with_path(sglang_env(DEMO_VERSION), TRITON_INTERPRET="0")
    (code_bytes,) = run_all(Program(engine, HERE / "compiled_form.py"))
    kernels = {"_take_kernel", "_scan_kernel", "_extend_kernel", "_decode_kernel", "_page_plan_kernel"}
    assert set(code_bytes) == kernels
    assert all(code_bytes.values())
