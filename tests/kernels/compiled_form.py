"""Runs where Triton is: every kernel through Triton's own compiler, down to the machine code of an H200, which needs no
GPU. Its interpreter accepts what the compiler refuses."""

from __future__ import annotations

import json

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import JITFunction

from kvpolicy.kernels import bitmap_triton, page_plan_triton, pages_triton

SM90 = GPUTarget("cuda", 90, 32)
POINTERS = {  # others: *i64
    "is_free_ptr": "*i8", "counts_ptr": "*i32", "before_ptr": "*i32", "table_ptr": "*i32", "indptr_ptr": "*i32",
    "index_ptr": "*i32", "last_ptr": "*i32",
}  # fmt: skip
CONSTANTS = {"BLOCK": 256, "BATCH": 1024, "page_size": 16}


def compiled(kernel: JITFunction) -> int:
    """Bytes of machine code."""
    signature, constants = {}, {}
    for parameter in kernel.params:
        name = parameter.name
        if parameter.is_constexpr:
            signature[name], constants[name] = "constexpr", CONSTANTS[name]
        else:
            signature[name] = POINTERS.get(name, "*i64") if name.endswith("_ptr") else "i32"
    return len(triton.compile(ASTSource(kernel, signature, constants), target=SM90).asm["cubin"])


def main() -> None:
    modules = (bitmap_triton, page_plan_triton, pages_triton)
    kernels = {
        name: found for module in modules for name, found in vars(module).items() if isinstance(found, JITFunction)
    }
    print("TOLD " + json.dumps({name: compiled(kernel) for name, kernel in kernels.items()}))


main()
