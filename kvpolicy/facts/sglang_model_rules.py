"""SGLang's per-model start-up overrides (``arg_groups/model_overrides/``), in the fields a policy asks for.

An architecture ending in ``*`` is a prefix. Same order and meaning as ``sglang_rules.py``, which puts these rows first.
"""

from __future__ import annotations

from kvpolicy.facts.rules import Allow, Default, Deny, Force, Multiple, Note, Rule

__all__ = ["MODEL_RULES"]

_DIR = "arg_groups/model_overrides"
_MODEL_HOOK = "arg_groups/model_hook.py handle_model_specific_adjustments"
_DEEPSEEK = (
    "DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration", "MistralLarge3ForCausalLM",
    "PixtralForConditionalGeneration",
)  # fmt: skip
_QWEN_HYBRID = (
    "Qwen3NextForCausalLM", "Qwen3_5MoeForConditionalGeneration", "InternS2PreviewForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
)  # fmt: skip
_GEMMA4 = ("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM", "Gemma4UnifiedForConditionalGeneration")
_EXAONE = ("Exaone4ForCausalLM", "ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM")
_QWEN_VL = ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration")


def _backend(models: tuple[str, ...], backend: str, gpu: tuple[str, ...], file: str, **when: object) -> Rule:
    """A default backend of one model family on some devices."""
    where = f" on {'/'.join(gpu)}" if gpu else ""
    return Rule(
        name="model-backend", field="attention", effect=Default(backend), model=models, gpu=gpu,
        reason=f"{models[0].removesuffix('*')} defaults to {backend}{where}", source=f"{_DIR}/{file}", **when,  # type: ignore[arg-type]
    )  # fmt: skip


def _only(models: tuple[str, ...], *backends: str, **when: object) -> Rule:
    """The backends that a model family runs on; any other stops the engine."""
    return Rule(
        name="model-backends", field="attention", effect=Allow(backends), model=models, source=_MODEL_HOOK,
        reason=f"{models[0].removesuffix('*')} runs on {', '.join(backends)} only", **when,  # type: ignore[arg-type]
    )  # fmt: skip


