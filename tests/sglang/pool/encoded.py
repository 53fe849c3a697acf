"""The pool in int8 or int4, built and used inside a real SGLang: what it stores and costs, and how backends read it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch
from kvpolicy_sglang.hooks import HookSet
from kvpolicy_sglang.pool_hooks import EncodedPools
from kvpolicy_sglang.pool_quant_attention import wrap_backend
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, NoOpMHATokenToKVPool

from kvpolicy.compiler import compile_policy
from kvpolicy.kernels import kv_quant
from kvpolicy.language import policy_from_flat
from kvpolicy.runtime.active import ActivePolicy, Setting

HEADS, HEAD_DIM, SLOTS, LAYERS, START = 2, 64, 96, 3, 1
LOC = torch.randperm(SLOTS - 1)[:80] + 1


def active(name: str, layers: dict[str, str] | None = None) -> ActivePolicy:
    dtype: Any = {"default": name, "layers": layers} if layers else name
    flat = {
        "apiVersion": "kvpolicy/v1",
        "kind": "KVPolicy",
        "metadata": {"name": name},
        "cache": {"kv_dtype": dtype},
    }
    policy = policy_from_flat(flat, engine="sglang")
    found = ActivePolicy(policy, flat, "", "scheduler", name, "one.yaml", compile_policy(policy, "sglang"))
    found.settings["kv_cache_dtype"] = Setting("cache.kv_dtype", "--kv-cache-dtype", name, name)
    return found


def configurator(head_dim: int = HEAD_DIM, v_head_dim: int = HEAD_DIM, module: Any = None) -> SimpleNamespace:
    """What the hooks read of SGLang's configurator."""
    return SimpleNamespace(
        server_args=SimpleNamespace(attention_backend="torch_native"),
        kv_cache_dtype=torch.float16,
        model_config=SimpleNamespace(head_dim=head_dim, v_head_dim=v_head_dim),
        layer_info=SimpleNamespace(start_layer=START, end_layer=START + LAYERS, num_effective_layers=LAYERS),
        model=SimpleNamespace(modules=lambda: [module] if module else []),
    )


def build(pools: EncodedPools, kvc: Any, pool_class: type = MHATokenToKVPool) -> Any:
    def original(_kvc: Any, *, mha_pool_class: type, quant_method: Any = None) -> Any:
        return mha_pool_class(
            SLOTS - 1, page_size=1, dtype=kvc.kv_cache_dtype, head_num=HEADS, head_dim=HEAD_DIM, device="cpu",
            layer_num=LAYERS, start_layer=START, end_layer=START + LAYERS, enable_memory_saver=False,
            enable_alt_stream=False,
        )  # fmt: skip

    return pools.build(original, kvc, mha_pool_class=pool_class)


def cell_bytes(pools: EncodedPools, kvc: Any) -> int:
    uniform = LAYERS * HEADS * 2 * HEAD_DIM * 2
    return pools.cell_bytes(lambda _sizer, _kvc, _layers: uniform, None, kvc, LAYERS)


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


