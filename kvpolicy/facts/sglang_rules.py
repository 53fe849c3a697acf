"""SGLang 0.5.16 to 0.5.23: what start-up does to page size, KV dtype and attention backend, in the engine's own order.

Read from the sources of 0.5.16, 0.5.17, 0.5.18, 0.5.20 and 0.5.23 and compared with the real resolution by
``tests/facts/test_resolution_against_sglang.py``. Function names in ``source`` are those of 0.5.23; up to 0.5.18 the
same steps are methods of ``server_args.py``. Without speculative decoding, context parallelism and disaggregation.
Per-model rows come first, as they do upstream: they live in ``sglang_model_rules.py``.
"""

from __future__ import annotations

from kvpolicy.facts.rules import Allow, Default, Deny, Force, Multiple, Note, Rule, Snap
from kvpolicy.facts.sglang_model_rules import MODEL_RULES

__all__ = ["ARGUMENT_RULES", "RULES"]

_OVERRIDES = "arg_groups/overrides.py"
_REGISTRY = "layers/attention/attention_registry.py"
_DEFAULT_BACKEND = "arg_groups/model_override_base.py get_default_attn_backend"
_KV_HOOK = "arg_groups/kv_cache_hook.py"

_FLAGS = (
    Rule(
        name="fp4-e2m1", field="kv_dtype", effect=Deny(("fp4_e2m1",)),
        reason="fp4_e2m1 is deprecated and refused; its successor is fp4_mx_block16",
        source="mem_cache/kv_cache_dtype.py configure_kv_cache_dtype",
    ),
    Rule(
        name="dtype-names", field="kv_dtype",
        effect=Allow((
            "auto", "bf16", "fp8_e4m3", "fp8_e5m2", "mxfp8", "nvfp4", "fp4_mx_block16", "fp4_e2m1",
            "int8_per_token_head", "int4_per_token_head",
        )),
        reason="--kv-cache-dtype takes auto, bf16, fp8_e4m3, fp8_e5m2, mxfp8, nvfp4 and fp4_mx_block16; kvpolicy adds "
        "int8_per_token_head and int4_per_token_head",
        source="arg_groups/fields/model.py kv_cache_dtype",
    ),
    Rule(
        name="attention-names", field="attention", until=(0, 5, 16),
        effect=Deny(("hpc_ops", "qsa", "minicpm_flashattn", "minicpm_flashinfer", "llada2_cfg_flashinfer")),
        reason="this release has no such attention backend", source="server_args.py ATTENTION_BACKEND_CHOICES",
    ),
    Rule(
        name="attention-names", field="attention", since=(0, 5, 17), until=(0, 5, 18),
        effect=Deny(("qsa", "minicpm_flashattn", "minicpm_flashinfer", "llada2_cfg_flashinfer")),
        reason="this release has no such attention backend", source="server_args.py ATTENTION_BACKEND_CHOICES",
    ),
    Rule(
        name="attention-names", field="attention", since=(0, 5, 20),
        effect=Deny(("cutlass_mla", "dual_chunk_flash_attn")),
        reason="the backend was removed", source="arg_groups/choices.py ATTENTION_BACKEND_CHOICES",
    ),
    Rule(
        name="cpu-default", field="attention", effect=Default("intel_amx"), gpu=("cpu",),
        reason="x86 CPUs default to intel_amx", source="arg_groups/platform_hook.py handle_cpu_backends",
    ),
)  # fmt: skip

