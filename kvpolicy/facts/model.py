"""A model's KV shape, read from a Hugging Face ``config.json`` (no transformers, no download).

SGLang reads the same keys through ``srt/configs/model_config.py``; where a key is missing we fall back as it does,
class defaults of transformers included (:data:`_CLASS_DEFAULTS`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvpolicy.facts.dtypes import canonical
from kvpolicy.facts.errors import FactsArgumentError
from kvpolicy.facts.kv_quant import sglang_kv_quant, vllm_kv_quant
from kvpolicy.facts.linear_state import LinearState, linear_state
from kvpolicy.facts.weights import weight_bytes

__all__ = ["ORDINARY", "ModelFacts", "load_model", "model_from_config"]

# Keys that transformers fills from the config class when config.json leaves them out, by model_type.
_CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 256, "num_key_value_heads": 16},
    "gemma2": {"head_dim": 256, "num_key_value_heads": 4, "attn_logit_softcapping": 50.0},
    "gemma3_text": {
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "hidden_size": 2304,
        "num_hidden_layers": 26,
    },
    "qwen2": {"num_key_value_heads": 32},
    "qwen3": {"head_dim": 128, "num_key_value_heads": 32},
    "qwen3_next": {"head_dim": 256, "num_key_value_heads": 2, "full_attention_interval": 4},
}

# ModelConfig._derive_model_shapes: attention_arch = MLA (plus anything that carries kv_lora_rank in these families).
_MLA_PREFIXES = (
    "DeepseekV2", "DeepseekV3", "DeepseekV32", "Glm4MoeLite", "GlmMoeDsa", "Glm5Next", "LongcatFlash", "HYV4",
    "DotsVLM", "Dots3Note", "MistralLarge3", "Pixtral", "KimiK25", "Eagle3DeepseekV2", "GigaChat35", "MiniCPM3",
    "DeepseekVL2", "KimiVL", "KimiLinear", "KimiK3", "BailingMoeV2_5", "BailingMoeV3", "SarvamMLA",
)  # fmt: skip
# configs/model_config.py is_deepseek_dsa: one of these families with an index_topk.
_DSA_PREFIXES = (
    "DeepseekV3", "DeepseekV32", "MistralLarge3", "Pixtral", "GlmMoeDsa", "Glm5Next", "LongcatFlash", "Dots3Note",
    "HYV4",
)  # fmt: skip
# configs/model_config.py is_hybrid_swa_model: only these get a separate sliding-window pool.
_SWA_POOL_PREFIXES = (
    "BeamForCausalLM", "Llama4ForConditionalGeneration", "DeepseekV4", "GptOss", "GraniteSWA", "GraniteMoeSWA",
    "IQuestQ1", "MiMoV2", "Step3p5", "Step3p7", "Gemma4", "DiffusionGemma", "EmbeddingGemma2", "Laguna", "Mellum",
    "MuseGlimmer", "Inkling", "UnlimitedOCR",
)  # fmt: skip
_SINK_PREFIXES = ("GptOss", "GraniteSWA", "GraniteMoeSWA", "IQuestQ1")
_LINEAR_LAYERS = frozenset({"linear_attention", "mamba", "mamba2", "conv", "recurrent", "lightning", "kda"})
_FULL_LAYERS = frozenset({"full_attention", "attention", "global_attention"})
_KV_HEAD_KEYS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the rules and the sizing need. Layer counts are of the whole model; heads are before tensor parallelism."""

    name: str
    architecture: str
    model_type: str
    dtype: str  # dtype SGLang computes in (float32 checkpoints are served as fp16, Gemma as bf16)
    full_layers: int  # layers with KV for every token
    swa_layers: int = 0  # layers in a separate sliding-window pool
    linear_layers: int = 0  # layers with a fixed-size state and no KV per token
    num_heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    swa_kv_heads: int = 0
    swa_head_dim: int = 0
    swa_v_head_dim: int = 0
    kv_lora_rank: int = 0  # MLA: > 0
    qk_rope_head_dim: int = 0
    index_head_dim: int = 0  # DSA: > 0
    index_layers: int = 0  # DSA layers that keep an index key
    index_kpool: int = 1
    sliding_window: int | None = None
    context_tokens: int | None = None
    kv_quant: str | None = None  # KV dtype the checkpoint itself asks for
    weights_bytes: int | None = None
    weights_from: str = ""  # "files" | "estimate" | ""
    qk_norm: bool = False
    stated_dtype: str = "bf16"  # dtype of the checkpoint: vLLM serves float32 ones in the device's first dtype
    window_layers: int = 0  # layers that attend to a window only, whoever keeps their KV
    softcap: bool = False  # attention logits are capped
    linear_state: LinearState | None = None
    vllm_kv_quant: str | None = None  # KV dtype that vLLM's `auto` reads from the checkpoint: it knows more formats
    notes: tuple[str, ...] = field(default=())

    @property
    def is_mla(self) -> bool:
        """Latent attention: one row a token shared by all heads and ranks."""
        return self.kv_lora_rank > 0

    @property
    def is_dsa(self) -> bool:
        """MLA with a sparse-attention indexer that keeps its own key."""
        return self.index_head_dim > 0

    @property
    def attention_kind(self) -> str:
        """MLA, DSA, MHA, GQA or MQA, with the hybrid part named."""
        if self.is_dsa:
            kind = "DSA"
        elif self.is_mla:
            kind = "MLA"
        elif self.kv_heads == 1:
            kind = "MQA"
        else:
            kind = "MHA" if self.kv_heads == self.num_heads else "GQA"
        if self.linear_layers:
            return f"{kind} + linear"
        return f"{kind} + sliding window" if self.swa_layers else kind

    @property
    def traits(self) -> frozenset[str]:
        """Names rules match on: the architecture, and mla | mha, dsa, linear, swa, sinks, asymmetric_kv."""
        names = {self.architecture, "mla" if self.is_mla else "mha"}
        if self.is_dsa:
            names.add("dsa")
        if self.linear_layers:
            names.add("linear")
        if self.swa_layers:
            names.add("swa")
        if self.architecture.startswith(_SINK_PREFIXES):
            names.add("sinks")
        if not self.is_mla and (self.head_dim, self.swa_head_dim) != (self.v_head_dim, self.swa_v_head_dim):
            names.add("asymmetric_kv")
        return frozenset(names)


