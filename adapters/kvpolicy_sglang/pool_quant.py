"""SGLang's MHA pool with K and V in int8 or int4 (`cache.kv_dtype: int8_per_token_head | int4_per_token_head`).

The pool is upstream's own class. What it hands to a backend as a layer's K or V is a :class:`QuantizedSide`, which
gives numbers for the slots it is asked for, never for the whole pool. Torch-native asks it for a request's slots;
Triton's kernels are given codes and scales (`pool_quant_attention`).

The pool says it is of the codes' dtype, not bf16: models that fuse rope with the write of K and V into a bf16 pool
(`models/utils.py` enable_fused_set_kv_buffer) would pass `set_kv_buffer` by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

from kvpolicy.kernels import kv_quant
from kvpolicy.kernels.kv_quant import Encoding, Layer

__all__ = ["QuantizedKVPool", "QuantizedSide"]


class QuantizedSide:
    """K (side 0) or V (side 1) of one layer, as much of a tensor [slots, heads, head_dim] as backends use."""

    def __init__(self, layer: Layer, side: int, dtype: torch.dtype) -> None:
        self.layer, self.side, self.dtype = layer, side, dtype
        slots, heads, _ = layer.k_codes.shape
        self.shape = torch.Size((slots, heads, layer.head_dim))

    def __getitem__(self, loc: torch.Tensor) -> torch.Tensor:
        """What the slots `loc` hold, dtype[*loc.shape, heads, head_dim]."""
        loaded = kv_quant.load_side(self.layer, loc.reshape(-1).to(torch.int64), self.side, self.dtype)
        return loaded.view(*loc.shape, *self.shape[1:])


class QuantizedKVPool(MHATokenToKVPool):  # type: ignore[misc]
    """K and V of every layer in one encoding."""

    #: Set on a subclass (:meth:`of`), since upstream fixes the constructor.
    encoding: ClassVar[Encoding]

    @classmethod
    def of(cls, encoding: Encoding) -> type[QuantizedKVPool]:
        """The class of a pool of that encoding."""
        return type(cls.__name__, (cls,), {"encoding": encoding})

    @property
    def default_dtype(self) -> str:
        """The KV dtype, in a policy's words."""
        return f"{self.encoding.name}_per_token_head"

    def _create_buffers_normal(self) -> None:
        """Upstream's two lists hold the codes."""
        if self.head_dim != self.v_head_dim:
            raise ValueError(f"K and V of one width, not {self.head_dim} and {self.v_head_dim}")
        model_dtype, slots = self.dtype, self.size + self.page_size
        with self.memory_saver_adapter.region("kv_cache"):
            self.layers: list[Layer] = [
                kv_quant.empty(self.encoding, slots, self.head_num, self.head_dim, self.device)
                for _ in range(self.layer_num)
            ]
        self.k_buffer = [layer.k_codes for layer in self.layers]
        self.v_buffer = [layer.v_codes for layer in self.layers]
        self.dtype = self.store_dtype = torch.int8 if self.encoding.bits == 8 else torch.uint8
        self._sides = [[QuantizedSide(layer, side, model_dtype) for side in range(2)] for layer in self.layers]

    def _get_key_buffer(self, layer_id: int) -> Any:
        return self._sides[layer_id - self.start_layer][0]

    def _get_value_buffer(self, layer_id: int) -> Any:
        return self._sides[layer_id - self.start_layer][1]

    def set_kv_buffer(self, layer: Any, loc_info: Any, cache_k: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        """Upstream's, which converts nothing, since the pool is of the dtype that comes."""
        said = self.dtype, self.store_dtype
        self.dtype = self.store_dtype = cache_k.dtype
        try:
            super().set_kv_buffer(layer, loc_info, cache_k, *args, **kwargs)
        finally:
            self.dtype, self.store_dtype = said

    def _store_kv_layer(self, layer_idx: int, loc: torch.Tensor, cache_k: torch.Tensor, cache_v: torch.Tensor) -> None:
        shape = (-1, self.head_num, self.head_dim)
        kv_quant.store(self.layers[layer_idx], loc, cache_k.view(shape), cache_v.view(shape))

    def _tensors(self) -> list[torch.Tensor]:
        return [tensor for layer in self.layers for tensor in layer[1:]]

    def get_kv_size_bytes(self) -> tuple[int, int]:
        """Of K and of V, each with its half of the scales."""
        halves = [layer.k_codes.nbytes + layer.scales.nbytes // 2 for layer in self.layers]
        return sum(halves), sum(halves)

    def move_kv_cache(self, tgt_loc: torch.Tensor, src_loc: torch.Tensor) -> None:
        for tensor in self._tensors():
            tensor[tgt_loc] = tensor[src_loc]

    def get_cpu_copy(self, indices: torch.Tensor, *_args: Any, **_kwargs: Any) -> list[torch.Tensor]:
        return [tensor[indices].to("cpu") for tensor in self._tensors()]

    def load_cpu_copy(
        self, kv_cache_cpu: Sequence[torch.Tensor], indices: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> None:
        for tensor, copy in zip(self._tensors(), kv_cache_cpu, strict=True):
            tensor[indices] = copy.to(tensor.device)
