"""vLLM's rules: golden outcomes (release, GPU, model, request), refusals with their reasons, and totality."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpolicy.facts import GPUS, Outcome, Settings, model_from_config, report
from kvpolicy.facts.engines import ENGINES, parse_version
from kvpolicy.facts.layer_dtypes import layer_dtypes
from kvpolicy.facts.resolve_vllm import compute_dtype, resolve_vllm
from kvpolicy.facts.vllm_backends import BACKENDS, Backend, engine_dtype_name
from kvpolicy.facts.vllm_cpu import SILENT
from kvpolicy.facts.vllm_names import KV_DTYPE_SINCE
from kvpolicy.language import load_text
from kvpolicy.language.vocabulary import ATTENTION_BACKENDS, KV_DTYPES
from tests.facts.matrix import MODELS
from tests.facts.test_report import HEADER, codes, found, policy

MODEL_FACTS = {name: model_from_config(config, name=name) for name, config in MODELS.items()}
EDGES = (("0-1", "bf16"), ("-2:", "bf16"))


def resolve(version: str, gpu: str, model: str, layers: tuple[tuple[str, str], ...] = (), **asked: object) -> Outcome:
    request = Settings(**asked)  # type: ignore[arg-type]
    where = {"version": parse_version(version), "gpu": GPUS[gpu], "model": MODEL_FACTS[model]}
    return resolve_vllm(request, layers=layers, **where)  # type: ignore[arg-type]


GOLDEN = [
    # version, gpu, model, asked, (block, kernel block, dtype, backend)
    ("0.32.0", "h200", "llama-3.1-8b", {}, (16, 16, "bf16", "flash_attn")),
    ("0.32.0", "h200", "llama-3.1-8b", {"kv_dtype": "fp8_e4m3"}, (16, 16, "fp8_e4m3", "flash_attn")),
    ("0.32.0", "h200", "llama-3.1-8b", {"kv_dtype": "fp8_e5m2"}, (16, 16, "fp8_e5m2", "flashinfer")),
    ("0.32.0", "h200", "llama-3.1-8b", {"kv_dtype": "nvfp4"}, (16, 16, "nvfp4", "flashinfer")),
    ("0.32.0", "h200", "llama-3.1-8b", {"attention": "hpc_attn"}, (64, 64, "bf16", "hpc_attn")),
    ("0.32.0", "h200", "llama-3.1-8b", {"attention": "flashinfer", "page_size": 128}, (128, 64, "bf16", "flashinfer")),
    ("0.32.0", "a100", "llama-3.1-8b", {"kv_dtype": "fp8_e4m3"}, (16, 16, "fp8_e4m3", "flashinfer")),
    ("0.32.0", "t4", "llama-3.1-8b", {}, (16, 16, "fp16", "triton_attn")),
    ("0.32.0", "t4", "gemma-2-9b", {}, (16, 16, "fp32", "triton_attn")),
    ("0.32.0", "b200", "llama-3.1-8b", {"page_size": 128}, (128, 128, "bf16", "flashinfer")),
    ("0.32.0", "b200", "deepseek-v3", {}, (32, 32, "bf16", "flashinfer_mla")),
    ("0.32.0", "b200", "deepseek-v3", {"page_size": 16}, (16, 16, "bf16", "triton_mla")),
    ("0.32.0", "h200", "deepseek-v3", {}, (16, 16, "bf16", "flash_attn_mla")),
    ("0.32.0", "h200", "deepseek-v3", {"kv_dtype": "fp8_e4m3"}, (64, 64, "fp8_e4m3", "flashmla")),
    ("0.32.0", "h200", "deepseek-v3.2", {}, (64, 64, "bf16", "flash_attn_mla_sparse")),
    ("0.32.0", "h200", "deepseek-v3.2", {"page_size": 128}, (128, 64, "bf16", "flash_attn_mla_sparse")),
    ("0.32.0", "rtx5090", "deepseek-v3.2", {"kv_dtype": "bf16"}, (64, 64, "fp8_ds_mla", "flashinfer_mla_sparse_sm120")),
    ("0.32.0", "b200", "glm-5.1", {}, (64, 64, "fp8_e4m3", "flashinfer_mla_sparse")),
    ("0.28.0", "b200", "glm-5.1", {}, (64, 64, "bf16", "flashmla_sparse")),
    ("0.32.0", "h200", "gpt-oss-20b", {}, (16, 16, "bf16", "flash_attn")),
    ("0.32.0", "a100", "gpt-oss-20b", {}, (16, 16, "bf16", "triton_attn")),
    ("0.32.0", "rtx5090", "gpt-oss-20b", {}, (16, 16, "bf16", "flashinfer")),
    ("0.26.0", "rtx5090", "gpt-oss-20b", {}, (16, 16, "bf16", "triton_attn")),
    ("0.32.0", "h200", "qwen3-next-80b", {}, (544, 544, "bf16", "flash_attn")),
    ("0.32.0", "b200", "qwen3-next-80b", {}, (544, 32, "bf16", "flashinfer")),
    ("0.32.0", "h200", "qwen3-next-80b", {"kv_dtype": "fp8_e4m3"}, (1072, 1072, "fp8_e4m3", "flash_attn")),
    ("0.32.0", "h200", "nemotron-h-8b", {}, (1040, 1040, "bf16", "flash_attn")),
    ("0.32.0", "cpu", "nemotron-h-8b", {}, (1152, 1152, "bf16", "cpu_attn")),
    ("0.32.0", "cpu", "smollm2-135m", {}, (128, 128, "bf16", "cpu_attn")),
    ("0.32.0", "cpu", "smollm2-135m", {"page_size": 32, "kv_dtype": "fp8_e4m3"}, (32, 32, "fp8_e4m3", "cpu_attn")),
    ("0.28.0", "cpu", "smollm2-135m", {"page_size": 16}, (16, 16, "bf16", "cpu_attn")),
    ("0.32.0", "cpu", "smollm2-135m", {"attention": "flash_attn"}, (128, 128, "bf16", "cpu_attn")),
    ("0.32.0", "cpu", "deepseek-v3", {"page_size": 64}, (16, 16, "bf16", "cpu_mla")),
    ("0.32.0", "cpu-amx", "deepseek-v3", {}, (128, 128, "bf16", "amx_mla")),
    ("0.32.0", "mi300x", "llama-3.1-8b", {}, (16, 16, "bf16", "rocm_attn")),
]  # fmt: skip


@pytest.mark.parametrize(("version", "gpu", "model", "asked", "expected"), GOLDEN)
def test_golden_outcomes(
    version: str, gpu: str, model: str, asked: dict[str, object], expected: tuple[object, ...]
) -> None:
    outcome = resolve(version, gpu, model, **asked)
    assert not outcome.refusals
    assert (outcome.page_size, outcome.kernel_page, outcome.kv_dtype, outcome.attention) == expected


REFUSED = [
    ("0.32.0", "h200", "llama-3.1-8b", {"page_size": 8}, "page_size", "no-backend"),
    ("0.32.0", "h200", "llama-3.1-8b", {"attention": "hpc_attn", "page_size": 16}, "page_size", "backend-fit"),
    ("0.32.0", "h200", "llama-3.1-8b", {"attention": "flash_attn", "kv_dtype": "nvfp4"}, "kv_dtype", "backend-fit"),
    ("0.30.0", "h200", "llama-3.1-8b", {"kv_dtype": "nvfp4"}, "kv_dtype", "no-backend"),
    ("0.32.0", "h200", "llama-3.1-8b", {"attention": "flashmla"}, "attention", "backend-fit"),
    ("0.32.0", "t4", "llama-3.1-8b", {"attention": "flashinfer"}, "attention", "backend-fit"),
    ("0.32.0", "h200", "deepseek-v3", {"kv_dtype": "nvfp4"}, "kv_dtype", "mla-nvfp4"),
    ("0.32.0", "a100", "deepseek-v3.2", {}, "attention", "no-backend"),
    ("0.32.0", "h200", "llama-3.1-8b", {"kv_dtype": "mxfp8"}, "kv_dtype", "dtype-names"),
    ("0.32.0", "h200", "llama-3.1-8b", {"kv_dtype": "octave_k3v4"}, "kv_dtype", "dtype-names"),
    ("0.26.0", "b200", "llama-3.1-8b", {"kv_dtype": "nvfp4_4over6"}, "kv_dtype", "dtype-names"),
    ("0.32.0", "h200", "llama-3.1-8b", {"attention": "fa3"}, "attention", "attention-names"),
    ("0.28.0", "rtx5090", "llama-3.1-8b", {"attention": "b12x"}, "attention", "attention-names"),
    ("0.26.0", "cpu", "deepseek-v3", {}, "attention", "cpu-attention"),
    ("0.32.0", "cpu", "deepseek-v3.2", {}, "attention", "cpu-attention"),
    ("0.32.0", "cpu", "smollm2-135m", {"page_size": 16}, "page_size", "kernel-block"),
    ("0.32.0", "cpu", "smollm2-135m", {"kv_dtype": "nvfp4"}, "kv_dtype", "cpu-silent-dtype"),
    ("0.32.0", "cpu", "smollm2-135m", {"kv_dtype": "int8_per_token_head"}, "kv_dtype", "cpu-silent-dtype"),
    ("0.33.0", "cpu", "smollm2-135m", {"kv_dtype": "nvfp4"}, "kv_dtype", "cpu-dtype"),
    ("0.33.0", "cpu", "smollm2-135m", {"kv_dtype": "fp16"}, "kv_dtype", "other-sixteen-bits"),
    ("0.33.0", "h200", "starcoder", {"kv_dtype": "bf16"}, "kv_dtype", "other-sixteen-bits"),
    ("0.32.0", "h200", "llama-3.1-8b", {"attention": "turboquant", "kv_dtype": "turboquant_k8v4"}, "attention",
     "backend-fit"),
]  # fmt: skip


@pytest.mark.parametrize(("version", "gpu", "model", "asked", "field", "rule"), REFUSED)
def test_golden_refusals(version: str, gpu: str, model: str, asked: dict[str, object], field: str, rule: str) -> None:
    refusals = resolve(version, gpu, model, **asked).refusals
    assert [(r.rule.field, r.rule.name) for r in refusals] == [(field, rule)]
    assert refusals[0].rule.reason
    assert refusals[0].rule.source


def test_why_says_what_a_block_size_costs() -> None:
    """On Blackwell a block of 16 takes MLA off its fast kernels."""
    steps = resolve("0.32.0", "b200", "deepseek-v3", page_size=16).why("attention")
    assert [step.rule.name for step in steps] == ["block-size-filter"]
    assert "flashinfer_mla takes blocks of 32, 64 or multiples" in steps[0].why


def test_single_layers_go_into_the_engines_option() -> None:
    outcome = resolve("0.32.0", "h200", "llama-3.1-8b", EDGES, kv_dtype="fp8_e4m3")
    assert outcome.skip_layers == ("0", "1", "30", "31")
    assert outcome.page_size == 32, "blocks of fp8 hold as many bytes as those of bf16 layers"
    assert [step.rule.name for step in outcome.why("page_size")] == ["block-default", "mixed-dtype-block"]
    on_cpu = resolve("0.32.0", "cpu", "llama-3.1-8b", EDGES, kv_dtype="fp8_e4m3")
    assert (on_cpu.page_size, on_cpu.skip_layers) == (128, ("0", "1", "30", "31"))
    assert resolve("0.32.0", "h200", "llama-3.1-8b", EDGES).skip_layers == (), "nothing to skip"


def test_packed_dtypes_leave_the_outer_layers_alone() -> None:
    outcome = resolve("0.32.0", "h200", "llama-3.1-8b", kv_dtype="turboquant_k8v4")
    assert outcome.skip_layers == ("0", "1", "30", "31")
    assert resolve("0.32.0", "h200", "qwen3-next-80b", kv_dtype="turboquant_k8v4").skip_layers == ()


def test_what_the_option_cannot_say_is_a_conflict() -> None:
    model = MODEL_FACTS["llama-3.1-8b"]
    assert layer_dtypes((("0", "fp8_e5m2"), ("1", "bf16")), model, "bf16").unexpressed == (("0", "fp8_e5m2"),)
    text = 'cache: {kv_dtype: {default: fp8_e4m3, layers: {"0-1": fp8_e5m2}}, on_conflict: %s}'
    for mode, severity in (("error", "error"), ("warn", "warning")):
        checked = load_text((HEADER + text % mode).encode(), "p.yaml", "vllm").policy
        assert checked is not None
        conflict = found(report(checked, engine="vllm==0.32.0", gpu="h200"), "KVP511")
        assert conflict.severity == severity
        assert "layers 0-1 cannot have fp8_e5m2" in conflict.message


def test_mla_on_a_plain_cpu_caches_nothing_and_says_so() -> None:
    outcome = resolve("0.32.0", "cpu", "deepseek-v3")
    assert not outcome.prefix_cache
    assert [note.rule.name for note in outcome.notes] == ["cpu-mla-prefix"]


def test_the_language_has_a_word_for_everything_in_the_tables() -> None:
    assert {row.name for row in BACKENDS} <= {name for name, engines in ATTENTION_BACKENDS.items() if "vllm" in engines}
    assert set(KV_DTYPE_SINCE) == {name for name, engines in KV_DTYPES.items() if "vllm" in engines}


def test_e4m3_has_two_names() -> None:
    assert engine_dtype_name("fp8_e4m3") == "fp8"
    assert engine_dtype_name("fp8_e4m3", "hpc_attn") == "fp8_e4m3"
    assert engine_dtype_name("bf16") == "bfloat16"


def test_a_block_that_no_policy_can_name_is_left_to_the_engine() -> None:
    model = str(Path(__file__).parent / "models" / "nemotron-h-8b.json")
    asked = report(policy("cache: {page_size: 16}"), engine="vllm==0.32.0", gpu="h200", model=model)
    assert "page size 16 becomes 1040" in found(asked, "KVP511").message
    assert "page_size: auto" in (found(asked, "KVP511").help or "")
    left = report(policy("cache: {page_size: auto}"), engine="vllm==0.32.0", gpu="h200", model=model)
    assert "KVP511" not in codes(left)


def test_silent_dtypes_are_far_from_rounding_and_refused() -> None:
    where = {"version": (0, 32, 0), "gpu": GPUS["cpu"], "model": MODEL_FACTS["smollm2-135m"]}
    for row in SILENT:
        assert row.total_variation > 5 * row.rounding
        outcome = resolve_vllm(Settings(kv_dtype=row.kv_dtype), compute="fp32", **where)  # type: ignore[arg-type]
        assert [refusal.rule.name for refusal in outcome.refusals] == ["cpu-silent-dtype"]
        assert "without a word" in outcome.refusals[0].rule.reason


def test_a_cpu_stores_the_models_own_sixteen_bits() -> None:
    outcome = resolve("0.32.0", "cpu", "smollm2-135m", kv_dtype="fp16")
    assert (outcome.kv_dtype, outcome.why("kv_dtype")[0].rule.name) == ("bf16", "cpu-sixteen-bits")


@given(
    version=st.sampled_from(ENGINES["vllm"]),
    gpu=st.sampled_from(sorted(GPUS)),
    model=st.sampled_from(sorted(MODELS)),
    page=st.sampled_from([None, 1, 16, 32, 64, 128, 4096]),
    dtype=st.sampled_from(sorted(KV_DTYPES)),
    attention=st.sampled_from([None, *sorted(ATTENTION_BACKENDS), *sorted({row.name for row in BACKENDS})]),
    tp=st.sampled_from([1, 2, 8]),
    layers=st.sampled_from([(), EDGES, (("5", "fp8_e5m2"),)]),
)
def test_every_request_has_an_outcome(
    version: str,
    gpu: str,
    model: str,
    page: int | None,
    dtype: str,
    attention: str | None,
    tp: int,
    layers: tuple[tuple[str, str], ...],
) -> None:
    outcome = resolve_vllm(
        Settings(page, dtype, attention),
        version=parse_version(version),
        gpu=GPUS[gpu],
        model=MODEL_FACTS[model],
        tp=tp,
        layers=layers,
    )
    assert outcome.kv_dtype != "auto"
    if not outcome.refusals:
        assert outcome.attention
        assert outcome.page_size >= (page or 1) or outcome.attention == "cpu_mla"
        assert outcome.kernel_page is not None
        assert outcome.page_size % outcome.kernel_page == 0


@pytest.mark.parametrize("row", BACKENDS, ids=lambda row: f"{row.name}-{row.gpu[0]}")
def test_no_row_hides_behind_an_earlier_one(row: Backend) -> None:
    for other in BACKENDS[: BACKENDS.index(row)]:
        assert not (
            other.name == row.name
            and other.since <= row.since
            and other.until >= row.until
            and set(row.gpu) <= set(other.gpu)
            and not (other.only_heads or other.only_kv)
            and other.grouped_query is None
            and other.softcap is None
        )


def test_float32_checkpoints_are_served_in_the_devices_dtype() -> None:
    assert compute_dtype(MODEL_FACTS["olmo-2-7b"], GPUS["h200"]) == "bf16"
    assert compute_dtype(MODEL_FACTS["olmo-2-7b"], GPUS["t4"]) == "fp16"