# A KV dtype of nvfp4 picks the backends of both phases; before 0.5.23 it only had to fit them.
_NVFP4 = (
    Rule(
        name="nvfp4-backends", field="attention", since=(0, 5, 23), kv_dtype=("nvfp4",),
        effect=Allow(("flashinfer", "trtllm_mha")),
        reason="NVFP4 prefill runs on flashinfer (FP8 workspace) or trtllm_mha (native) only",
        source=f"{_KV_HOOK} handle_nvfp4_prefill_kv_dequant_dtype",
    ),
    Rule(
        name="nvfp4-backends", field="attention", since=(0, 5, 23), kv_dtype=("nvfp4",), gpu=("sm100",),
        attention_unset=True, effect=Default("trtllm_mha"), reason="NVFP4 defaults to trtllm_mha on SM100",
        source=f"{_KV_HOOK} handle_nvfp4_prefill_kv_dequant_dtype",
    ),
    Rule(
        name="nvfp4-backends", field="prefill_attention", since=(0, 5, 23), kv_dtype=("nvfp4",), gpu=("sm100",),
        attention=("trtllm_mha",), effect=Default("trtllm_mha"), reason="NVFP4 prefill follows the backend asked for",
        source=f"{_KV_HOOK} handle_nvfp4_prefill_kv_dequant_dtype",
    ),
    Rule(
        name="nvfp4-backends", field="prefill_attention", since=(0, 5, 23), kv_dtype=("nvfp4",),
        effect=Default("flashinfer"), reason="NVFP4 prefill on flashinfer reads an FP8 workspace",
        source=f"{_KV_HOOK} handle_nvfp4_prefill_kv_dequant_dtype",
    ),
    Rule(
        name="nvfp4-backends", field="decode_attention", since=(0, 5, 23), kv_dtype=("nvfp4",),
        effect=Force("trtllm_mha"), reason="NVFP4 decode runs on trtllm_mha only",
        source=f"{_KV_HOOK} handle_nvfp4_prefill_kv_dequant_dtype",
    ),
)  # fmt: skip

_BACKEND_DEFAULTS = (
    Rule(
        name="attention-default", field="attention", effect=Default("flashinfer"),
        model=("WhisperForConditionalGeneration",), reason="Whisper needs flashinfer for its cross attention",
        source=_DEFAULT_BACKEND,
    ),
    Rule(
        name="attention-default", field="attention", effect=Default("fa3"), gpu=("sm90",),
        reason="Hopper defaults to FlashAttention 3", source=_DEFAULT_BACKEND,
    ),
    Rule(
        name="attention-default", field="attention", effect=Default("fa4"), gpu=("sm100",), model=("asymmetric_kv",),
        not_model=("mla",), since=(0, 5, 20), reason="SM100 with different K and V widths: trtllm_mha needs equal ones",
        source=_DEFAULT_BACKEND,
    ),
    Rule(
        name="attention-default", field="attention", effect=Default("trtllm_mha"), gpu=("sm100",), not_model=("mla",),
        reason="SM100 defaults to TensorRT-LLM MHA", source=_DEFAULT_BACKEND,
    ),
    Rule(
        name="attention-default", field="attention", effect=Default("flashinfer"), gpu=("sm100",), model=("mla",),
        reason="SM100 defaults to flashinfer for MLA", source=_DEFAULT_BACKEND,
    ),
    Rule(
        name="attention-default", field="attention", effect=Default("aiter"), gpu=("hip",), not_model=("mla",),
        reason="ROCm defaults to aiter", source=_DEFAULT_BACKEND,
    ),
    Rule(
        name="attention-default", field="attention", effect=Default("aiter"), gpu=("hip",),
        model=("heads16", "heads128"), reason="ROCm MLA with 16 or 128 heads a rank runs on aiter",
        source=_DEFAULT_BACKEND,
    ),
    Rule(
        name="attention-default", field="attention", effect=Default("triton"), model=("mla",),
        reason="MLA without Hopper or SM100 defaults to triton", source=_DEFAULT_BACKEND,
    ),
    Rule(
        name="attention-default", field="attention", effect=Default("triton"), model=("sinks",),
        reason="flashinfer does not support attention sinks", source=_DEFAULT_BACKEND,
    ),
    Rule(
        name="attention-default", field="attention", effect=Default("flashinfer"), gpu=("cuda",),
        reason="other NVIDIA GPUs default to flashinfer", source=_DEFAULT_BACKEND,
    ),
    Rule(
        name="attention-default", field="attention", effect=Default("triton"),
        reason="without flashinfer the default is triton", source=_DEFAULT_BACKEND,
    ),
)  # fmt: skip

