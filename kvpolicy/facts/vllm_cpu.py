"""vLLM on CPUs: one backend by model, forced blocks, and the KV dtypes that 0.32 takes silently and computes wrongly.

``platforms/cpu.py``. Up to 0.32 ``get_attn_backend_cls`` never looks at the KV dtype; 0.33 refuses what the backend
lacks.
"""

from __future__ import annotations

from kvpolicy.facts.engines import Version
from kvpolicy.facts.gpus import Gpu
from kvpolicy.facts.model import ModelFacts
from kvpolicy.facts.vllm_backends import Backend, rows_of

__all__ = ["cpu_backend", "cpu_default_block", "silent_wrong"]

_DEFAULT_BLOCK_TOKENS = 128
_SOURCE = "platforms/cpu.py get_attn_backend_cls"


def cpu_backend(model: ModelFacts, gpu: Gpu, version: Version) -> Backend | str:
    """The backend the platform takes, or why the model does not run there."""
    if model.is_dsa:
        return "sparse attention does not run on CPUs"
    names = ["cpu_attn"]
    if model.is_mla:
        names = ["amx_mla", "cpu_mla"] if "amx" in gpu.traits else ["cpu_mla"]
    for name in names:
        for row in rows_of(name, version):
            return row
    return "MLA does not run on CPUs before vLLM 0.28"


def cpu_default_block(model: ModelFacts, row: Backend, asked: int | None) -> tuple[int, str] | None:
    """(block size, reason) where the platform sets one."""
    if row.name == "cpu_mla":
        return row.blocks[0], "the CPU's MLA kernel reads blocks of 16 only"
    if "DeepseekV4" in model.architecture:
        return 256, "DeepSeek-V4's CPU kernels read blocks of 256 only"
    return None if asked is not None else (_DEFAULT_BLOCK_TOKENS, "the CPU default is 128")


def silent_wrong(kv_dtype: str, row: Backend, *, compute: str, version: Version) -> tuple[str, str, str] | None:
    """(rule, reason, source) for a KV dtype that the CPU backend cannot store; None for one it can."""
    if kv_dtype in row.kv_dtypes:
        return None
    stored = ", ".join(dtype for dtype in row.kv_dtypes if dtype != "auto") or "the model's dtype only"
    if version >= (0, 33, 0):
        return "cpu-dtype", f"{row.name} stores {stored}", _SOURCE
    del compute
    reason = f"{row.name} stores {stored}; this release takes {kv_dtype} without a word and returns wrong tokens"
    return "cpu-silent-dtype", reason, _SOURCE
