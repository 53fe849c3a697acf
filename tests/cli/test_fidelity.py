"""kvpolicy fidelity without an engine: bad input, what it prints and writes, and what check makes of that."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvpolicy.cli import fidelity
from kvpolicy.cli.main import main
from kvpolicy.facts import load_model
from kvpolicy.facts.measured import load_measured, shape_of
from kvpolicy.fidelity.base import FidelityError, Job, Settings
from kvpolicy.fidelity.comparison import Run
from kvpolicy.fidelity.result import result_of, to_json

LLAMA = Path(__file__).parents[1] / "facts/models/llama-3.1-8b.json"
HEAD = "apiVersion: kvpolicy/v1\nkind: KVPolicy\n"
FP8 = "cache: {kv_dtype: fp8_e4m3}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(LLAMA.read_text())
    (tmp_path / "fp8.yaml").write_text(HEAD + FP8)
    (tmp_path / "lru.yaml").write_text(HEAD + "eviction: {policy: lru}\n")
    (tmp_path / "wrong.yaml").write_text(HEAD + "cache: {kv_dtyp: bf16}\n")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    return tmp_path


def installed(monkeypatch: pytest.MonkeyPatch, *engines: str) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: object() if name in engines else None)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["absent", "--policy", "fp8.yaml"], 2, "no such model directory or config.json: 'absent'"),
        ([str(LLAMA), "--policy", "fp8.yaml"], 2, "is not a folder: the engine loads the model from it"),
        (["model", "--policy", "absent.yaml"], 2, "KVP101"),
        (["model", "--policy", "wrong.yaml"], 1, "did you mean 'kv_dtype'?"),
        (["model", "--policy", "lru.yaml"], 2, "lru.yaml: the policy names no KV dtype (cache.kv_dtype)"),
        (["model", "--policy", "fp8.yaml", "--text", "absent.txt"], 2, "cannot read 'absent.txt': No such file"),
        (["model", "--policy", "fp8.yaml", "--text", "empty.txt"], 2, "'empty.txt' is empty"),
        (["model", "--policy", "fp8.yaml", "--text", "binary.txt"], 2, "'binary.txt' is not UTF-8 text"),
        (["model", "--policy", "fp8.yaml", "-o", "no/such/folder"], 2, "there is no folder 'no/such'"),
        (["model", "--policy", "fp8.yaml", "--engine", "vllm"], 2, "vllm is not installed beside"),
        (["model", "--policy", "fp8.yaml", "--window", "1M"], 2, "longer than the model's 131072 tokens"),
    ],
)
def test_bad_input_is_one_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    installed(monkeypatch, "sglang")
    assert main(["fidelity", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments", [["--engine-arg", "tp"], ["--engine-arg", "a b=1"], ["--tokens", "0"], ["--engine", "x"]]
)
def test_bad_options_are_usage(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["fidelity", "model", "--policy", "fp8.yaml", *arguments])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("usage:")


@pytest.mark.parametrize(
    ("engines", "message"),
    [((), "neither sglang nor vllm is installed here"), (("sglang", "vllm"), "both sglang and vllm are installed")],
)
def test_which_engine_must_be_clear(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], engines: tuple[str, ...], message: str
) -> None:
    installed(monkeypatch, *engines)
    assert main(["fidelity", "model", "--policy", "fp8.yaml"]) == 2
    assert message in capsys.readouterr().err


def told_of() -> dict[str, Any]:
    """What a result says besides the runs."""
    texts = {"policy": "p", "digest": "d", "text_name": "t", "text": "t"}
    return {"model": shape_of(load_model(str(LLAMA))), "top_k": 2, **texts}


def run_of(kv_dtype: str, loss: float) -> Run:
    """Two passes over one window of 200 tokens, whose token 0 has lost a share of its probability."""
    settings = Settings("sglang", "0.5.23", "NVIDIA H200", "bf16", kv_dtype, {}, 16, "fa3")
    run = Run(settings, [[0] * 200], 64)
    p = 0.8 * (1 - loss)
    row = (math.log(p), [0, 1], [math.log(p), math.log(1 - p)])
    for kind in ("cached", "cold"):
        run.add(kind, 0, 0, [row] * 199)
    return run


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Instead of engines: what they would have answered; `loss` is read from the policy's page size. The jobs."""
    installed(monkeypatch, "sglang")
    jobs: list[Job] = []

    def run_child(engine: str, job: Job, tell: Any) -> Run:
        jobs.append(job)
        policy = Path(job.policy).read_text()
        return run_of("fp8_e4m3", 0.5 if "page_size" in policy else 0.001) if "fp8" in policy else run_of("bf16", 0.0)

    monkeypatch.setattr(fidelity, "run_child", run_child)
    return jobs


