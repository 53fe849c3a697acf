"""Runs where Triton is: the cascade's kernels through Triton's compiler for sm_90, as compiled_form.py does."""

from __future__ import annotations

import json
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from kvpolicy.kernels import cascade_triton

TYPES = {
    "q_ptr": "*bf16", "k_ptr": "*bf16", "v_ptr": "*bf16", "out_ptr": "*bf16", "partial_ptr": "*fp32",
    "lse_ptr": "*fp32", "qk_scale": "fp32", "logit_cap": "fp32", "v_scale": "fp32",
}  # fmt: skip
FP8 = {"k_ptr": "*fp8e4nv", "v_ptr": "*fp8e4nv"}
PART = {"HEADS": 8, "QUERIES": 4, "HEAD_DIM": 128, "PAGE_TOKENS": 16, "CAPPED": False, "BLOCK_M": 64, "BLOCK_N": 64}
WEIGH = {"Q_HEADS": 32, "HEAD_DIM": 128, "COLUMNS": 16, "BLOCK_C": 16}

#: kernel, constants, types that differ, warps.
KERNELS: list[tuple[Any, dict[str, Any], dict[str, str], int]] = [
    (cascade_triton._part_kernel, PART, {}, 4),
    (cascade_triton._part_kernel, {**PART, "BLOCK_M": 128, "CAPPED": True}, FP8, 8),
    (cascade_triton._part_kernel, {**PART, "BLOCK_M": 16, "PAGE_TOKENS": 1}, {}, 2),
    (cascade_triton._weigh_kernel, WEIGH, {}, 2),
]


def main() -> None:
    spilled = []
    for kernel, constants, types, warps in KERNELS:
        names = [parameter.name for parameter in kernel.params]
        signature = {
            name: "constexpr"
            if name in constants
            else {**TYPES, **types}.get(name, "*i32" if name.endswith("_ptr") else "i32")
            for name in names
        }
        constexprs = {(names.index(name),): value for name, value in constants.items()}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs)
        made = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps, "num_stages": 3})
        assert made.asm["cubin"]
        spilled.append(made.metadata.shared)
    print("TOLD " + json.dumps({"kernels": len(spilled), "shared_bytes": spilled}))


main()
