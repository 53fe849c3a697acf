"""The pool whose layers differ in dtype, built and used inside a real SGLang: what it stores, costs and moves.

Tells one object: dtypes, bytes, and the largest error of what was read back, by layer.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch
from kvpolicy_sglang.pool_hooks import LayeredPools, Pools
from kvpolicy_sglang.pool_layers import TORCH_DTYPES, LayeredKVPool
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, NoOpMHATokenToKVPool

from kvpolicy.compiler import compile_policy
from kvpolicy.language import policy_from_flat
from kvpolicy.runtime.active import ActivePolicy

HEADS, HEAD_DIM, SLOTS, LAYERS = 2, 8, 32, 5
SHAPE = {"head_num": HEADS, "head_dim": HEAD_DIM, "device": "cpu", "enable_memory_saver": False, "page_size": 1}


def active(layers: dict[str, str], default: str = "bf16") -> ActivePolicy:
    flat = {
        "apiVersion": "kvpolicy/v1",
        "kind": "KVPolicy",
        "metadata": {"name": "layers"},
        "cache": {"kv_dtype": {"default": default, "layers": layers}},
    }
    policy = policy_from_flat(flat, engine="sglang")
    compiled = compile_policy(policy, "sglang")
    return ActivePolicy(policy, flat, "", "scheduler", "layers", "layers.yaml", compiled)


def configurator(start: int = 0, stop: int = LAYERS, dtype: torch.dtype = torch.bfloat16) -> SimpleNamespace:
    """What the hooks read of SGLang's configurator."""
    return SimpleNamespace(
        server_args=SimpleNamespace(attention_backend="torch_native"),
        kv_cache_dtype=dtype,
        model_config=SimpleNamespace(num_hidden_layers=LAYERS, dtype=torch.float32),
        layer_info=SimpleNamespace(start_layer=start, end_layer=stop, num_effective_layers=stop - start),
    )


def build(pools: Pools, kvc: Any, pool_class: type = MHATokenToKVPool) -> Any:
    """The pool that SGLang's own construction gives, with our hook around it."""
    info = kvc.layer_info

    def original(_kvc: Any, *, mha_pool_class: type, quant_method: Any = None) -> Any:
        return mha_pool_class(
            SLOTS - 1, dtype=kvc.kv_cache_dtype, layer_num=info.num_effective_layers, start_layer=info.start_layer,
            end_layer=info.end_layer, enable_alt_stream=False, **SHAPE,
        )  # fmt: skip

    return pools.build(original, kvc, mha_pool_class=pool_class)


def cell_bytes(pools: Pools, kvc: Any) -> int:
    """Bytes a token, from what SGLang counts for a pool of bf16."""
    uniform = kvc.layer_info.num_effective_layers * HEADS * 2 * HEAD_DIM * 2
    return pools.cell_bytes(lambda _sizer, _kvc, _layers: uniform, None, kvc, kvc.layer_info.num_effective_layers)


def written_and_read(pool: Any, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of three tokens, and how far from them is what the pool gives back (largest, of K and V)."""
    generator = torch.Generator().manual_seed(layer)
    key, value = (torch.randn(3, HEADS, HEAD_DIM, generator=generator) for _ in range(2))
    slots = torch.tensor([3, 7, 30])
    attention = SimpleNamespace(layer_id=layer, k_scale=None, v_scale=None)
    pool.set_kv_buffer(attention, slots, key.clone(), value.clone())
    dtype = pool.get_key_buffer(layer).dtype
    assert pool.get_value_buffer(layer).dtype == dtype
    assert torch.equal(pool.get_key_buffer(layer)[slots].float(), key.to(dtype).float())
    assert torch.equal(pool.get_value_buffer(layer)[slots].float(), value.to(dtype).float())
    return key, value


def mixed(start: int, stop: int) -> dict[str, Any]:
    pools = LayeredPools(active({"0": "fp8_e4m3", "1-2": "fp8_e5m2", "-1": "auto"}))
    kvc = configurator(start, stop)
    counted = cell_bytes(pools, kvc)
    pool = build(pools, kvc)
    pools.require_built(pool)
    for layer in range(start, stop):
        written_and_read(pool, layer)
    before = [pool.get_key_buffer(layer).float().clone() for layer in range(start, stop)]
    copied = pool.get_cpu_copy(torch.tensor([3, 7]))
    for buffer in (*pool.k_buffer, *pool.v_buffer):
        buffer[[3, 7]] = 0
    pool.load_cpu_copy(copied, torch.tensor([3, 7]))
    return {
        "layers": [str(pool.get_key_buffer(layer).dtype) for layer in range(start, stop)],
        "counted_bytes": counted,
        "built_bytes": sum(map(int, pool.get_kv_size_bytes())) // SLOTS,
        "at_rest": str(pool.dtype),
        "default": str(pool.default_dtype),
        "copied_back": all(
            torch.equal(was, pool.get_key_buffer(layer).float())
            for was, layer in zip(before, range(start, stop), strict=True)
        ),
    }


def all_moved() -> dict[str, Any]:
    """Every layer is bf16, none the default."""
    pool = build(LayeredPools(active({"0:": "bf16"}, "fp8_e4m3")), configurator(dtype=torch.float8_e4m3fn))
    for layer in range(LAYERS):
        written_and_read(pool, layer)
    return {"layers": [str(pool.get_key_buffer(layer).dtype) for layer in range(LAYERS)], "at_rest": str(pool.dtype)}


def refused(layers: dict[str, str], pool_class: type = MHATokenToKVPool) -> str:
    """The words with which such a start ends."""
    pools, kvc = LayeredPools(active(layers)), configurator()
    try:
        cell_bytes(pools, kvc)
        pools.require_built(build(pools, kvc, pool_class))
    except SystemExit as error:
        return str(error)
    return ""


def main() -> None:
    same = LayeredPools(active({"0-1": "bf16"}))
    told = {
        "mixed": mixed(0, LAYERS),
        "second stage": mixed(2, LAYERS),
        "same": [type(build(same, configurator())).__name__, cell_bytes(same, configurator())],
        "all moved": all_moved(),
        "every dtype": sorted(TORCH_DTYPES),
        "no such layer": refused({"9": "fp8_e4m3"}),
        "no such dtype": refused({"0": "nvfp4"}),
        "another pool": refused({"0": "fp8_e4m3"}, NoOpMHATokenToKVPool),
        "class": LayeredKVPool.__mro__[1].__name__,
    }
    print("TOLD " + json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
