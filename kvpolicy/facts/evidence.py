"""What is publicly known of a quantized KV dtype on a model and device: validated, experimental, or known bad.

A row is a report, not a verdict: its author's claim, for the model and device named; a fix may exist by now. So a known
bad row warns (an error with ``--strict``) and says where it was reported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from kvpolicy.facts.dtypes import ELEMENT_BITS
from kvpolicy.facts.gpus import Gpu
from kvpolicy.facts.model import ModelFacts

__all__ = ["EVIDENCE", "Evidence", "Level", "evidence_for"]

Level = Literal["validated", "experimental", "known bad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One finding. Empty conditions match everything; ``name`` is a regular expression searched in the model's name."""

    level: Level
    kv_dtypes: tuple[str, ...]
    text: str
    source: str  # a public thread, or the engine's own file
    architectures: tuple[str, ...] = ()  # prefixes
    name: str = ""
    gpu: tuple[str, ...] = ()
    engine: str = ""
    checkpoint_scales: bool | None = None  # whether the checkpoint itself asks for this dtype


EVIDENCE: tuple[Evidence, ...] = (
    Evidence(
        level="known bad", kv_dtypes=("fp8_e4m3",), architectures=("GlmMoeDsa",),
        name=r"(?i)^(?!.*glm-?5\.[2-9])",  # later releases have evaluations of their own
        text="GLM-5.1-FP8 on B300: AIME26 76.7 against 95.3, GPQA-Diamond 71.2 against 86.2; bf16 KV was normal",
        source="https://github.com/sgl-project/sglang/issues/22671",
    ),
    Evidence(
        level="known bad", kv_dtypes=("fp8_e4m3", "fp8_e5m2"), architectures=("MiniMaxM3",), gpu=("gfx942",),
        text="MiniMax-M3 on MI300X under vLLM: GSM8K 0.9666 with bf16 KV, 0.0099 with FP8 (two FP8 formats mixed up)",
        source="https://github.com/vllm-project/vllm/issues/45562",
    ),
    Evidence(
        level="known bad", kv_dtypes=("fp8_e5m2",), architectures=("Qwen2VL", "Qwen2_5_VL", "Qwen2_5VL"),
        text="Qwen2-VL and Qwen2.5-VL under vLLM: output silently corrupted with default scaling",
        source="https://github.com/vllm-project/vllm/issues/41343",
    ),
    Evidence(
        level="known bad", kv_dtypes=("fp8_e4m3", "fp8_e5m2"), architectures=("Qwen2ForCausalLM",), name=r"(?i)math",
        text="Qwen2.5-Math-7B in RL training: accuracy near 0, garbled text (it has no QK-norm); Qwen3 was fine",
        source="https://github.com/verl-project/verl/pull/4435",
    ),
    Evidence(
        level="validated", kv_dtypes=("fp8_e4m3",), checkpoint_scales=True,
        text="the checkpoint was quantized with this KV dtype", source="mem_cache/kv_cache_dtype.py",
    ),
    Evidence(
        level="validated", kv_dtypes=("fp8_e4m3",), architectures=("GlmMoeDsa",), gpu=("sm100",), engine="vllm",
        text="vLLM's own default for GLM's sparse attention on SM100", source="model_executor/models/config.py",
    ),
    Evidence(
        level="validated", kv_dtypes=("fp8_e4m3",), architectures=("DeepseekV32",), gpu=("blackwell",), engine="sglang",
        text="SGLang's own default for sparse attention on SM100 and newer",
        source="arg_groups/overrides.py _dsa_kv_cache_dtype_default",
    ),
    Evidence(
        level="experimental", kv_dtypes=("fp8_e4m3",), gpu=("gfx942",),
        text="stored as e4m3fnuz, which scales differently from the e4m3fn of NVIDIA and MI350",
        source="mem_cache/kv_cache_dtype.py",
    ),
    Evidence(
        level="experimental", kv_dtypes=("fp8_e4m3",),
        text="without calibrated scales in the checkpoint the engine uses 1.0; reasoning-heavy tasks can lose accuracy",
        source="https://github.com/sgl-project/sgl-cookbook/pull/237",
    ),
    Evidence(
        level="experimental", kv_dtypes=("nvfp4", "fp4_mx_block16"), text="SGLang itself warns of an accuracy drop",
        engine="sglang",
        source="mem_cache/kv_cache_dtype.py configure_kv_cache_dtype",
    ),
    Evidence(
        level="experimental", kv_dtypes=tuple(dtype for dtype in ELEMENT_BITS if ELEMENT_BITS[dtype] < 16), source="",
        text="this version of kvpolicy knows no public evaluation",
    ),
)  # fmt: skip


def evidence_for(kv_dtype: str, model: ModelFacts, gpu: Gpu | None, engine: str = "") -> Evidence | None:
    """The strongest row that fits (known bad first); None for 16 and 32 bit dtypes, which need no evidence."""
    if ELEMENT_BITS.get(kv_dtype, 16) >= 16:
        return None
    here = (row for row in EVIDENCE if not (row.engine and engine and row.engine != engine))
    return next((row for row in here if _fits(row, kv_dtype, model, gpu)), None)


def _fits(row: Evidence, kv_dtype: str, model: ModelFacts, gpu: Gpu | None) -> bool:
    if kv_dtype not in row.kv_dtypes:
        return False
    if row.architectures and not model.architecture.startswith(row.architectures):
        return False
    if row.name and not re.search(row.name, model.name):
        return False
    if row.gpu and (gpu is None or not gpu.traits.intersection(row.gpu)):
        return False
    return row.checkpoint_scales is None or row.checkpoint_scales == (model.kv_quant == kv_dtype)
