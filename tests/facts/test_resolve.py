"""The rule table: golden outcomes (version, GPU, model, request), why chains, and totality over every combination."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpolicy.facts import GPUS, Outcome, Settings, model_from_config, resolve_sglang
from kvpolicy.facts.engines import ENGINES, Version, parse_version
from kvpolicy.facts.gpus import Gpu
from kvpolicy.facts.model import ModelFacts
from kvpolicy.facts.resolve import chunk_tokens
from kvpolicy.facts.rules import Deny, Note, Rule
from kvpolicy.facts.sglang_rules import ARGUMENT_RULES, RULES
from kvpolicy.language.vocabulary import ATTENTION_BACKENDS, KV_DTYPES
from tests.facts.matrix import MODELS

MODEL_FACTS = {name: model_from_config(config, name=name) for name, config in MODELS.items()}


def resolve(version: str, gpu: str, model: str, **asked: object) -> Outcome:
    request = Settings(**asked)  # type: ignore[arg-type]
    return resolve_sglang(request, version=parse_version(version), gpu=GPUS[gpu], model=MODEL_FACTS[model])


GOLDEN = [
    # version, gpu, model, asked, (page, dtype, prefill backend, decode backend)
    ("0.5.23", "h200", "llama-3.1-8b", {}, (1, "bf16", "fa3", "fa3")),
    ("0.5.23", "h200", "llama-3.1-8b", {"page_size": 16}, (16, "bf16", "fa3", "fa3")),
    ("0.5.16", "h200", "llama-3.1-8b", {"page_size": 16}, (16, "bf16", "fa3", "fa3")),
    ("0.5.23", "h200", "llama-3.1-8b", {"kv_dtype": "fp8_e5m2"}, (1, "fp8_e5m2", "triton", "triton")),
    ("0.5.23", "h200", "llama-3.1-8b", {"attention": "hpc_ops", "page_size": 16}, (64, "bf16", "hpc_ops", "hpc_ops")),
    ("0.5.23", "a100", "llama-3.1-8b", {}, (1, "bf16", "flashinfer", "flashinfer")),
    ("0.5.23", "l40s", "deepseek-v2-lite", {}, (1, "bf16", "triton", "triton")),
    ("0.5.23", "b200", "llama-3.1-8b", {}, (64, "bf16", "trtllm_mha", "trtllm_mha")),
    ("0.5.23", "b200", "llama-3.1-8b", {"page_size": 128}, (128, "bf16", "trtllm_mha", "trtllm_mha")),
    ("0.5.16", "b200", "llama-3.1-8b", {"page_size": 128}, (64, "bf16", "trtllm_mha", "trtllm_mha")),
    ("0.5.23", "b200", "llama-3.1-8b", {"attention": "fa4", "page_size": 16}, (128, "bf16", "fa4", "fa4")),
    ("0.5.23", "b200", "llama-3.1-8b", {"kv_dtype": "nvfp4"}, (64, "nvfp4", "trtllm_mha", "trtllm_mha")),
    (
        "0.5.23", "b200", "llama-3.1-8b", {"kv_dtype": "nvfp4", "attention": "flashinfer"},
        (64, "nvfp4", "flashinfer", "trtllm_mha"),
    ),
    ("0.5.23", "b200", "deepseek-v3", {"page_size": 32}, (32, "bf16", "trtllm_mla", "trtllm_mla")),
    ("0.5.23", "b200", "deepseek-v3", {"page_size": 16}, (64, "bf16", "trtllm_mla", "trtllm_mla")),
    ("0.5.23", "b200", "deepseek-v3", {"attention": "cutedsl_mla"}, (64, "bf16", "trtllm_mla", "cutedsl_mla")),
    ("0.5.23", "b200", "deepseek-v2-lite", {}, (1, "bf16", "flashinfer", "flashinfer")),
    ("0.5.23", "h200", "deepseek-v3.2", {"page_size": 16}, (64, "bf16", "dsa", "dsa")),
    ("0.5.23", "b200", "deepseek-v3.2", {}, (64, "fp8_e4m3", "dsa", "dsa")),
    ("0.5.23", "h200", "gpt-oss-20b", {}, (1, "bf16", "fa3", "fa3")),
    ("0.5.23", "a100", "gpt-oss-20b", {}, (1, "bf16", "triton", "triton")),
    ("0.5.23", "b200", "qwen3-next-80b", {"page_size": 16}, (1, "bf16", "triton", "triton")),
    ("0.5.18", "b200", "nemotron-h-8b", {}, (1, "bf16", "flashinfer", "flashinfer")),
    ("0.5.20", "b200", "nemotron-h-8b", {}, (64, "bf16", "trtllm_mha", "trtllm_mha")),
    ("0.5.23", "mi300x", "llama-3.1-8b", {"kv_dtype": "fp8_e5m2"}, (1, "fp8_e4m3", "aiter", "aiter")),
    ("0.5.23", "cpu", "smollm2-135m", {}, (1, "bf16", "torch_native", "torch_native")),
    ("0.5.23", "cpu-amx", "smollm2-135m", {}, (1, "bf16", "intel_amx", "intel_amx")),
    ("0.5.20", "cpu", "smollm2-135m", {"page_size": 16}, (16, "bf16", "torch_native", "torch_native")),
    ("0.5.23", "h200", "gemma-2-9b", {}, (1, "bf16", "fa3", "fa3")),  # float32 checkpoint, Gemma
    ("0.5.23", "h200", "olmo-2-7b", {}, (1, "fp16", "fa3", "fa3")),  # float32 checkpoint
]  # fmt: skip


@pytest.mark.parametrize(("version", "gpu", "model", "asked", "expected"), GOLDEN)
def test_golden_outcomes(
    version: str, gpu: str, model: str, asked: dict[str, object], expected: tuple[object, ...]
) -> None:
    outcome = resolve(version, gpu, model, **asked)
    got = (outcome.page_size, outcome.kv_dtype, outcome.prefill_attention, outcome.decode_attention)
    assert not outcome.refusals
    assert got == expected


REFUSED = [
    ("0.5.23", "h200", "llama-3.1-8b", {"kv_dtype": "nvfp4"}, "nvfp4-gpu"),
    ("0.5.23", "h200", "llama-3.1-8b", {"kv_dtype": "mxfp8"}, "mxfp8-gpu"),
    ("0.5.23", "h200", "llama-3.1-8b", {"kv_dtype": "fp16"}, "dtype-names"),
    ("0.5.23", "h200", "llama-3.1-8b", {"kv_dtype": "fp4_e2m1"}, "fp4-e2m1"),
    ("0.5.23", "h200", "deepseek-v3", {"attention": "trtllm_mla"}, "trtllm-mla-gpu"),
    ("0.5.23", "b200", "deepseek-v3", {"attention": "trtllm_mla", "kv_dtype": "fp8_e5m2"}, "trtllm-mla-dtype"),
    ("0.5.23", "h200", "deepseek-v3.2", {"kv_dtype": "fp8_e5m2"}, "dsa-dtype"),
    ("0.5.18", "h200", "llama-3.1-8b", {"attention": "trtllm_mha"}, "trtllm-mha-gpu"),
    ("0.5.23", "b200", "llama-3.1-8b", {"attention": "fa3"}, "fa3-gpu"),
    ("0.5.23", "a100", "deepseek-v3", {"attention": "fa3"}, "fa3-gpu"),
    ("0.5.23", "h200", "gpt-oss-20b", {"attention": "flashinfer"}, "model-backends"),
    ("0.5.23", "b200", "lfm2-1.2b", {"page_size": 16}, "no-buffer-page"),
    ("0.5.23", "h200", "qwen3-next-80b", {"page_size": 512}, "state-interval"),
    ("0.5.23", "h200", "llama-3.1-8b", {"page_size": 16384}, "chunk-multiple"),
    ("0.5.20", "cpu", "smollm2-135m", {"kv_dtype": "fp8_e5m2"}, "cpu-e5m2"),
    ("0.5.20", "cpu", "smollm2-135m", {"kv_dtype": "fp8_e4m3"}, "cpu-e4m3"),
    ("0.5.23", "mi300x", "llama-3.1-8b", {"attention": "flashinfer"}, "cuda-backend"),
    ("0.5.23", "h200", "llama-3.1-8b", {"attention": "flashmla"}, "mla-backend"),
]  # fmt: skip


@pytest.mark.parametrize(("version", "gpu", "model", "asked", "rule"), REFUSED)
def test_golden_refusals(version: str, gpu: str, model: str, asked: dict[str, object], rule: str) -> None:
    assert rule in {refusal.rule.name for refusal in resolve(version, gpu, model, **asked).refusals}


def test_why_chain_names_every_step() -> None:
    outcome = resolve("0.5.23", "h200", "llama-3.1-8b", kv_dtype="fp8_e5m2")
    steps = [(step.before, step.after, step.rule.name) for step in outcome.why("attention")]
    assert steps == [(None, "fa3", "attention-default"), ("fa3", "triton", "fa3-e5m2")]


def test_paging_on_a_cpu_needs_triton_up_to_0_5_20() -> None:
    def noted(version: str, page: int) -> bool:
        return any(n.rule.name == "cpu-paging" for n in resolve(version, "cpu", "smollm2-135m", page_size=page).notes)

    assert noted("0.5.20", 16)
    assert not noted("0.5.20", 1)
    assert not noted("0.5.23", 16)


def test_flashinfer_and_triton_plan_single_tokens() -> None:
    noted = resolve("0.5.23", "a100", "llama-3.1-8b", page_size=64).notes
    assert [n.rule.name for n in noted] == ["flashinfer-plan"]
    assert not resolve("0.5.23", "h200", "llama-3.1-8b", page_size=64).notes


@given(
    version=st.sampled_from(ENGINES["sglang"]),
    gpu=st.sampled_from(sorted(GPUS)),
    model=st.sampled_from(sorted(MODELS)),
    page=st.none() | st.sampled_from([1, 2, 16, 32, 64, 128, 256, 1024]),
    dtype=st.sampled_from(sorted(KV_DTYPES)),
    attention=st.none() | st.sampled_from(sorted(ATTENTION_BACKENDS)),
    tp=st.sampled_from([1, 2, 8]),
)
def test_every_combination_has_an_outcome(
    version: str, gpu: str, model: str, page: int | None, dtype: str, attention: str | None, tp: int
) -> None:
    outcome = resolve_sglang(
        Settings(page, dtype, attention), version=parse_version(version), gpu=GPUS[gpu], model=MODEL_FACTS[model], tp=tp
    )
    assert outcome.page_size >= 1
    assert outcome.kv_dtype != "auto"
    assert outcome.attention
    assert outcome.prefill_attention
    assert outcome.decode_attention
    if not outcome.refusals:
        # Asking for what the engine settles on changes nothing more.
        again = resolve_sglang(
            Settings(outcome.page_size, outcome.kv_dtype if dtype != "auto" else "auto", attention),
            version=parse_version(version), gpu=GPUS[gpu], model=MODEL_FACTS[model], tp=tp,
        )  # fmt: skip
        assert (again.page_size, again.kv_dtype) == (outcome.page_size, outcome.kv_dtype)


def _deployments(rule: Rule) -> Iterator[tuple[Version, Gpu, ModelFacts, Settings]]:
    """Deployments that should reach a row, if any can: drawn from its own conditions."""
    plain = MODELS["llama-3.1-8b"]
    named = [name.replace("*", "ForCausalLM") for name in rule.model if name[0].isupper()]
    real = [config for config in MODELS.values() if config["architectures"][0] in named or not named]
    configs = [*real, *(plain | {"architectures": [name]} for name in named), plain | {"v_head_dim": 64}]
    configs += [plain | {"architectures": ["GraniteSWAForCausalLM"]}] if "sinks" in rule.model else []
    models = [model_from_config(config) for config in configs]
    values = rule.effect.values if isinstance(rule.effect, Deny) else ()
    backends = (*rule.attention, *(values if rule.field.endswith("attention") else ()), None, "wave", "trtllm_mha")
    dtypes = (*rule.kv_dtype, *(values if rule.field == "kv_dtype" else ()), "auto", "fp16", "fp8_e5m2")
    version = max(v for v in map(parse_version, ENGINES["sglang"]) if rule.since <= v <= rule.until)
    for gpu in GPUS.values():
        if (rule.gpu and gpu.traits.isdisjoint(rule.gpu)) or not gpu.traits.isdisjoint(rule.not_gpu):
            continue
        for model in models:
            for page, dtype, backend in product((None, 16, 512, 16384), dtypes, backends):
                yield version, gpu, model, Settings(page, str(dtype), None if backend is None else str(backend))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_does_something_somewhere(rule: Rule) -> None:
    """A row that no deployment can reach is a typing mistake in a condition, or hidden by a row before it."""

    def applied() -> Iterator[Rule]:
        for version, gpu, model, asked in _deployments(rule):
            outcome = resolve_sglang(asked, version=version, gpu=gpu, model=model)
            yield from (item.rule for item in (*outcome.steps, *outcome.refusals))

    assert any(found is rule for found in applied()), "no deployment reaches this row"


def test_rows_are_well_formed() -> None:
    known = {"cuda", "hip", "cpu", "amx", "xpu", "blackwell", "gfx942", "gfx950", *(f"sm{n}0" for n in range(7, 13))}
    versions = [parse_version(version) for version in ENGINES["sglang"]]
    for rule in RULES:
        assert rule.reason
        assert rule.source
        assert known.issuperset(rule.gpu + rule.not_gpu), rule
        assert any(rule.since <= version <= rule.until for version in versions), rule
        assert set(rule.attention) <= set(ATTENTION_BACKENDS) | {"cutlass_mla"}, rule
        assert set(rule.kv_dtype) <= set(KV_DTYPES), rule
        assert re.fullmatch(r"[a-z0-9-]+", rule.name)
    assert set(ARGUMENT_RULES) < set(RULES)
    assert any(isinstance(rule.effect, Note) for rule in RULES)


def test_default_chunk_by_memory() -> None:
    chunks = {name: chunk_tokens(GPUS[name]) for name in ("t4", "l4", "l40s", "a100", "h200", "b200")}
    assert chunks == {"t4": 2048, "l4": 4096, "l40s": 4096, "a100": 8192, "h200": 8192, "b200": 16384}
