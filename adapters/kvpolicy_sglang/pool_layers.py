"""SGLang's MHA pool with a KV dtype for each layer (`cache.kv_dtype.layers`).

The pool is upstream's own class, which knows one dtype: each of its methods that reads or writes a layer runs while the
pool says that layer's dtype. Between those calls it says a dtype that is not bf16, since models that fuse rope with the
write of K and V into a bf16 pool (`models/utils.py` enable_fused_set_kv_buffer) would pass the pool's methods by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

__all__ = ["TORCH_DTYPES", "LayeredKVPool"]

#: KV dtypes that a layer can have, by their names in a policy; `auto` is the model's own.
TORCH_DTYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


def _stored_as(dtype: torch.dtype) -> torch.dtype:
    """FP8 is stored as bytes, as upstream does: indexed writes know no FP8."""
    return torch.uint8 if dtype.itemsize == 1 else dtype


class LayeredKVPool(MHATokenToKVPool):  # type: ignore[misc]
    """K of shape `[slots, KV heads, head_dim]` and V of `[slots, KV heads, v_head_dim]` a layer, each in its dtype."""

    #: One a layer of this rank, first to last; set on a subclass (:meth:`of`), since upstream fixes the constructor.
    layer_dtypes: Sequence[torch.dtype] = ()

    @classmethod
    def of(cls, layer_dtypes: Sequence[torch.dtype]) -> type[LayeredKVPool]:
        """The class of a pool whose layers have these dtypes."""
        return type(cls.__name__, (cls,), {"layer_dtypes": tuple(layer_dtypes)})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.default_dtype = self.dtype
        # Never bf16, which fused writers take for leave to write by themselves.
        self._say(next((dtype for dtype in self.layer_dtypes if dtype != torch.bfloat16), self.dtype))

    def _say(self, dtype: torch.dtype) -> None:
        self.dtype, self.store_dtype = dtype, _stored_as(dtype)

    @contextmanager
    def _as_layer(self, layer_id: int) -> Iterator[None]:
        said = self.dtype
        self._say(self.layer_dtypes[layer_id - self.start_layer])
        try:
            yield
        finally:
            self._say(said)

    def _create_buffers_normal(self) -> None:
        """Upstream's allocation, once for each run of layers of one dtype."""
        said, layers = self.dtype, self.layer_num
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        try:
            for dtype, run in groupby(self.layer_dtypes):
                self._say(dtype)
                self.layer_num = len(list(run))
                super()._create_buffers_normal()
                keys += self.k_buffer
                values += self.v_buffer
        finally:
            self._say(said)
            self.layer_num = layers
        self.k_buffer, self.v_buffer = keys, values

    def _get_key_buffer(self, layer_id: int) -> torch.Tensor:
        with self._as_layer(layer_id):
            return super()._get_key_buffer(layer_id)

    def _get_value_buffer(self, layer_id: int) -> torch.Tensor:
        with self._as_layer(layer_id):
            return super()._get_value_buffer(layer_id)

    def set_kv_buffer(self, layer: Any, *args: Any, layer_id_override: int | None = None, **kwargs: Any) -> None:
        layer_id = layer.layer_id if layer_id_override is None else layer_id_override
        with self._as_layer(layer_id):
            super().set_kv_buffer(layer, *args, layer_id_override=layer_id_override, **kwargs)