MODEL_RULES: tuple[Rule, ...] = (
    # DeepSeek sparse attention
    Rule(
        name="dsa-backend", field="attention", effect=Default("dsa"), model=("dsa",),
        reason="sparse-attention models run on dsa", source=f"{_DIR}/deepseek_v2.py",
    ),
    Rule(
        name="dsa-page", field="page_size", effect=Force(64), model=("dsa",), gpu=("cuda", "hip"),
        reason="sparse-attention models run with pages of 64", source=f"{_DIR}/deepseek_v2.py",
    ),
    Rule(
        name="dsa-page-rocm", field="page_size", effect=Note(), model=("dsa",), gpu=("hip",),
        reason="with Triton before 3.5 or SGLANG_USE_AITER=0 SGLang falls back to page size 1",
        source=f"{_DIR}/deepseek_v2.py",
    ),
    Rule(
        name="dsa-page", field="page_size", effect=Force(128), model=("dsa",), gpu=("xpu",), since=(0, 5, 20),
        reason="sparse-attention models on XPU run with pages of 128", source=f"{_DIR}/deepseek_v2.py",
    ),
    Rule(
        name="dsa-dtype", field="kv_dtype", effect=Default("fp8_e4m3"), model=("dsa",), gpu=("blackwell",),
        reason="sparse attention defaults to fp8_e4m3 on SM100 and newer",
        source="arg_groups/overrides.py _dsa_kv_cache_dtype_default",
    ),
    Rule(
        name="dsa-dtype", field="kv_dtype", effect=Default("bf16"), model=("dsa",), not_gpu=("cpu",),
        reason="sparse attention defaults to bf16 below SM100",
        source="arg_groups/overrides.py _dsa_kv_cache_dtype_default",
    ),
    Rule(
        name="dsa-dtype", field="kv_dtype", effect=Allow(("bf16", "fp8_e4m3")), model=("dsa",), gpu=("cuda", "hip"),
        reason="sparse attention supports bf16 and fp8_e4m3 KV only",
        source="arg_groups/overrides.py _dsa_kv_cache_dtype_default",
    ),
    _backend(_DEEPSEEK, "trtllm_mla", ("sm100",), "deepseek_v2.py", not_model=("dsa",)),
    # DeepSeek V4: its own backend and pool
    Rule(
        name="dsv4-backend", field="attention", effect=Force("dsv4"), model=("DeepseekV4ForCausalLM",),
        reason="DeepSeek-V4 runs on its own backend", source=f"{_DIR}/deepseek_v4.py",
    ),
    Rule(
        name="dsv4-page", field="page_size", effect=Force(256), model=("DeepseekV4ForCausalLM",),
        reason="DeepSeek-V4 runs with pages of 256", source=f"{_DIR}/deepseek_v4.py",
    ),
    # MiniMax M3
    _backend(("MiniMaxM3*",), "trtllm_mha", ("sm100",), "minimax_m3.py", kv_dtype=("fp8_e4m3",), since=(0, 5, 20)),
    _backend(("MiniMaxM3*",), "fa4", ("sm100",), "minimax_m3.py"),
    _backend(("MiniMaxM3*",), "fa3", ("sm90",), "minimax_m3.py"),
    _backend(("MiniMaxM3*",), "triton", ("hip",), "minimax_m3.py"),
    Rule(
        name="minimax-m3-page", field="page_size", effect=Default(128), model=("MiniMaxM3*",), gpu=("sm90", "sm100"),
        attention=("fa3", "fa4", "trtllm_mha"), reason="MiniMax-M3's sparse blocks are 128 tokens",
        source=f"{_DIR}/minimax_m3.py",
    ),
    # GPT-OSS, Llama 4, Gemma 4, Exaone 4, OLMo 2
    _backend(("GptOssForCausalLM",), "trtllm_mha", ("sm100",), "gpt_oss.py"),
    _backend(("GptOssForCausalLM",), "fa3", ("sm90",), "gpt_oss.py"),
    _backend(("GptOssForCausalLM",), "aiter", ("hip",), "gpt_oss.py"),
    _backend(("GptOssForCausalLM",), "intel_xpu", ("xpu",), "gpt_oss.py"),
    _backend(("GptOssForCausalLM",), "triton", (), "gpt_oss.py"),
    _backend(("Llama4*",), "trtllm_mha", ("sm100",), "llama4.py"),
    _backend(("Llama4*",), "fa3", ("sm90",), "llama4.py"),
    _backend(("Llama4*",), "aiter", ("hip",), "llama4.py"),
    _backend(("Llama4*",), "intel_xpu", ("xpu",), "llama4.py"),
    _backend(("Llama4*",), "triton", ("cuda",), "llama4.py"),
    _backend(("DiffusionGemmaForBlockDiffusion",), "triton", (), "gemma4.py"),
    _backend(_GEMMA4, "trtllm_mha", ("sm100",), "gemma4.py"),
    _backend(_GEMMA4, "triton", (), "gemma4.py"),
    _backend(_EXAONE, "trtllm_mha", ("sm100",), "exaone.py"),
    _backend(_EXAONE, "fa3", ("cuda",), "exaone.py", not_gpu=("sm70",)),
    _backend(_EXAONE, "triton", (), "exaone.py"),
    _backend(("Olmo2ForCausalLM",), "trtllm_mha", ("sm100",), "olmo2.py"),
    _backend(("Olmo2ForCausalLM",), "fa3", ("cuda",), "olmo2.py", not_gpu=("sm70",)),
    _backend(("Olmo2ForCausalLM",), "triton", (), "olmo2.py"),
    _backend(("MiMoV2*",), "fa4", ("sm100",), "mimo_v2.py", since=(0, 5, 23)),
    _only(("GptOssForCausalLM",), "triton", "trtllm_mha", "fa3", "fa4", "intel_amx", "intel_xpu", "aiter", "ascend"),
    _only(("Llama4*",), "fa3", "aiter", "triton", "trtllm_mha", "intel_xpu", "ascend", not_gpu=("cpu",)),
    _only(_GEMMA4, "trtllm_mha", "triton", "intel_xpu", "ascend", until=(0, 5, 16)),
    _only(_GEMMA4, "trtllm_mha", "triton", "intel_xpu", "ascend", "intel_amx", since=(0, 5, 17), until=(0, 5, 18)),
    _only(_GEMMA4, "trtllm_mha", "triton", "intel_xpu", "ascend", "intel_amx", "aiter", "fa4", since=(0, 5, 20)),
    Rule(
        name="model-backends", field="attention", model=_GEMMA4, since=(0, 5, 20), until=(0, 5, 20),
        effect=Deny(("fa4",)), reason="this release does not run Gemma 4 on fa4", source=_MODEL_HOOK,
    ),
    _only(_EXAONE, "fa3", "triton", "trtllm_mha"),
    Rule(
        name="model-backends", field="attention", model=("Olmo2ForCausalLM",), effect=Deny(("flashinfer",)),
        reason="SGLang refuses flashinfer for OLMo 2 and 3 (slow with their sliding window)", source=_MODEL_HOOK,
    ),
    Rule(
        name="model-backends", field="attention", model=("Lfm2ForCausalLM", "Lfm2MoeForCausalLM"),
        effect=Deny(("triton",)), reason="triton needs attention in the first layer, LFM2 has none there",
        source=_MODEL_HOOK,
    ),
    Rule(
        name="model-backends", field="attention", model=("NemotronH*",), until=(0, 5, 18), effect=Deny(("triton",)),
        reason="triton needs attention in the first layer, Nemotron-H has none there", source=_MODEL_HOOK,
    ),
    # Hybrids with linear layers
    _backend(("FalconH1*", "JetNemotron*", "JetVLM*"), "triton", ("sm100",), "falcon_h1.py"),
    _backend(("GraniteMoeHybrid*",), "flashinfer", ("sm100",), "granitemoehybrid.py", not_model=("dense_granite",)),
    _backend(("Lfm2ForCausalLM", "Lfm2MoeForCausalLM"), "flashinfer", ("sm100",), "lfm2.py"),
    _backend(("MiniCPMV4_6*",), "triton", ("sm100",), "minicpmv.py"),
    _backend(("NemotronH*",), "flashinfer", ("sm100",), "nemotron_h.py", until=(0, 5, 18)),
    _backend(("NemotronH*",), "trtllm_mha", ("sm100",), "nemotron_h.py", since=(0, 5, 20)),
    # (Upstream means trtllm_mha with pages of 64, but chooses before the state buffer that this needs is decided.)
    Rule(
        name="qwen-hybrid-page", field="page_size", effect=Force(1), model=_QWEN_HYBRID, gpu=("sm100",),
        attention_unset=True, reason="Qwen hybrids on SM100 run on triton with page size 1 unless a backend is given",
        source=f"{_DIR}/qwen3_5.py",
    ),
    _backend(_QWEN_HYBRID, "triton", ("sm100",), "qwen3_5.py"),
    # What their radix cache allows is checked here, before a backend may move the page size
    Rule(
        name="no-buffer-page", field="page_size", effect=Allow((1,)), model=("linear",), not_model=("extra_buffer",),
        reason="this hybrid model keeps no extra state buffer, which needs page size 1",
        source="arg_groups/mamba_hook.py validate_mamba_no_buffer",
    ),
    Rule(
        name="state-interval", field="page_size", effect=Multiple(256), model=("extra_buffer",),
        reason="the page size has to divide the state interval (--mamba-track-interval, 256)",
        source="arg_groups/mamba_hook.py validate_mamba_extra_buffer",
    ),
    Rule(
        name="no-buffer-backend", field="attention", effect=Deny(("trtllm_mha",)), model=("linear",),
        not_model=("extra_buffer",), reason="this hybrid model keeps no extra state buffer, which trtllm_mha needs",
        source="arg_groups/mamba_hook.py validate_mamba_no_buffer",
    ),
    # Qwen3-VL
    Rule(
        name="qwen-vl-decode", field="decode_attention", effect=Default("flashinfer"), model=_QWEN_VL, gpu=("sm90",),
        since=(0, 5, 20), attention_unset=True, reason="Qwen3-VL on large Hopper GPUs decodes with flashinfer",
        source=f"{_DIR}/qwen3_vl.py",
    ),
)  # fmt: skip
