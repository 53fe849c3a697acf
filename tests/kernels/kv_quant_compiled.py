"""Runs where Triton is: the kernels of int8 and int4 through Triton's compiler for sm_90, as compiled_form.py does."""

from __future__ import annotations

import json
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from kvpolicy.kernels import kv_decode_triton, kv_quant_triton

TYPES = {
    "q_ptr": "*bf16", "k_ptr": "*i8", "v_ptr": "*i8", "k_codes_ptr": "*i8", "v_codes_ptr": "*i8", "scales_ptr": "*u32",
    "indptr_ptr": "*i32", "partial_ptr": "*fp32", "lse_ptr": "*fp32", "sm_scale": "fp32", "logit_cap": "fp32",
}  # fmt: skip
QUANTIZED = {"HEADS": 8, "HEAD_DIM": 128, "GROUPS": 1, "PARTS": 1, "ROWS": 16}
GROUPED = {**QUANTIZED, "GROUPS": 4, "PARTS": 2}
DECODE = {
    "HEADS": 8,
    "QUERIES": 4,
    "BLOCK_H": 16,
    "HEAD_DIM": 128,
    "CAPPED": True,
    "FAST": True,
    "SCALE_V": True,
    "SPLIT_TOKENS": 256,
    "BLOCK_N": 64,
}
BYTES = {"k_ptr": "*u8", "v_ptr": "*u8", "k_codes_ptr": "*u8", "v_codes_ptr": "*u8"}
FLOATS = {"k_ptr": "*bf16", "v_ptr": "*bf16"}
MERGE = {"Q_HEADS": 32, "HEAD_DIM": 128, "SPLIT_TOKENS": 256, "MAX_SPLITS": 16}

#: kernel -> (constants, types that differ) of each form of it.
KERNELS: list[tuple[Any, dict[str, Any], dict[str, str]]] = [
    (kv_quant_triton._store_kernel, {**QUANTIZED, "BITS": 8}, FLOATS),
    (kv_quant_triton._store_kernel, {**GROUPED, "BITS": 4}, {**BYTES, **FLOATS}),
    (kv_quant_triton._load_kernel, {**QUANTIZED, "BITS": 8}, FLOATS),
    (kv_quant_triton._load_kernel, {**GROUPED, "BITS": 4}, {**BYTES, **FLOATS}),
    (kv_decode_triton._decode_kernel, {**DECODE, "BITS": 8, "GROUPS": 1}, {}),
    (kv_decode_triton._decode_kernel, {**DECODE, "BITS": 4, "GROUPS": 4}, BYTES),
    (kv_decode_triton._merge_kernel, MERGE, {"out_ptr": "*bf16"}),
]


def type_of(name: str, constants: dict[str, Any], types: dict[str, str]) -> str:
    if name in constants:
        return "constexpr"
    return {**TYPES, **types}.get(name, "*i64" if name.endswith("_ptr") else "i32")


def main() -> None:
    compiled = 0
    for kernel, constants, types in KERNELS:
        names = [parameter.name for parameter in kernel.params]
        signature = {name: type_of(name, constants, types) for name in names}
        constexprs = {(names.index(name),): value for name, value in constants.items()}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs)
        made = compile(source, target=GPUTarget("cuda", 90, 32))
        compiled += bool(made.asm["ptx"])
    print("TOLD " + json.dumps({"kernels": compiled}))


main()