def test_a_measurement_is_printed_and_written_and_check_cites_it(
    measuring: list[Job], capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    arguments = ["model", "--policy", "fp8.yaml", "-o", "fp8.json", "--engine-arg", "tp_size=2", "--tokens", "2k"]
    assert main(["fidelity", *arguments]) == 0
    out, err = capsys.readouterr()
    assert out.endswith("verdict: ok\n")
    assert err.splitlines() == ["starting the policy on sglang ...", "starting the reference on sglang ..."]
    assert [(job.max_tokens, job.window_tokens, job.engine_args) for job in measuring] == [
        (2000, 1024, {"tp_size": 2})
    ] * 2
    assert not Path(measuring[0].policy).exists()

    check = ["check", "fp8.yaml", "--engine", "sglang==0.5.23", "--gpu", "h200", "--model", "model", "--format", "json"]
    assert main([*check, "--evidence", "fp8.json"]) == 0
    (cited,) = [item for item in json.loads(capsys.readouterr().out) if item["code"] == "KVP532"]
    assert cited["message"].startswith("fp8_e4m3 KV measured ok on this model, against bf16: mean KL 0.0000 nats")
    assert "(fp8.json: 199 tokens, model, SGLang 0.5.23, NVIDIA H200)" in cited["message"]
    assert (cited["line"], cited["severity"]) == (3, "info")


def test_a_bad_verdict_fails_and_check_warns(
    measuring: list[Job], capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "bad.yaml").write_text(HEAD + "cache: {kv_dtype: fp8_e4m3, page_size: 16}\n")
    assert main(["fidelity", "model", "--policy", "bad.yaml", "-o", "bad.json"]) == 1
    out = capsys.readouterr().out
    assert "verdict: bad\n  cached: mean KL 0." in out
    check = ["check", "bad.yaml", "--engine", "sglang", "--model", "model", "--evidence", "bad.json"]
    assert main(check) == 0
    assert "KVP531 warning: fp8_e4m3 KV measured bad on this model" in capsys.readouterr().out
    assert main([*check, "--strict"]) == 1


def test_json_is_the_evidence_and_the_same_every_time(
    measuring: list[Job], capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert main(["fidelity", "model", "--policy", "fp8.yaml", "--format", "json", "-o", "fp8.json"]) == 0
    printed = capsys.readouterr().out
    assert printed == (folder / "fp8.json").read_text()
    assert main(["fidelity", "model", "--policy", "fp8.yaml", "-o", "-"]) == 0
    assert capsys.readouterr().out == printed
    assert [bucket["first"] for bucket in json.loads(printed)["passes"]["cold"]["by_position"]] == [0, 64, 128]
    assert load_measured("fp8.json").tokens == 199


def test_an_engine_that_fails_is_one_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    installed(monkeypatch, "sglang")

    def run_child(engine: str, job: Job, tell: Any) -> Run:
        raise FidelityError("sglang ended with exit code 1: ValueError: no such model")

    monkeypatch.setattr(fidelity, "run_child", run_child)
    assert main(["fidelity", "model", "--policy", "fp8.yaml"]) == 1
    assert capsys.readouterr().err.endswith(
        "kvpolicy fidelity: sglang ended with exit code 1: ValueError: no such model\n"
    )


def test_a_conflict_names_the_users_policy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    installed(monkeypatch, "vllm")

    def run_child(engine: str, job: Job, tell: Any) -> Run:
        raise FidelityError(f"kvpolicy: {job.policy}: the policy asks for bf16 at {job.policy}:6:13, but vLLM has fp32")

    monkeypatch.setattr(fidelity, "run_child", run_child)
    assert main(["fidelity", "model", "--policy", "fp8.yaml"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "kvpolicy fidelity: kvpolicy: fp8.yaml: the policy asks for bf16, but vLLM has fp32"


def test_runs_that_cannot_be_compared() -> None:
    reference, other = run_of("bf16", 0.0), run_of("fp8_e4m3", 0.0)
    assert not result_of(reference, other, **told_of()).is_control
    assert result_of(reference, reference, **told_of()).is_control
    other.stride_tokens = 128
    with pytest.raises(FidelityError, match=r"page size depends on the KV dtype .*set cache.page_size"):
        result_of(reference, other, **told_of())
    other.windows = [[1] * 200]
    with pytest.raises(FidelityError, match="different tokens"):
        result_of(reference, other, **told_of())


def evidence(**changes: Any) -> dict[str, Any]:
    measured = run_of("fp8_e4m3", 0.0)
    measured.settings = replace(measured.settings, **changes)
    return to_json(result_of(run_of("bf16", 0.0), measured, **told_of()))


@pytest.mark.parametrize(
    ("policy", "made", "says"),
    [
        (FP8, {"engine": "vllm"}, "it was measured on vllm"),
        (FP8, {"kv_dtype": "fp8_e5m2"}, "it measured fp8_e5m2 KV, and this stores fp8_e4m3"),
        (FP8, {"kv_layers": {"0": "bf16"}}, "it measured other layers in another dtype (0: bf16)"),
        ("cache: {page_size: 16}\n", {}, "it measured fp8_e4m3 KV, and this stores bf16"),
    ],
)
def test_evidence_of_something_else_is_said(
    capsys: pytest.CaptureFixture[str], folder: Path, policy: str, made: dict[str, Any], says: str
) -> None:
    (folder / "p.yaml").write_text(HEAD + policy)
    (folder / "e.json").write_text(json.dumps(evidence(**made)))
    check = [
        "check",
        "p.yaml",
        "--engine",
        "sglang==0.5.23",
        "--gpu",
        "h200",
        "--model",
        "model",
        "--evidence",
        "e.json",
    ]
    assert main(check) == 0
    out = capsys.readouterr().out
    assert "KVP533 warning: e.json says nothing about this: " + says in out
    assert "KVP532" not in out


def test_single_layers_are_matched_one_by_one(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "p.yaml").write_text(
        HEAD + 'cache: {kv_dtype: {default: fp8_e4m3, layers: {"0-1": bf16, "-1:": bf16}}}\n'
    )
    layers = dict.fromkeys(("0", "1", "31"), "bf16")
    (folder / "e.json").write_text(json.dumps(evidence(engine="vllm", kv_layers=layers)))
    assert main(["check", "p.yaml", "--engine", "vllm", "--model", "model", "--evidence", "e.json"]) == 0
    assert "KVP532" in capsys.readouterr().out


def test_layers_that_the_model_has_not_match_nothing(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "p.yaml").write_text(HEAD + 'cache: {kv_dtype: {default: fp8_e4m3, layers: {"90": bf16}}}\n')
    (folder / "e.json").write_text(json.dumps(evidence(engine="vllm")))
    main(["check", "p.yaml", "--engine", "vllm", "--model", "model", "--evidence", "e.json"])
    assert "KVP533" in capsys.readouterr().out


def test_evidence_of_another_model(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "e.json").write_text(json.dumps(evidence()))
    other = LLAMA.with_name("qwen3-8b.json")
    assert main(["check", "fp8.yaml", "--engine", "sglang", "--model", str(other), "--evidence", "e.json"]) == 0
    assert "it was measured on models (LlamaForCausalLM)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is no evidence of kvpolicy fidelity: not JSON"),
        ("[]", "is no evidence of kvpolicy fidelity"),
        ("{}", "no 'kind'"),
        ('{"kind": "other"}', "its kind is 'other'"),
        ('{"kind": "kvpolicy/fidelity", "version": 99}', "version 99 is not known here"),
        ('{"kind": "kvpolicy/fidelity", "version": 1}', "no 'verdict'"),
    ],
)
def test_what_is_no_evidence(capsys: pytest.CaptureFixture[str], folder: Path, content: str, says: str) -> None:
    (folder / "e.json").write_text(content)
    assert main(["check", "fp8.yaml", "--engine", "sglang", "--model", "model", "--evidence", "e.json"]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--evidence", "absent.json", "--engine", "sglang", "--model", "model"], "cannot read evidence 'absent.json'"),
        (["--evidence", "fp8.yaml"], "--evidence says nothing by itself (add --engine and --model)"),
    ],
)
def test_evidence_that_cannot_be_used(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    assert main(["check", "fp8.yaml", *arguments]) == 2
    assert says in capsys.readouterr().err