def load_model(path: str) -> ModelFacts:
    """Read a model directory or a ``config.json``.

    Raises :class:`FactsArgumentError` for a path that does not exist, is no JSON object, or lacks what a KV size needs.
    """
    given = Path(path)
    file = given / "config.json" if given.is_dir() else given
    if not file.is_file():
        what = "no config.json in" if given.is_dir() else "no such model directory or config.json:"
        raise FactsArgumentError("model", f"{what} '{path}'", "give a local model directory or its config.json")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise FactsArgumentError("model", f"cannot read '{file}': {error}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise FactsArgumentError("model", f"'{file}' is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise FactsArgumentError("model", f"'{file}' holds a {type(config).__name__}, not a model config object")
    sidecar = _read_sidecar(file.parent / "hf_quant_config.json")
    name = str(config.get("_name_or_path") or file.resolve().parent.name)
    return model_from_config(config, name=name, directory=file.parent, hf_quant=sidecar)


def model_from_config(
    config: Mapping[str, Any],
    *,
    name: str = "",
    directory: Path | None = None,
    hf_quant: Mapping[str, Any] | None = None,
) -> ModelFacts:
    """Facts of a parsed config. ``directory`` lets weight files be measured instead of estimated."""
    try:
        return _read(config, name=name, directory=directory, hf_quant=hf_quant)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        reason = f"no '{error.args[0]}'" if isinstance(error, KeyError) else str(error)
        message = f"config.json of '{name}' has no usable KV shape: {reason}"
        raise FactsArgumentError("model", message, "is it a language model's config.json?") from None


def _read(
    config: Mapping[str, Any], *, name: str, directory: Path | None, hf_quant: Mapping[str, Any] | None
) -> ModelFacts:
    architectures = config.get("architectures") or ["unknown"]
    architecture = str(architectures[0])
    text = _text_config(config)
    layers = _positive(text, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    linear_layers, swa_layers = _layer_kinds(text, architecture, layers)
    notes: list[str] = []

    rank, rope, index_dim = 0, 0, 0
    if architecture.startswith(_MLA_PREFIXES) and text.get("kv_lora_rank"):
        rank = _positive(text, "kv_lora_rank")
        rope = 0 if text.get("use_mla_nope") else int(text.get("qk_rope_head_dim") or 0)
        if architecture.startswith(_DSA_PREFIXES) and text.get("index_topk") is not None:
            index_dim = _positive(text, "index_head_dim")
    if "DeepseekV4" in architecture:
        notes.append("DeepSeek-V4 compresses KV per layer; bytes a token here ignore that and are an upper bound")
    if "sparse_attention_config" in text or "MiniMaxM3" in architecture:
        notes.append("sparse-attention index keys of this model are not counted")

    heads = _positive(text, "num_attention_heads", "n_head", "n_heads")
    head_dim = int(text.get("head_dim") or _positive(text, "hidden_size", "n_embd", "d_model") // heads)
    v_head_dim = int(text.get("v_head_dim") or head_dim)
    swa_head_dim = int(text.get("swa_head_dim") or head_dim)
    kv_heads = _kv_heads(config, text, heads)
    full_layers = layers - linear_layers - swa_layers
    weights, weights_from = weight_bytes(config, text, directory)
    return ModelFacts(
        name=name,
        architecture=architecture,
        model_type=str(config.get("model_type", "")),
        dtype=_compute_dtype(config, text),
        full_layers=full_layers,
        swa_layers=swa_layers,
        linear_layers=linear_layers,
        num_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        swa_kv_heads=int(text.get("swa_num_key_value_heads") or kv_heads),
        swa_head_dim=swa_head_dim,
        swa_v_head_dim=int(text.get("swa_v_head_dim") or swa_head_dim),
        kv_lora_rank=rank,
        qk_rope_head_dim=rope,
        index_head_dim=index_dim,
        index_layers=_index_layers(text, full_layers) if index_dim else 0,
        index_kpool=int(text.get("index_kpool") or 1),
        sliding_window=_optional_int(text.get("sliding_window")),
        context_tokens=_optional_int(text.get("max_position_embeddings")),
        kv_quant=sglang_kv_quant(config, hf_quant),
        weights_bytes=weights,
        weights_from=weights_from,
        qk_norm=_has_qk_norm(text),
        stated_dtype=_stated_dtype(config, text),
        window_layers=_window_layers(text, layers),
        softcap=bool(text.get("attn_logit_softcapping")),
        linear_state=linear_state(architecture, text),
        vllm_kv_quant=vllm_kv_quant(config),
        notes=tuple(notes),
    )


def _text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language part of a (multimodal) config, over the class defaults of its model_type."""
    text: Mapping[str, Any] = config
    for key in ("text_config", "llm_config", "language_config", "thinker_config"):
        nested = config.get(key)
        if isinstance(nested, Mapping):
            text = nested.get("text_config", nested) if key == "thinker_config" else nested
            break
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    given = {key: value for key, value in text.items() if value is not None}
    return {**_CLASS_DEFAULTS.get(model_type, {}), **given}


def _layer_kinds(text: Mapping[str, Any], architecture: str, layers: int) -> tuple[int, int]:
    """(layers without KV a token, layers in a sliding-window pool)."""
    if architecture.startswith(("FalconH1",)):
        return 0, 0  # every layer has both an attention and a Mamba branch
    if architecture.startswith("Llama4ForConditionalGeneration"):
        return 0, sum((layer + 1) % 4 != 0 for layer in range(layers))  # get_hybrid_layer_ids
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):  # Nemotron-H: one letter a layer, * is attention
        return layers - pattern.count("*"), 0
    linear = text.get("linear_attn_config")
    if isinstance(linear, Mapping) and isinstance(linear.get("full_attn_layers"), Sequence):
        return layers - len(linear["full_attn_layers"]), 0  # Kimi-Linear
    kinds = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str) and kinds:
        kinds = list(kinds)[:layers]
        no_kv = sum(kind in _LINEAR_LAYERS for kind in kinds)
        swa = sum(kind == "sliding_attention" for kind in kinds) if architecture.startswith(_SWA_POOL_PREFIXES) else 0
        return no_kv, swa
    interval = text.get("full_attention_interval")
    if interval:  # Qwen3-Next, Qwen3.5: every n-th layer is full attention
        return layers - sum((layer + 1) % int(interval) == 0 for layer in range(layers)), 0
    swa_pattern = text.get("hybrid_layer_pattern")
    if isinstance(swa_pattern, Sequence) and architecture.startswith("MiMoV2"):
        return 0, sum(kind == 1 for kind in list(swa_pattern)[:layers])
    return 0, 0


def _kv_heads(config: Mapping[str, Any], text: Mapping[str, Any], heads: int) -> int:
    """ModelConfig.get_total_num_kv_heads."""
    falcon = config.get("model_type") in ("falcon", "RefinedWeb", "RefinedWebModel")
    if text.get("multi_query") and not (falcon and config.get("new_decoder_architecture")):
        return 1
    attention = config.get("attn_config")
    if config.get("model_type") in ("mpt", "dbrx") and isinstance(attention, Mapping):
        return int(attention.get("kv_n_heads") or heads)
    for key in _KV_HEAD_KEYS:
        if text.get(key) is not None:
            return _positive(text, key)
    return heads


def _index_layers(text: Mapping[str, Any], layers: int) -> int:
    """DSA layers that compute an index of their own (model_config.py dsa_layer_skips_topk); others share one."""
    types = text.get("indexer_types")
    if isinstance(types, Sequence) and not isinstance(types, str):
        return layers - list(types)[:layers].count("shared")
    every = int(text.get("cli_factor") or 1)
    if every > 1:
        return sum(layer % every == 0 for layer in range(layers))
    pattern = text.get("index_topk_pattern")
    if isinstance(pattern, str):
        return layers - pattern[:layers].count("S")
    frequency = int(text.get("index_topk_freq") or 1)
    first = int(text["index_skip_topk_offset"]) - 1 if text.get("index_skip_topk_offset") else 1
    return sum(max(layer - first, 0) % frequency == 0 for layer in range(layers))


def _compute_dtype(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    """``--dtype auto`` (configs/model_config.py _get_and_verify_dtype): float32 is served as fp16, Gemma as bf16."""
    dtype = _stated_dtype(config, text)
    if dtype != "fp32":
        return dtype
    return "bf16" if str(text.get("model_type") or config.get("model_type") or "").startswith("gemma") else "fp16"


def _stated_dtype(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    stated = [source.get(key) for source in (text, config) for key in ("dtype", "torch_dtype")]
    return canonical(str(next((value for value in stated if value), "float32")))


def _window_layers(text: Mapping[str, Any], layers: int) -> int:
    """Layers that vLLM gives a sliding-window spec: by ``layer_types``, a stated pattern, or the whole model."""
    window = text.get("sliding_window")
    if not window or text.get("use_sliding_window") is False:
        return 0
    kinds = text.get("layer_types")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str) and kinds:
        return list(kinds)[:layers].count("sliding_attention")
    every = text.get("sliding_window_pattern") or {"gemma2": 2, "gemma3_text": 6}.get(str(text.get("model_type")))
    if every:
        return layers - layers // int(every)
    return layers


def _has_qk_norm(text: Mapping[str, Any]) -> bool:
    return str(text.get("model_type", "")).startswith(("qwen3", "gemma3", "gemma4", "olmo2")) or bool(
        text.get("use_qk_norm")
    )


def _read_sidecar(file: Path) -> Mapping[str, Any] | None:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _positive(source: Mapping[str, Any], *keys: str) -> int:
    for key in keys:
        value = source.get(key)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise ValueError(f"'{key}' is {value!r}, expected a positive whole number")
            return value
    raise KeyError(keys[0])


def _optional_int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


#: Assumed where no model is given: what most dense models look like to the rules.
ORDINARY = model_from_config(
    {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "torch_dtype": "bfloat16",
    },
    name="an ordinary model",
)