def through_triton(pool: Any, layer: int, k: torch.Tensor, v: torch.Tensor) -> dict[str, float]:
    """Upstream's Triton kernels, wrapped as its backend's are, against the numbers that the pool gives back."""
    from sglang.srt.layers.attention import triton_backend  # noqa: F401

    try:
        from sglang.kernels.ops.attention import decode_attention, extend_attention
    except ImportError:
        from sglang.srt.layers.attention.triton_ops import decode_attention, extend_attention
    backend = SimpleNamespace(
        decode_attention_fwd=decode_attention.decode_attention_fwd,
        extend_attention_fwd=extend_attention.extend_attention_fwd,
        extend_attention_fwd_unified=extend_attention.extend_attention_fwd_unified,
    )
    wrap_backend(None, backend)
    lens, queries = [30, 50], HEADS * 2
    indptr = torch.tensor([0, 30, 80], dtype=torch.int32)
    scale = HEAD_DIM**-0.5
    q = torch.randn((2, queries, HEAD_DIM)).half()
    out = torch.full_like(q, float("nan"))
    # No room is given for partial results: SGLang's own kernel would not run.
    backend.decode_attention_fwd(
        q, pool.get_key_buffer(layer), pool.get_value_buffer(layer), out, indptr, LOC, None, None, None, 8, scale, 1.0,
        1.0, logit_cap=0.0, sinks=None, page_size=1,
    )  # fmt: skip
    wanted = kv_quant.decode_attention_torch(q, pool.layers[layer - START], indptr, LOC, scale)

    new = 5
    fresh = torch.randn((3, 2 * new, queries, HEAD_DIM)).half()
    q_new, k_new, v_new = fresh[0], fresh[1, :, :HEADS].contiguous(), fresh[2, :, :HEADS].contiguous()
    qo_indptr = torch.tensor([0, new, 2 * new], dtype=torch.int32)
    extended = [torch.full_like(q_new, float("nan")) for _ in range(2)]
    plain = [pool.get_key_buffer(layer)[torch.arange(SLOTS)], pool.get_value_buffer(layer)[torch.arange(SLOTS)]]
    kept = (pool.get_key_buffer(layer), pool.get_value_buffer(layer))
    for o, sides in zip(extended, (kept, plain), strict=True):
        backend.extend_attention_fwd(
            q_new, k_new, v_new, o, *sides, qo_indptr, indptr, LOC, None, True, None, new, 1.0, 1.0, scale
        )
    assert lens
    return {"decode": error(out, wanted), "extend": error(extended[0], extended[1])}


def used(name: str, triton: bool) -> dict[str, Any]:
    pools, kvc = EncodedPools(active(name), HookSet()), configurator()
    counted = cell_bytes(pools, kvc)
    pool = build(pools, kvc)
    pools.require_built(pool)
    layer = START + 1
    qkv = torch.randn((80, 4 * HEADS, HEAD_DIM)).half()
    k, v = qkv[:, :HEADS], qkv[:, HEADS : 2 * HEADS]
    before = k.clone()
    attention = SimpleNamespace(layer_id=layer, k_scale=None, v_scale=None)
    pool.set_kv_buffer(attention, LOC, k, v)
    assert torch.equal(before, k), "what was stored is still in use"
    sides = pool.get_kv_buffer(layer)
    read = [side[LOC.view(2, 40)].view(80, HEADS, HEAD_DIM) for side in sides]
    kept = [tensor.clone() for tensor in pool.layers[layer - START][1:]]
    copied = pool.get_cpu_copy(LOC)
    for tensor in pool.layers[layer - START][1:]:
        tensor.zero_()
    pool.load_cpu_copy(copied, LOC)
    back = all(torch.equal(a[LOC], b[LOC]) for a, b in zip(kept, pool.layers[layer - START][1:], strict=True))
    told = {
        "counted_bytes": counted,
        "built_bytes": sum(map(int, pool.get_kv_size_bytes())) / SLOTS,
        "default": pool.default_dtype,
        "at_rest": str(pool.dtype),
        "shape": list(sides[1].shape),
        "error": max(error(read[0], k), error(read[1], v)),
        "copied_back": back,
        "triton": through_triton(pool, layer, k, v) if triton else None,
    }
    free = torch.tensor([slot for slot in range(1, SLOTS) if slot not in LOC.tolist()][:4])
    pool.move_kv_cache(free, LOC[:4])
    assert torch.equal(sides[0][free], sides[0][LOC[:4]])
    return told


def refused(name: str, pool_class: type = MHATokenToKVPool, layers: Any = None, **facts: Any) -> str:
    """The words with which such a start ends."""
    pools, kvc = EncodedPools(active(name, layers), HookSet()), configurator(**facts)
    try:
        cell_bytes(pools, kvc)
        pools.require_built(build(pools, kvc, pool_class))
    except SystemExit as error:
        return str(error)
    return ""


def main() -> None:
    torch.manual_seed(0)
    name = "int8_per_token_head"
    told = {
        "int8": used(name, triton=True),
        "int4": used("int4_per_token_head", triton=True),
        "head size": refused(name, head_dim=96, v_head_dim=96),
        "two widths": refused(name, v_head_dim=128),
        "sinks": refused(name, module=SimpleNamespace(sinks=torch.zeros(1))),
        "temperature": refused(name, module=SimpleNamespace(xai_temperature_len=8)),
        "layers": refused(name, layers={"0": "bf16"}),
        "another pool": refused(name, NoOpMHATokenToKVPool),
    }
    print("TOLD " + json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