_PAGE_BY_BACKEND = (
    Rule(
        name="flashmla-page", field="page_size", effect=Force(64), attention=("flashmla",),
        reason="FlashMLA supports a page size of 64 only", source=f"{_OVERRIDES} _mla_backend_page_constraints",
    ),
    Rule(
        name="mla-page", field="page_size", effect=Snap((32, 64), 64),
        attention=("trtllm_mla", "cutedsl_mla", "tokenspeed_mla"),
        reason="TensorRT-LLM and CuteDSL MLA support page sizes 32 and 64",
        source=f"{_OVERRIDES} _mla_backend_page_constraints",
    ),
    Rule(
        name="trtllm-mha-page", field="page_size", effect=Snap((16, 32, 64), 64), attention=("trtllm_mha",),
        until=(0, 5, 16), reason="TensorRT-LLM MHA supports page sizes 16, 32 and 64",
        source=f"{_OVERRIDES} _mla_backend_page_constraints",
    ),
    Rule(
        name="trtllm-mha-page", field="page_size", effect=Snap((16, 32, 64, 128), 64), attention=("trtllm_mha",),
        since=(0, 5, 17), reason="TensorRT-LLM MHA supports page sizes 16, 32, 64 and 128",
        source=f"{_OVERRIDES} _mla_backend_page_constraints",
    ),
    Rule(
        name="hpc-ops-page", field="page_size", effect=Force(64), attention=("hpc_ops",), since=(0, 5, 17),
        reason="HPC-Ops supports a page size of 64 only", source=f"{_OVERRIDES} _mla_backend_page_constraints",
    ),
)  # fmt: skip

