"""K and V in int8 and int4: what is stored, by hand; the Triton form in its interpreter, and through its compiler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpolicy.kernels import kv_quant
from kvpolicy.kernels.kv_quant import INT4, INT8, Encoding
from tests.conftest import DEMO_VERSION
from tests.programs import Program, run_all, with_path
from tools.environment import EngineEnv

HERE = Path(__file__).resolve().parent


def stored(encoding: Encoding, x: torch.Tensor) -> tuple[torch.Tensor, kv_quant.Layer]:
    """What a layer gives back of `x` [tokens, heads, head_dim], and the layer."""
    tokens, heads, head_dim = x.shape
    layer = kv_quant.empty(encoding, tokens + 1, heads, head_dim, "cpu")
    loc = torch.arange(tokens, 0, -1)
    kv_quant.store(layer, loc, x, x)
    k, v = kv_quant.load(layer, loc, torch.float32)
    assert torch.equal(k, v)
    return k, layer


@settings(max_examples=60, deadline=None)
@given(
    encoding=st.sampled_from([INT8, INT4, Encoding("int8 in groups", 8, 16), Encoding("int4 a head", 4, 0)]),
    head_dim=st.sampled_from([32, 64, 128, 256]),
    magnitude=st.sampled_from([1e-30, 1e-4, 1.0, 3e4, 1e30]),
    seed=st.integers(0, 2**31),
)
def test_no_number_is_off_by_more_than_half_a_step(
    encoding: Encoding, head_dim: int, magnitude: float, seed: int
) -> None:
    x = torch.randn((3, 2, head_dim), generator=torch.Generator().manual_seed(seed)) * magnitude
    found, layer = stored(encoding, x)
    scales = layer.scales[1:, ..., 0].flip(0).float()
    step = scales.repeat_interleave(head_dim // scales.shape[2], dim=2)
    assert ((x - found).abs() <= step / 2 * (1 + 1e-5)).all()
    largest = x.abs().view(3, 2, scales.shape[2], -1).amax(-1)
    assert (scales <= largest / encoding.qmax * (1 + 2**-8)).all()


def test_codes_by_hand() -> None:
    x = torch.zeros((1, 1, 64))
    x[0, 0, :4] = torch.tensor([7.0, -3.0, 0.4, 2.6])
    x[0, 0, 32:34] = torch.tensor([-70.0, 30.0])
    found, layer = stored(INT4, x)
    assert layer.scales[1, 0, :, 0].tolist() == [1.0, 10.0]  # one a group of 32
    assert [(byte & 15, byte >> 4) for byte in layer.k_codes[1, 0, :4].tolist()] == [(15, 1), (5, 11), (8, 8), (11, 8)]
    assert found[0, 0, :4].tolist() == [7.0, -3.0, 0.0, 3.0]
    assert found[0, 0, 32:34].tolist() == [-70.0, 30.0]


def test_zeros_stay_zeros() -> None:
    for encoding in (INT8, INT4):
        assert not stored(encoding, torch.zeros((2, 1, 64)))[0].any()


def test_bytes_of_a_head() -> None:
    """Against 256 bytes in bf16: 1.97 and 3.56 times the tokens."""
    assert (INT8.head_bytes(128), INT4.head_bytes(128)) == (130, 72)
    layer = kv_quant.empty(INT4, 10, 2, 128, "cpu")
    assert sum(tensor.nbytes for tensor in layer[1:]) == 10 * 2 * 2 * INT4.head_bytes(128)
    with pytest.raises(ValueError, match="heads of 32, 64, 128, 256 values, not 96"):
        kv_quant.empty(INT8, 10, 2, 96, "cpu")


@pytest.mark.engine
def test_the_triton_form_agrees(sglang_env: Callable[..., EngineEnv]) -> None:
    """The same bytes as the twin's; attention within fp16's rounding of float64."""
    (told,) = run_all(Program(sglang_env(DEMO_VERSION), HERE / "kv_quant_form.py"))
    assert len(told["error"]) == 5
    assert max(told["error"].values()) < 1e-3, told


@pytest.mark.engine
def test_triton_compiles_every_kernel(sglang_env: Callable[..., EngineEnv]) -> None:
    """The forms that only a GPU runs too."""
    engine = with_path(sglang_env(DEMO_VERSION), TRITON_INTERPRET="0")
    assert run_all(Program(engine, HERE / "kv_quant_compiled.py")) == [{"kernels": 7}]
