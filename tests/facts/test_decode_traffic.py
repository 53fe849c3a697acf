"""`check --traffic`: whether a cascade or a larger page would pay, what is not known, and what an engine allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvpolicy.attention.cost import Load
from kvpolicy.cli.main import main
from kvpolicy.facts import FactsArgumentError, deployment, report_on
from kvpolicy.facts.decode_traffic import parse_traffic
from kvpolicy.language import Diagnostic, load_text

MODELS = Path(__file__).parent / "models"
HEAD = "apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {name: p}\n"
MANY = "batch=128,shared=8192,unique=256"


def found(
    traffic: str = MANY,
    engine: str = "sglang==0.5.23",
    model: str = "llama-3.1-8b.json",
    gpu: str = "h200",
    policy: str = "backend: {attention: flashinfer}\n",
    **more: int,
) -> dict[str, Diagnostic]:
    where = deployment(engine=engine, model=str(MODELS / model), gpu=gpu, traffic=traffic, **more)  # type: ignore[arg-type]
    loaded = load_text((HEAD + policy).encode(), "p.yaml", where.target.name if where.target else None)
    assert loaded.policy is not None
    return {d.code: d for d in report_on(loaded.policy, where) if d.code in ("KVP541", "KVP542")}


def test_traffic_is_read() -> None:
    assert parse_traffic("batch=128, shared=8Ki,unique=1k") == Load(128, 8192, 1000)
    assert parse_traffic("unique=1,batch=1,shared=0") == Load(1, 0, 1)


@pytest.mark.parametrize(
    "text",
    ["", "batch=1", "batch=0,shared=1,unique=1", "batch=1,shared=1,unique=0", "batch=1,shared=8KB,unique=1",
     "batch=1,shared=1,unique=1,page=1", "batch=1,batch=2,shared=1,unique=1", "batch=-1,shared=1,unique=1", "a,b,c"],
)  # fmt: skip
def test_traffic_that_cannot_be_read(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FactsArgumentError, match="traffic"):
        parse_traffic(text)
    arguments = ["--engine", "sglang", "--gpu", "h200", "--model", str(MODELS / "llama-3.1-8b.json")]
    assert main(["check", "stock_lru", *arguments, "--traffic", text]) == 2
    assert "write it as batch=128,shared=8Ki,unique=256" in capsys.readouterr().err


def test_it_needs_to_know_where(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "stock_lru", "--engine", "sglang", "--traffic", MANY]) == 2
    assert "add --engine, --model and --gpu" in capsys.readouterr().err


def test_many_requests_over_a_long_prefix_pay() -> None:
    told = found()["KVP541"]
    assert told.severity == "info"
    assert told.data is not None
    assert told.data["pays"]
    assert told.data["measured"]
    # The measured row: 0.525 flat, 0.135 as a cascade, page 1, plans 0.47 and 0.33.
    assert told.data["gain_ms_per_step"] == pytest.approx(32 * (0.525 - 0.135) - (0.33 - 0.47), rel=0.05)
    assert "On SGLang with FlashInfer kvpolicy decides it step by step" in told.message
    assert "not measured" not in told.message


def test_few_requests_or_a_short_prefix_do_not_pay() -> None:
    few = found("batch=4,shared=8192,unique=256")["KVP541"]
    assert few.data is not None
    assert not few.data["pays"]
    assert few.data["least_shared_tokens"] is None
    assert "it pays never with so few requests" in few.message
    short = found("batch=64,shared=512,unique=2048")["KVP541"]
    assert short.data is not None
    assert not short.data["pays"]
    assert short.data["least_shared_tokens"] > 512


def test_what_was_not_measured_is_said() -> None:
    assert "beyond what was measured" in found("batch=1024,shared=8192,unique=256")["KVP541"].message
    assert "scaled from 32 query and 8 KV heads of 128 with 16 bits to 16 query and 4 KV heads of 128 with 16 bits" in (
        found(tp=2)["KVP541"].message
    )
    fp8 = found(policy="backend: {attention: flashinfer}\ncache: {kv_dtype: fp8_e4m3}\n")["KVP541"].message
    assert "to 32 query and 8 KV heads of 128 with 8 bits, which was not measured" in fp8
    assert "this deployment runs fa3, which was not measured" in found(policy="")["KVP541"].message


@pytest.mark.parametrize(
    ("gpu", "model", "why"),
    [
        ("h100", "llama-3.1-8b.json", "decode attention was not measured on NVIDIA H100"),
        ("h200", "deepseek-v3.json", "latent attention (MLA) was not measured"),
    ],
)
def test_nothing_is_made_up(gpu: str, model: str, why: str) -> None:
    told = found(gpu=gpu, model=model, policy="")
    assert set(told) == {"KVP541"}
    assert why in told["KVP541"].message
    assert told["KVP541"].data == {"known": False}


def test_pages() -> None:
    told = found(policy="backend: {attention: flashinfer}\ncache: {page_size: 32}\n")["KVP542"]
    assert told.data is not None
    rows = {row["page_size"]: row for row in told.data["rows"]}
    assert set(rows) == {1, 16, 32, 64}
    assert rows[1]["index_bytes"] == 4 * 128 * (8192 + 256)
    assert rows[1]["index_bytes"] == 16 * rows[16]["index_bytes"] == 64 * rows[64]["index_bytes"]
    assert rows[1]["flat_ms"] > rows[16]["flat_ms"] > rows[64]["flat_ms"]
    assert "SGLang plans flashinfer with single tokens whatever the page size" in told.message
    assert not found(policy="")["KVP542"].data["reads_tokens"]  # type: ignore[index]  # fa3


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm==0.30.0", "vLLM has one, behind `cascade: auto`"),
        ("vllm==0.32.0", "vLLM 0.32.0 has none: it was removed"),
    ],
)
def test_vllm(engine: str, words: str) -> None:
    told = found(engine=engine, policy="")["KVP541"]
    assert words in told.message
    # FlashInfer's own cascade, not ours: 0.525 flat, 0.329.
    assert told.data is not None
    assert told.data["gain_ms_per_step"] < 32 * (0.525 - 0.3)