_BACKEND_CHECKS = (
    Rule(
        name="trtllm-mla-gpu", field="attention", effect=Deny(("trtllm_mla",)), not_gpu=("blackwell",),
        reason="trtllm_mla runs on Blackwell only", source=f"{_OVERRIDES} _mla_kv_cache_dtype_checks",
    ),
    Rule(
        name="trtllm-mla-dtype", field="kv_dtype", effect=Allow(("auto", "bf16", "fp8_e4m3")),
        attention=("trtllm_mla",), reason="trtllm_mla reads fp8_e4m3 and bf16 KV only",
        source=f"{_OVERRIDES} _mla_kv_cache_dtype_checks",
    ),
    Rule(
        name="cutedsl-mla-gpu", field="attention", effect=Deny(("cutedsl_mla",)), not_gpu=("sm100",),
        reason="cutedsl_mla runs on SM100 only", source=f"{_OVERRIDES} _cutedsl_prefill_backend_fill",
    ),
    Rule(
        name="cutedsl-mla-dtype", field="kv_dtype", effect=Allow(("auto", "bf16", "fp8_e4m3")),
        attention=("cutedsl_mla",), reason="cutedsl_mla reads fp8_e4m3 and bf16 KV only",
        source=f"{_OVERRIDES} _cutedsl_prefill_backend_fill",
    ),
    Rule(
        name="cutedsl-prefill", field="prefill_attention", effect=Default("trtllm_mla"), attention=("cutedsl_mla",),
        reason="CuteDSL MLA only decodes; prefill runs on trtllm_mla",
        source=f"{_OVERRIDES} _cutedsl_prefill_backend_fill",
    ),
    Rule(
        name="trtllm-mha-gpu", field="attention", effect=Deny(("trtllm_mha",)), not_gpu=("sm90", "sm100", "sm120"),
        reason="trtllm_mha runs on Hopper, SM100 and SM120 only",
        source="arg_groups/attention_hook.py handle_attention_backend_compatibility",
    ),
    Rule(
        name="trtllm-mha-gpu", field="attention", effect=Deny(("trtllm_mha",)), not_gpu=("sm100",), until=(0, 5, 18),
        reason="trtllm_mha prefill runs on SM100 only in this release",
        source="server_args.py _handle_attention_backend_compatibility",
    ),
    Rule(
        name="trtllm-mha-sm120-fp8", field="kv_dtype", effect=Deny(("fp8_e4m3",)), gpu=("sm120",),
        attention=("trtllm_mha",), since=(0, 5, 20), reason="trtllm_mha prefill on SM120 cannot read fp8_e4m3 KV",
        source="arg_groups/attention_hook.py handle_attention_backend_compatibility",
    ),
    Rule(
        name="fa3-e5m2", field="attention", effect=Force("triton"), attention=("fa3",), kv_dtype=("fp8_e5m2",),
        reason="FlashAttention 3 reads no fp8_e5m2 KV, so SGLang moves to triton",
        source=f"{_OVERRIDES} _attention_backend_fa3_fp8_fallback",
    ),
    Rule(
        name="fa4-page", field="page_size", effect=Force(1), attention=("fa4",), gpu=("sm100",), since=(0, 5, 23),
        model=("DiffusionGemmaForBlockDiffusion",), reason="diffusion Gemma needs page size 1",
        source=f"{_OVERRIDES} _fa4_page_constraint",
    ),
    Rule(
        name="fa4-page", field="page_size", effect=Force(128), attention=("fa4",), gpu=("sm100",),
        not_model=("mla", "DiffusionGemmaForBlockDiffusion"), reason="FlashAttention 4 needs page size 128 outside MLA",
        source=f"{_OVERRIDES} _fa4_page_constraint",
    ),
    Rule(
        name="amx-fallback", field="attention", effect=Force("torch_native"), attention=("intel_amx",), gpu=("cpu",),
        not_gpu=("amx",), reason="the CPU has no AMX, so SGLang moves to torch_native",
        source=f"{_OVERRIDES} _attention_backend_platform_fallbacks",
    ),
    Rule(
        name="xpu-page", field="page_size", effect=Snap((64, 128), 128), attention=("intel_xpu",), not_model=("mla",),
        reason="Intel XPU attention supports page sizes 64 and 128", source=f"{_OVERRIDES} _intel_xpu_page_constraint",
    ),
    Rule(
        name="xpu-page", field="page_size", effect=Snap((16, 32, 64, 128), 128), attention=("intel_xpu",),
        model=("mla",), reason="Intel XPU MLA supports page sizes 16, 32, 64 and 128",
        source=f"{_OVERRIDES} _intel_xpu_page_constraint",
    ),
    Rule(
        name="fp4-gpu", field="kv_dtype", effect=Deny(("nvfp4", "fp4_mx_block16")), not_gpu=("cuda",),
        reason="FP4 KV runs on NVIDIA GPUs only", source=f"{_KV_HOOK} handle_kv4_compatibility",
    ),
    Rule(
        name="nvfp4-gpu", field="kv_dtype", effect=Deny(("nvfp4",)), gpu=("cuda",), not_gpu=("sm100", "sm120"),
        reason="nvfp4 KV needs Blackwell SM100 or SM120", source=f"{_KV_HOOK} handle_kv4_compatibility",
    ),
    Rule(
        name="fp4-backends", field="attention", kv_dtype=("fp4_mx_block16",), gpu=("cuda",), model=("mla",),
        effect=Allow(("flashinfer", "trtllm_mla")), reason="FP4 KV of MLA models runs on flashinfer or trtllm_mla",
        source=f"{_KV_HOOK} handle_kv4_compatibility",
    ),
    Rule(
        name="fp4-backends", field="attention", kv_dtype=("nvfp4",), gpu=("cuda",), model=("mla",), until=(0, 5, 20),
        effect=Allow(("flashinfer", "trtllm_mla")), reason="FP4 KV of MLA models runs on flashinfer or trtllm_mla",
        source=f"{_KV_HOOK} handle_kv4_compatibility",
    ),
    Rule(
        name="fp4-backends", field="prefill_attention", kv_dtype=("nvfp4",), gpu=("cuda",), model=("mla",),
        since=(0, 5, 23), effect=Deny(("trtllm_mha",)), reason="NVFP4 of MLA models does not run on trtllm_mha",
        source=f"{_KV_HOOK} handle_kv4_compatibility",
    ),
    Rule(
        name="fp4-backends", field="attention", kv_dtype=("fp4_mx_block16",), gpu=("cuda",), not_model=("mla",),
        effect=Allow(("triton", "torch_native", "flex_attention", "trtllm_mha")),
        reason="FP4 KV runs on triton, torch_native, flex_attention or trtllm_mha",
        source=f"{_KV_HOOK} handle_kv4_compatibility",
    ),
    Rule(
        name="fp4-backends", field="attention", kv_dtype=("nvfp4",), gpu=("cuda",), not_model=("mla",),
        until=(0, 5, 20), effect=Allow(("triton", "torch_native", "flex_attention", "trtllm_mha")),
        reason="FP4 KV runs on triton, torch_native, flex_attention or trtllm_mha",
        source=f"{_KV_HOOK} handle_kv4_compatibility",
    ),
    Rule(
        name="mxfp8-gpu", field="kv_dtype", effect=Deny(("mxfp8",)), not_gpu=("blackwell",),
        reason="mxfp8 KV needs Blackwell", source=f"{_KV_HOOK} handle_mxfp8_kv_cache_compatibility",
    ),
    Rule(
        name="page-default", field="page_size", effect=Default(1), reason="the default page size is 1",
        source=f"{_OVERRIDES} _page_size_default",
    ),
    Rule(
        name="chunk-multiple", field="page_size", effect=Multiple("chunk"),
        reason="the page size has to divide --chunked-prefill-size",
        source="arg_groups/validation_hook.py",
    ),
)  # fmt: skip

