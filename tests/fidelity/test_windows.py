"""What the child is given to score, and what the parent makes of its answers and of its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvpolicy.facts import load_model, model_from_config
from kvpolicy.facts.measured import differing_layers
from kvpolicy.fidelity.base import FidelityError, Job
from kvpolicy.fidelity.child import stride_of, windows_of
from kvpolicy.fidelity.policies import measured_policy, reference_policy
from kvpolicy.fidelity.run import run_child
from kvpolicy.language import load_text

MODELS = Path(__file__).parents[1] / "facts/models"
HEAD = "apiVersion: kvpolicy/v1\nkind: KVPolicy\n"


@pytest.mark.parametrize(("page_size", "stride"), [(1, 64), (16, 64), (48, 96), (64, 64), (128, 128), (544, 544)])
def test_a_step_is_whole_pages(page_size: int, stride: int) -> None:
    assert stride_of(page_size) == stride


def test_windows_each_begin_with_the_special_tokens() -> None:
    found = windows_of([1, *range(100, 500)], [1], window_tokens=201, max_tokens=10_000)
    assert [len(window) for window in found] == [201, 201]
    assert [window[0] for window in found] == [1, 1]
    assert [token for window in found for token in window[1:]] == list(range(100, 500))


def test_a_short_rest_and_what_is_above_the_limit_are_left_out() -> None:
    tokens = list(range(1000))
    assert [len(window) for window in windows_of(tokens, [], 300, 10_000)] == [300, 300, 300]  # 100 are too few
    assert [len(window) for window in windows_of(tokens, [], 300, 600)] == [300, 300]
    assert windows_of(tokens[:100], [], 300, 600) == []


def flat(text: str, engine: str = "sglang") -> dict:
    result = load_text((HEAD + text).encode(), engine=engine)
    assert result.policy is not None
    return result.flat


POLICY = """
cache: {page_size: 32, kv_dtype: fp8_e4m3, on_conflict: warn}
backend: {attention: triton}
eviction: {policy: gdsf}
"""


def test_the_reference_is_the_policy_without_its_dtype_and_neither_evicts() -> None:
    model = load_model(str(MODELS / "llama-3.1-8b.json"))
    reference = load_text(reference_policy(flat(POLICY), model).encode())
    measured = load_text(measured_policy(flat(POLICY)).encode())
    for result in (reference, measured):
        assert result.policy is not None
        assert result.policy.eviction is None
        assert result.policy.cache.page_size.prefer == 32
        assert result.policy.backend.attention.prefer == "triton"
        assert result.policy.on_conflict == "warn"
    assert reference.policy.cache.kv_dtype is None
    assert measured.policy.cache.kv_dtype.prefer == "fp8_e4m3"


def test_a_checkpoint_with_quantized_kv_is_compared_with_bf16() -> None:
    config = json.loads((MODELS / "llama-3.1-8b.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "kv_cache_quant_algo": "FP8"}
    model = model_from_config(config)
    if model.kv_quant is None and model.vllm_kv_quant is None:
        config["quantization_config"] = {"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "FP8"}}
        model = model_from_config(config)
    assert model.kv_quant or model.vllm_kv_quant
    reference = load_text(reference_policy(flat(POLICY), model).encode())
    assert reference.policy is not None
    assert reference.policy.cache.kv_dtype.prefer == "bf16"


@pytest.mark.parametrize("text", ["cache: {page_size: 16}", "cache: {kv_dtype: auto}", "eviction: {policy: lru}"])
def test_a_policy_without_a_dtype_has_nothing_to_measure(text: str) -> None:
    with pytest.raises(FidelityError, match="nothing to measure"):
        measured_policy(flat(text))


def test_single_layers_alone_are_something_to_measure() -> None:
    assert "layers" in measured_policy(flat('cache: {kv_dtype: {layers: {"0-1": fp8_e4m3}}}', "vllm"))


def test_layer_ranges_are_told_layer_by_layer() -> None:
    ranges = [("0-1", "bfloat16"), ("-2:", "auto"), ("3", "fp8_e4m3")]
    found = differing_layers(ranges, layers=6, compute="fp16", rest="fp8_e4m3")
    assert found == {"0": "bf16", "1": "bf16", "4": "fp16", "5": "fp16"}


JOB = Job("model", "policy.yaml", "text", 512, 1024, 8, {})
CHILD = """
import json, os, sys, time
job = json.load(sys.stdin)
out = os.fdopen(int(sys.argv[1]), "w")
def answer(value):
    out.write(json.dumps(value) + chr(10)); out.flush()
settings = dict(engine="x", version="1", device="cpu", model_dtype="bf16", kv_dtype="bf16", kv_layers={}, page_size=1,
                attention="a")
start = {"settings": settings, "windows": [[0, 1, 0]], "stride_tokens": 64}
rows = [[-0.1, [1, 0], [-0.1, -2.3]], [-0.1, [0, 1], [-0.1, -2.3]]]
"""


def child(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> str:
    """A program in the place of an adapter's, which no engine is needed for."""
    package = folder / "kvpolicy_pretended"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "score.py").write_text(CHILD + body)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))  # logs of failed runs stay
    return "pretended"


def test_answers_become_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
assert job["text"] == "text"
answer(start)
for kind in ("cached", "cold"):
    answer({"pass": kind, "window": 0, "start": 0, "rows": rows})
"""
    told: list[tuple[int, int]] = []
    run = run_child(child(tmp_path, monkeypatch, body), JOB, lambda done, total: told.append((done, total)))
    assert set(run.rows) == {"cached", "cold"}
    assert sorted(run.rows["cold"]) == [(0, 1), (0, 2)]
    assert run.rows["cold"][0, 1].top == {1}
    assert told == [(0, 6), (3, 6), (6, 6)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("answer({'error': 'the text is too short'})", "^the text is too short$"),
        ("raise ValueError('no such thing')", "exit code 1: ValueError: no such thing .its log: "),
        (
            "print('(pid=1) [w.py:3] NotImplementedError: no FP8 here', flush=True); raise RuntimeError('failed')",
            "exit code 1: NotImplementedError: no FP8 here .its log: ",
        ),
        ("answer(start); os._exit(3)", "exit code 3: it said nothing of an error"),
        ("answer(start); answer({'pass': 'cold', 'window': 0, 'start': 0, 'rows': rows})", "exit code 0"),
        ("os.kill(os.getpid(), 9)", "exit code -9"),
    ],
)
def test_a_child_that_fails_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, message: str
) -> None:
    with pytest.raises(FidelityError, match=message) as caught:
        run_child(child(tmp_path, monkeypatch, body), JOB, lambda done, total: None)
    logs = list(tmp_path.glob("*.log"))
    assert [str(log) in str(caught.value) for log in logs] == [True] * len(logs)  # kept only where it is named


def test_nothing_of_a_child_outlives_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"""
import subprocess
answer(start)
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(tmp_path / "pid")!r}, "w").write(str(left.pid))
out.close()
"""
    with pytest.raises(FidelityError):
        run_child(child(tmp_path, monkeypatch, body), JOB, lambda done, total: None)
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    assert not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"
