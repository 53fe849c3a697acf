"""The findings that `kvpolicy check --engine --model --gpu` prints, and the arguments it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvpolicy.cli.main import main
from kvpolicy.facts import FactsArgumentError, deployment, protected_share, report, unprotected_room
from kvpolicy.facts.engines import ENGINES
from kvpolicy.language import Diagnostic, Policy, load_text
from tests.facts.matrix import MODELS

HEADER = "apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {name: test}\n"


def policy(text: str) -> Policy:
    result = load_text((HEADER + text).encode(), "p.yaml", "sglang")
    assert result.policy is not None, result.diagnostics
    return result.policy


@pytest.fixture
def config(tmp_path: Path) -> Any:
    def write(name: str) -> str:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(MODELS[name]))
        return str(folder)

    return write


def found(items: list[Diagnostic], code: str) -> Diagnostic:
    return next(item for item in items if item.code == code)


def codes(items: list[Diagnostic]) -> set[str]:
    return {item.code for item in items}


def test_paging_on_a_cpu_needs_triton_unless_the_policy_hands_out_pages() -> None:
    for section, warned in (
        ("", True),
        ("allocator: {guard: off}\n", True),
        ("allocator: {order: runs}\n", False),
        ("allocator: {guard: sampled}\n", False),
    ):
        items = report(policy(f"cache: {{page_size: 16}}\n{section}"), engine="sglang==0.5.20", gpu="cpu")
        assert [item.severity for item in items if "TRITON_INTERPRET" in item.message] == ["warning"] * warned


def test_the_whole_block_for_a_plain_deployment(config: Any) -> None:
    items = report(
        policy("cache: {page_size: 16}"),
        engine="sglang==0.5.23",
        model=config("llama-3.1-8b"),
        gpu="h200",
        memory="60GiB",
    )
    assert [item.code for item in items] == ["KVP501", "KVP502", "KVP503", "KVP508", "KVP504", "KVP505", "KVP506"]
    assert {item.severity for item in items} == {"info"}
    assert found(items, "KVP504").data == {
        "model": "llama-3.1-8b",
        "architecture": "LlamaForCausalLM",
        "attention": "GQA",
        "kv_dtype": "bf16",
        "tp": 1,
        "bytes_per_token": 131072,
        "full_bytes": 131072,
        "sliding_bytes": 0,
        "index_bytes": 0,
    }
    pool = found(items, "KVP505").data or {}
    assert (pool["pool_tokens"], pool["estimate"]) == (60 * 2**30 // 131072, False)
    entries = found(items, "KVP506").data or {}
    assert (entries["index_entries"], entries["length_tokens"]) == (2048, 32768)


@pytest.mark.parametrize(("on_conflict", "severity"), [("error", "error"), ("warn", "warning")])
def test_an_override_outside_accept_is_a_conflict(on_conflict: str, severity: str) -> None:
    text = f"cache: {{page_size: 16, on_conflict: {on_conflict}}}\nbackend: {{attention: hpc_ops}}"
    conflict = found(report(policy(text), engine="sglang==0.5.23", gpu="h200"), "KVP511")
    assert conflict.severity == severity
    assert "page size 16 becomes 64 in SGLang 0.5.23 on NVIDIA H200: HPC-Ops supports" in conflict.message
    assert conflict.data is not None
    assert [rule["rule"] for rule in conflict.data["rules"]] == ["hpc-ops-page"]


def test_an_override_inside_accept_is_a_fact() -> None:
    text = "cache: {page_size: {prefer: 16, accept: [16, 64]}}\nbackend: {attention: hpc_ops}"
    items = report(policy(text), engine="sglang==0.5.23", gpu="h200")
    assert "KVP511" not in codes(items)
    assert found(items, "KVP501").message.startswith("page size 64 (asked 16): HPC-Ops")


def test_a_refusal_is_an_error_whatever_on_conflict_says_and_offers_a_way_out() -> None:
    text = "cache: {kv_dtype: nvfp4, on_conflict: warn}"
    items = report(policy(text), engine="sglang==0.5.23", gpu="h200")
    refusal = found(items, "KVP512")
    assert refusal.severity == "error"
    assert refusal.help == "auto would start"
    assert "KVP501" not in codes(items), "figures of a server that never starts"


def test_what_the_device_cannot_run_falls_back_inside_accept() -> None:
    text = "cache: {kv_dtype: {prefer: nvfp4, accept: [nvfp4, fp8_e4m3]}}"
    items = report(policy(text), engine="sglang==0.5.23", gpu="h200")
    assert not {item.severity for item in items} & {"error", "warning"}
    message = found(items, "KVP502").message
    assert message == "KV dtype fp8_e4m3 (asked nvfp4): nvfp4 KV needs Blackwell SM100 or SM120"
    on_cpu = "backend: {attention: {prefer: fa3, accept: [fa3, torch_native]}}"
    items = report(policy(on_cpu), engine="sglang==0.5.20", gpu="cpu")
    assert found(items, "KVP503").message.startswith(
        "attention backend torch_native (asked fa3): FlashAttention 3 runs"
    )


@pytest.mark.parametrize("asked", ["0.5.19", "0.5.21", "0.5.22"])
def test_unknown_versions_warn_and_use_the_nearest(asked: str) -> None:
    items = report(policy("eviction: {policy: lru}"), engine=f"sglang=={asked}", gpu="h200")
    warning = found(items, "KVP513")
    nearest = {"0.5.19": "0.5.18", "0.5.21": "0.5.20", "0.5.22": "0.5.23"}[asked]
    assert warning.severity == "warning"
    assert f"the facts are those of {nearest}" in warning.message


@pytest.mark.parametrize("spec", ["sglang==0.5.15", "sglang==0.5.99", "sglang==1.0", "vllm==0.25.1", "vllm==0.34"])
def test_unsupported_versions_are_errors(spec: str) -> None:
    """As an adapter refuses them at start."""
    items = report(policy("eviction: {policy: lru}"), engine=spec, gpu="h200")
    refused = found(items, "KVP514")
    assert refused.severity == "error"
    assert refused.help in ("supported: 0.5.16 to 0.5.23", "supported: 0.26 to 0.33")
    assert "KVP513" not in codes(items)


@pytest.mark.parametrize("spec", ["sglang", "sglang==0.5.23", "SGLang==0.5.23.post1", "sglang 0.5.23", "sglang=0.5.23"])
def test_known_versions_do_not_warn(spec: str) -> None:
    assert "KVP513" not in codes(report(policy("eviction: {policy: lru}"), engine=spec, gpu="h200"))
    assert deployment(engine=spec).engine_label == f"SGLang {ENGINES['sglang'][-1]}"


@pytest.mark.parametrize(
    ("arguments", "message", "help"),
    [
        ({"engine": "sglan"}, "unknown engine", "sglang"),
        ({"engine": "sglang==new"}, "cannot read", "sglang==0.5.23"),
        ({"gpu": "h201"}, "unknown GPU", "h20"),
        ({"gpu": "tpu"}, "unknown GPU", ""),
        ({"memory": "60 bananas"}, "cannot read memory", "60GiB"),
        ({"memory": "0"}, "no room", ""),
        ({"model": "/no/such/folder"}, "no such model", "config.json"),
        ({"tp": 0}, "--tp 0", ""),
    ],
)
def test_bad_arguments_are_bad_usage(arguments: dict[str, Any], message: str, help: str) -> None:
    with pytest.raises(FactsArgumentError) as error:
        deployment(**arguments)
    assert message in error.value.message
    assert help in error.value.help


@pytest.mark.parametrize(
    ("text", "size"),
    [("60GiB", 60 * 2**30), ("64GB", 64 * 10**9), ("1.5Gi", 3 * 2**29), ("512", 512), ("2 tib", 2**41)],
)
def test_memory_units(text: str, size: int) -> None:
    assert deployment(memory=text).pool_bytes == size


@pytest.mark.parametrize(
    ("model", "gpu", "dtype", "thread"),
    [
        ("glm-5.1", "b300", "auto", "sglang/issues/22671"),
        ("qwen2.5-vl-7b", "h200", "fp8_e5m2", "vllm/issues/41343"),
        ("qwen2.5-math-7b", "h200", "fp8_e4m3", "verl/pull/4435"),
    ],
)
def test_known_bad_dtypes_name_the_thread(config: Any, model: str, gpu: str, dtype: str, thread: str) -> None:
    items = report(policy(f"cache: {{kv_dtype: {dtype}}}"), engine="sglang==0.5.23", model=config(model), gpu=gpu)
    warning = found(items, "KVP521")
    assert warning.severity == "warning"
    assert thread in warning.message
    assert "was reported bad" in warning.message


@pytest.mark.parametrize(
    ("model", "gpu", "dtype", "level"),
    [
        ("llama-3.1-8b", "h200", "fp8_e4m3", "experimental"),
        ("llama-3.1-8b", "b200", "nvfp4", "experimental"),
        ("deepseek-v3.2", "b200", "auto", "validated"),
        ("qwen3-8b", "h200", "fp8_e5m2", "experimental"),
    ],
)
def test_evidence_levels(config: Any, model: str, gpu: str, dtype: str, level: str) -> None:
    items = report(policy(f"cache: {{kv_dtype: {dtype}}}"), engine="sglang==0.5.23", model=config(model), gpu=gpu)
    assert (found(items, "KVP522").data or {})["level"] == level
    assert "KVP521" not in codes(items)


def test_sixteen_bits_need_no_evidence(config: Any) -> None:
    items = report(policy("cache: {kv_dtype: bf16}"), engine="sglang==0.5.23", model=config("glm-5.1"), gpu="b300")
    assert not codes(items) & {"KVP521", "KVP522"}


def test_without_an_engine_the_models_figures_follow_the_policy(config: Any) -> None:
    items = report(policy("cache: {kv_dtype: fp8_e4m3, page_size: 64}"), model=config("llama-3.1-8b"), memory="1GiB")
    assert codes(items) == {"KVP504", "KVP505", "KVP506"}
    assert (found(items, "KVP505").data or {})["pool_tokens"] == 2**30 // 65536 // 64 * 64


def test_a_pool_too_small_for_a_page(config: Any) -> None:
    for memory, severity in (("1MiB", "error"), (None, "warning")):
        model = config("deepseek-v3") if memory is None else config("llama-3.1-8b")
        items = report(policy("cache: {page_size: 64}"), engine="sglang", model=model, gpu="h200", memory=memory)
        assert found(items, "KVP524").severity == severity


def test_ranks_share_weights_and_heads(config: Any) -> None:
    def pool(tp: int) -> int:
        items = report(
            policy("cache: {page_size: 1}"), engine="sglang", model=config("llama-3.1-8b"), gpu="h200", tp=tp
        )
        return int((found(items, "KVP505").data or {})["pool_tokens"])

    assert pool(2) > 2 * pool(1)


RULES = "eviction: {rules: [{name: keep, retain: {weight: 1, budget: %s}}]}"


@pytest.mark.parametrize(
    ("budget", "pool", "request_tokens", "warns"),
    [
        ("50%", 10_000, 5_000, False),
        ("50%", 10_000, 5_001, True),
        ("90%", 1_000_000, 131_072, True),
        ("10%", 4_096, 8_192, True),  # a request of the pool's own size
        ("0%", 4_096, 8_192, False),
    ],
)
def test_unprotected_room(budget: str, pool: int, request_tokens: int, warns: bool) -> None:
    finding = unprotected_room(policy(RULES % budget), pool, request_tokens)
    assert (finding is not None) == warns
    if finding is not None:
        assert (finding.code, finding.severity) == ("KVP523", "warning")
        assert finding.data is not None
        assert finding.data["unprotected_tokens"] < finding.data["max_request_tokens"]


def test_floors_and_boundless_rules_count() -> None:
    tenants = "eviction: {tenants: {floor: 5%, max_floors: 8, named: {gold: {floor: 20%}}}}"
    assert protected_share(policy(tenants)) == pytest.approx(0.6)
    boundless = policy("eviction: {rules: [{name: all, retain: {weight: 1}}]}")
    assert protected_share(boundless) == 1
    finding = unprotected_room(boundless, 10_000, 10)
    assert finding is not None
    assert "rule 'all' has no budget" in finding.message
    assert protected_share(policy("eviction: {policy: lru}")) == 0


def test_check_prints_facts_at_their_fields(config: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(HEADER + "cache: {page_size: 16}\nbackend: {attention: hpc_ops}\n")
    model = config("llama-3.1-8b")
    arguments = [str(file), "--engine", "sglang==0.5.23", "--gpu", "h200", "--model", model, "--format", "json"]
    assert main(["check", *arguments]) == 1
    items = json.loads(capsys.readouterr().out)
    conflict = next(item for item in items if item["code"] == "KVP511")
    assert (conflict["line"], conflict["col"]) == (4, 20)
    assert conflict["data"]["effective"] == 64


def test_check_refuses_bad_arguments_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(HEADER)
    assert main(["check", str(file), "--engine", "sglang", "--gpu", "h2oo"]) == 2
    error = capsys.readouterr().err
    assert "unknown GPU 'h2oo'" in error
    assert "did you mean" in error
