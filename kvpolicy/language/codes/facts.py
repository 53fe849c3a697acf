"""KVP5xx: what engine, model and GPU make of a policy (`check --engine --model --gpu`)."""

from __future__ import annotations

import json

from kvpolicy.language.codes.base import Code, codes

__all__ = ["FACTS"]

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
_QWEN_VL = _LLAMA | {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl"}
_FILES = {"config.json": json.dumps(_LLAMA), "qwen-vl.json": json.dumps(_QWEN_VL)}
_SGLANG = ("--engine", "sglang==0.5.23")
_H200 = (*_SGLANG, "--gpu", "h200")
_WITH_MODEL = (*_H200, "--model", "config.json")
_TRAFFIC = (*_WITH_MODEL, "--traffic", "batch=128,shared=8Ki,unique=256")
_LRU = "eviction: {policy: lru}\n"


def _fact(code: str, title: str, text: str, *, args: tuple[str, ...]) -> Code:
    """An info code: raised for any policy that is checked with these arguments, and not without them."""
    return Code(code, title, text, bad=_LRU, good=_LRU, args=args, good_args=(), files=_FILES)


def _evidence(level: str, kl_mean_nats: float, top1_agreement: float, perplexity_change: float) -> str:
    """A file of `kvpolicy fidelity` for fp8 on the Llama above, with what `check` reads of it."""
    figures = {"tokens": 4064, "kl_mean_nats": kl_mean_nats, "top1_agreement": top1_agreement}
    shape = {"name": "", "architecture": "LlamaForCausalLM", "layers": 32, "num_heads": 32, "kv_heads": 8}
    evidence = {
        "kind": "kvpolicy/fidelity",
        "version": 1,
        "verdict": {"level": level, "reasons": []},
        "model": {**shape, "head_dim": 128, "kv_lora_rank": 0},
        "engine": {"name": "sglang", "version": "0.5.23", "device": "NVIDIA H200"},
        "reference": {"kv_dtype": "bf16"},
        "measured": {"kv_dtype": "fp8_e4m3", "kv_layers": {}},
        "passes": {"cached": {"all": {**figures, "perplexity_change": perplexity_change}}},
    }
    return json.dumps(evidence)


_MEASURED = {
    **_FILES,
    "bad.json": _evidence("bad", 0.31, 0.81, 0.12),
    "good.json": _evidence("ok", 0.0011, 0.991, 0.0004),
}

FACTS = codes(
    _fact(
        "KVP501",
        "page size the engine runs",
        "The page size after the engine's own rules, and the rules that touched it.",
        args=_H200,
    ),
    _fact(
        "KVP502",
        "KV dtype the engine stores",
        "The storage dtype after the engine's own rules; `auto` is resolved to the checkpoint's or the model's dtype.",
        args=_H200,
    ),
    _fact(
        "KVP503",
        "attention backend the engine runs",
        "The backend after the engine's defaults for model and device, and the rules that chose it.",
        args=_H200,
    ),
    _fact(
        "KVP504",
        "KV bytes a token",
        "What one token costs on one rank, as the engine sizes its pool, with the formula.",
        args=_WITH_MODEL,
    ),
    _fact(
        "KVP505",
        "tokens in the KV pool",
        "Capacity of the pool in whole pages: of `--memory` where given, else estimated from the device's memory, "
        "the engine's default share of it and the size of the weights.",
        args=(*_WITH_MODEL, "--memory", "60GiB"),
    ),
    _fact(
        "KVP506",
        "index entries and hit granularity",
        "Entries a request puts into the backend's index table (one a page, or one a token on backends that read "
        "tokens), and what the page size costs in cache hits: only whole pages are shared, so a hit loses (page - "
        "1) / 2 tokens on average and a prefix shorter than a page is never shared.",
        args=_WITH_MODEL,
    ),
    Code(
        "KVP507",
        "the engine needs or does something more",
        "No conflict, but worth knowing: what the setting needs from the operator (a warning) or what it does not do.",
        bad="backend: {attention: triton}\ncache: {page_size: 16}\n",
        good="backend: {attention: triton}\ncache: {page_size: 1}\n",
        args=_H200,
    ),
    _fact(
        "KVP508",
        "KV pool class of the engine",
        "Which of SGLang's pool classes holds this model's KV, and what a policy does to it: `configured` (the engine "
        "makes it with the policy's page size and dtype), `substituted` (for `kv_dtype.layers`, by a subclass) or "
        "`left alone`, with the reason. docs/pools.md has the table, read from the engine's sources.",
        args=(*_SGLANG, "--model", "config.json"),
    ),
    Code(
        "KVP511",
        "the engine overrides the policy",
        "The engine's own resolution ends on a value that is neither preferred nor listed in `accept`. At start "
        "this is a conflict: the server exits (`on_conflict: error`) or the engine wins (`warn`).",
        bad="backend: {attention: hpc_ops}\ncache: {page_size: 16}\n",
        good="backend: {attention: hpc_ops}\ncache: {page_size: {prefer: 16, accept: [16, 64]}}\n",
        args=_H200,
    ),
    Code(
        "KVP512",
        "the engine does not start with this value",
        "The engine refuses the value on this device or model, so `on_conflict: warn` does not help.",
        bad="cache: {kv_dtype: nvfp4}\n",
        good="cache: {kv_dtype: bf16}\n",
        args=_H200,
    ),
    Code(
        "KVP513",
        "engine version not known",
        "No facts were read from this release; those of the nearest known one are used and may be wrong.",
        bad=_LRU,
        good=_LRU,
        args=("--engine", "sglang==0.5.21"),
        good_args=("--engine", "sglang==0.5.23"),
    ),
    Code(
        "KVP514",
        "engine version not supported",
        "A policy goes into places of the engine that are private and change between releases. Outside the supported "
        "range nobody looked at them, and a server with a policy refuses to start.",
        bad=_LRU,
        good=_LRU,
        args=("--engine", "sglang==0.5.99"),
        good_args=("--engine", "sglang==0.5.23"),
    ),
    _fact(
        "KVP515",
        "an argument is missing",
        "What the engine runs depends on device and model. Without `--gpu` nothing is resolved; without `--model` "
        "an ordinary grouped-query model in bf16 is assumed.",
        args=_SGLANG,
    ),
    Code(
        "KVP521",
        "KV dtype reported bad",
        "A public thread reports bad results with this KV dtype on this kind of model or device. It is that "
        "thread's claim: measure your own task, against bf16, before you serve it.",
        bad="cache: {kv_dtype: fp8_e5m2}\n",
        good="cache: {kv_dtype: bf16}\n",
        files=_FILES,
        args=(*_H200, "--model", "qwen-vl.json"),
    ),
    Code(
        "KVP522",
        "evidence for the KV dtype",
        "Quantized KV is `validated` (the checkpoint or the engine itself uses it for this model) or `experimental`.",
        bad="cache: {kv_dtype: fp8_e4m3}\n",
        good="cache: {kv_dtype: bf16}\n",
        files=_FILES,
        args=_WITH_MODEL,
    ),
    Code(
        "KVP523",
        "protection leaves less room than one request",
        "Budgets and floors may protect so much that a request of maximal length does not fit into the rest. "
        "Protection is soft: the request is served by evicting protected units, which then do not stay as the "
        "policy promises.",
        bad="eviction: {rules: [{name: keep, retain: {weight: 1, budget: 90%}}]}\n",
        good="eviction: {rules: [{name: keep, retain: {weight: 1, budget: 20%}}]}\n",
        files=_FILES,
        args=(*_WITH_MODEL, "--memory", "60GiB"),
    ),
    Code(
        "KVP525",
        "a rule protects less than one page",
        "Only whole pages are cached. A rule whose match ends before the first page does can never match, so it "
        "protects nothing. Pages may be larger than asked for: vLLM makes the blocks of Mamba hybrids as many bytes as "
        "their state, hundreds or thousands of tokens.",
        bad="eviction: {rules: [{name: keep, match: depth_tokens <= 100, retain: {weight: 1, budget: 20%}}]}\n",
        good="eviction: {rules: [{name: keep, match: depth_tokens <= 512, retain: {weight: 1, budget: 20%}}]}\n",
        args=("--engine", "vllm==0.32.0", "--gpu", "cpu"),
    ),
    Code(
        "KVP524",
        "no room for a KV pool",
        "Not one page fits: the memory is smaller than a page, or the weights leave nothing (an estimate, then a "
        "warning).",
        bad="cache: {page_size: 64}\n",
        good="cache: {page_size: 16}\n",
        files=_FILES,
        args=(*_WITH_MODEL, "--memory", "4MiB"),
    ),
    Code(
        "KVP531",
        "KV dtype measured bad",
        "`kvpolicy fidelity` measured this KV dtype on this model, and its verdict was bad: the answers are not the "
        "model's any more. The message has the figures; `kvpolicy fidelity` says the limits and where they come from.",
        bad="cache: {kv_dtype: fp8_e4m3}\n",
        good="cache: {kv_dtype: fp8_e4m3}\n",
        files=_MEASURED,
        args=(*_WITH_MODEL, "--evidence", "bad.json"),
        good_args=(*_WITH_MODEL, "--evidence", "good.json"),
    ),
    Code(
        "KVP532",
        "KV dtype measured",
        "What `kvpolicy fidelity` measured for this KV dtype on this model; the verdict was ok or noticeable. The "
        "engine's version and device are those of the measurement, not of the deployment that is checked.",
        bad="cache: {kv_dtype: fp8_e4m3}\n",
        good="cache: {kv_dtype: fp8_e4m3}\n",
        files=_MEASURED,
        args=(*_WITH_MODEL, "--evidence", "good.json"),
        good_args=_WITH_MODEL,
    ),
    Code(
        "KVP533",
        "evidence of something else",
        "An evidence file was given that was measured on another model, engine, KV dtype or choice of layers. It says "
        "nothing about this policy.",
        bad="cache: {kv_dtype: fp8_e5m2}\n",
        good="cache: {kv_dtype: fp8_e4m3}\n",
        files=_MEASURED,
        args=(*_WITH_MODEL, "--evidence", "good.json"),
    ),
    _fact(
        "KVP541",
        "whether a cascade would pay",
        "What decode attention costs for the traffic of `--traffic`, with every request reading the shared prefix, and "
        "with the prefix read once (a cascade). By a cost model fitted to measured kernels; the message says which, "
        "how far the model is off, and whether the engine has a cascade at all.",
        args=_TRAFFIC,
    ),
    _fact(
        "KVP542",
        "whether a larger page would pay in the kernel",
        "What decode attention costs for the traffic of `--traffic` at pages of 1, 16 and 64 tokens, and how large the "
        "index is; and whether this engine's backend reads pages, so that any of it can be had.",
        args=_TRAFFIC,
    ),
)
