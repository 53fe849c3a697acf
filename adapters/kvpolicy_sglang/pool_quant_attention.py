"""SGLang's Triton backend over a pool of int8 or int4 K and V: its two kernels, called with what they can read.

A decode step goes to our kernel, which reads codes and scales. An extend reads a prefix: the slots that the batch
needs, and no others, are dequantized into a scratch of the model's dtype, layer after layer, for upstream's kernel.
The backend itself is upstream's; so is everything it is given where the pool is another.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from kvpolicy.kernels import kv_quant

from .pool_quant import QuantizedSide

__all__ = ["EXTENDS", "wrap_backend", "wrapped_decode", "wrapped_extend"]

#: The backend's attributes that are kernels which read a prefix.
EXTENDS = ("extend_attention_fwd", "extend_attention_fwd_unified")


def wrap_backend(_result: None, backend: Any, *_args: Any, **_kwargs: Any) -> None:
    """After `TritonAttnBackend.__init__`. SystemExit where this version's kernels take other arguments."""
    backend.decode_attention_fwd = wrapped_decode(backend.decode_attention_fwd)
    for name in EXTENDS:
        setattr(backend, name, wrapped_extend(getattr(backend, name)))


def _places(kernel: Callable[..., Any], *names: str) -> list[int]:
    """Where these arguments stand."""
    known = list(inspect.signature(kernel).parameters)
    missing = [name for name in names if name not in known]
    if missing:
        raise SystemExit(f"kvpolicy: this SGLang's {kernel.__name__} has no argument {', '.join(missing)}")
    return [known.index(name) for name in names]


def wrapped_decode(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`decode_attention_fwd` that reads a quantized layer itself."""
    names = ("q", "k_buffer", "o", "kv_indptr", "kv_indices", "sm_scale")
    at_q, at_k, at_o, at_indptr, at_indices, at_scale = _places(kernel, *names)

    def decode(*args: Any, logit_cap: float = 0.0, **kwargs: Any) -> None:
        side = args[at_k]
        if not isinstance(side, QuantizedSide):
            kernel(*args, logit_cap=logit_cap, **kwargs)
            return
        q, indptr, indices = args[at_q], args[at_indptr], args[at_indices]
        kv_quant.decode_attention(q, side.layer, indptr, indices, args[at_scale], logit_cap, out=args[at_o])

    return decode


def wrapped_extend(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """An extend kernel that is given the prefix of a quantized layer as tensors of its own."""
    at_k, at_v, at_indices = _places(kernel, "k_buffer", "v_buffer", "kv_indices")

    def extend(*args: Any, **kwargs: Any) -> Any:
        side, indices = args[at_k], args[at_indices]
        if not isinstance(side, QuantizedSide):
            return kernel(*args, **kwargs)
        given = list(args)
        given[at_k], given[at_v] = kv_quant.load(side.layer, indices, side.dtype)
        given[at_indices] = torch.arange(indices.numel(), dtype=indices.dtype, device=indices.device)
        return kernel(*given, **kwargs)

    return extend