# Decided in the scheduler process, after the arguments: torch dtype, backend class, allocator.
_SCHEDULER = (
    Rule(
        name="fa3-gpu", field="attention", effect=Deny(("fa3",)), not_gpu=("sm80", "sm90"),
        reason="FlashAttention 3 runs on SM80 to SM90 only", source=f"{_REGISTRY} create_flashattention_v3_backend",
    ),
    Rule(
        name="fa3-gpu", field="attention", effect=Deny(("fa3",)), gpu=("sm80",), model=("mla",),
        reason="FlashAttention 3 for MLA needs Hopper", source=f"{_REGISTRY} create_flashattention_v3_backend",
    ),
    Rule(
        name="cuda-backend", field="attention", not_gpu=("cuda",),
        effect=Deny(
            ("flashinfer", "fa4", "flashmla", "trtllm_mla", "cutedsl_mla", "trtllm_mha", "hpc_ops", "cutlass_mla")
        ),
        reason="the backend runs on NVIDIA GPUs only", source=_REGISTRY,
    ),
    Rule(
        name="hpc-ops-gpu", field="attention", effect=Deny(("hpc_ops",)), not_gpu=("sm90",),
        reason="HPC-Ops runs on Hopper only", source=f"{_REGISTRY} create_hpc_ops_backend",
    ),
    Rule(
        name="cpu-backend", field="attention", effect=Deny(("triton",)), gpu=("cpu",),
        reason="CPUs run torch_native, intel_amx or flex_attention", source=_REGISTRY,
    ),
    Rule(
        name="rocm-backend", field="attention", effect=Deny(("aiter", "wave")), not_gpu=("hip",),
        reason="the backend runs on ROCm only", source=_REGISTRY,
    ),
    Rule(
        name="amx-backend", field="attention", effect=Deny(("intel_amx",)), not_gpu=("cpu",),
        reason="intel_amx is a CPU backend", source=_REGISTRY,
    ),
    Rule(
        name="mla-backend", field="attention", not_model=("mla",),
        effect=Deny(("flashmla", "trtllm_mla", "cutedsl_mla", "tokenspeed_mla", "cutlass_mla")),
        reason="the backend serves MLA models only", source=_REGISTRY,
    ),
    Rule(
        name="mha-backend", field="attention", model=("mla",), effect=Deny(("trtllm_mha", "hpc_ops")),
        reason="the backend serves models without MLA only", source=_REGISTRY,
    ),
    Rule(
        name="mha-backend", field="decode_attention", model=("mla",), kv_dtype=("nvfp4",), effect=Deny(("trtllm_mha",)),
        reason="NVFP4 decodes on trtllm_mha, which serves models without MLA only", source=_REGISTRY,
    ),
    Rule(
        name="hip-fp8", field="kv_dtype", effect=Force("fp8_e4m3"), gpu=("hip",), kv_dtype=("fp8_e5m2",),
        reason="ROCm stores either FP8 name in its native e4m3 format", source="mem_cache/kv_cache_dtype.py",
    ),
    Rule(
        name="cpu-e5m2", field="kv_dtype", effect=Deny(("fp8_e5m2",)), gpu=("cpu",), since=(0, 5, 20),
        reason="fp8_e5m2 KV is not supported on CPUs", source="mem_cache/kv_cache_dtype.py configure_kv_cache_dtype",
    ),
    Rule(
        name="cpu-e4m3", field="kv_dtype", effect=Deny(("fp8_e4m3",)), gpu=("cpu",), not_gpu=("amx",), since=(0, 5, 20),
        reason="FP8 KV on a CPU needs AMX", source="mem_cache/kv_cache_configurator.py configure",
    ),
    Rule(
        name="cpu-e4m3", field="kv_dtype", effect=Deny(("fp8_e4m3",)), gpu=("cpu",), model=("mla",), since=(0, 5, 20),
        reason="FP8 KV on a CPU is for models without MLA only", source="mem_cache/kv_cache_configurator.py configure",
    ),
    Rule(
        name="cpu-paging", field="page_size", effect=Note(warn=True), gpu=("cpu",), page_over_one=True,
        until=(0, 5, 20), source="mem_cache/allocator/paged.py alloc_extend", engine_allocator=True,
        reason="a Triton kernel hands out pages over 1 token: on a CPU start with TRITON_INTERPRET=1, or let the "
        "policy hand them out (`allocator: {order: lifo}`)",
    ),
    Rule(
        name="flashinfer-plan", field="page_size", effect=Note(), attention=("flashinfer",), page_over_one=True,
        reason="FlashInfer is planned with single-token pages: the page size sets cache granularity, not the kernel's "
        "(`backend: {page_native: true}` plans by pages)",
        source="layers/attention/flashinfer_backend.py", engine_plan=True,
    ),
    Rule(
        name="triton-plan", field="page_size", effect=Note(), attention=("triton",), page_over_one=True,
        reason="triton reads one index a token: the page size sets cache granularity, not the kernel's",
        source="layers/attention/triton_backend.py",
    ),
    Rule(
        name="no-cuda-graph", field="attention", effect=Note(), attention=("torch_native", "flex_attention"),
        not_gpu=("cpu",), reason="CUDA graphs are off with this backend",
        source="arg_groups/attention_hook.py handle_attention_backend_compatibility",
    ),
)  # fmt: skip

# What start-up decides over the arguments, before any process is started.
ARGUMENT_RULES: tuple[Rule, ...] = (
    *_FLAGS,
    *MODEL_RULES,
    *_NVFP4,
    *_BACKEND_DEFAULTS,
    *_PAGE_BY_BACKEND,
    *_BACKEND_CHECKS,
)

RULES: tuple[Rule, ...] = (*ARGUMENT_RULES, *_SCHEDULER)
