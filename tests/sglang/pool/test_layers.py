"""KV dtypes of single layers on real SGLangs: what is stored and counted, and what comes out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.programs import run_all
from tests.proofs.engines import assert_no_complaint, start, with_witness
from tests.stock import assert_outputs_of_stock
from tools.environment import CHECKOUT, EngineEnv

pytestmark = pytest.mark.engine

HERE = Path(__file__).resolve().parent
POLICY = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {{name: {name}}}
cache: {{page_size: 1, kv_dtype: {{default: {default}, layers: {layers}}}}}
backend: {{attention: torch_native}}
eviction: {{policy: lru}}
"""


@pytest.mark.parametrize("version", ["0.5.18", "0.5.20", "0.5.23"])
def test_each_layer_has_its_dtype_and_is_counted_with_it(sglang_env: Callable[..., EngineEnv], version: str) -> None:
    (told,) = run_all(start(sglang_env(version), HERE / "layers.py"))
    row = 2 * (8 + 8)  # elements a token and layer: KV heads x (K and V)
    assert told["mixed"] == {
        "layers": [f"torch.{name}" for name in ("float8_e4m3fn", *["float8_e5m2"] * 2, "bfloat16", "float32")],
        "counted_bytes": row * (1 + 1 + 1 + 2 + 4),
        "built_bytes": row * (1 + 1 + 1 + 2 + 4),
        "at_rest": "torch.float8_e4m3fn",  # not bf16: see LayeredKVPool
        "default": "torch.bfloat16",
        "copied_back": True,
    }
    stage = told["second stage"]
    assert stage["layers"] == [f"torch.{name}" for name in ("float8_e5m2", "bfloat16", "float32")]
    assert stage["counted_bytes"] == stage["built_bytes"] == row * (1 + 2 + 4)
    assert told["same"] == ["MHATokenToKVPool", row * 5 * 2]  # nothing differs: the engine's own pool
    assert told["all moved"] == {"layers": ["torch.bfloat16"] * 5, "at_rest": "torch.float8_e4m3fn"}
    assert "layers 9: the model has 5 layers, 0 to 4" in told["no such layer"]
    assert "no layer can have nvfp4 of its own in SGLang" in told["no such dtype"]
    assert "SGLang built a NoOpMHATokenToKVPool, which has one dtype" in told["another pool"]


def test_outputs(sglang_env: Callable[..., EngineEnv], tiny_model: Path, tmp_path: Path) -> None:
    """All layers moved to the model's own float32 give the outputs of a float32 pool; a coarser layer shows."""
    texts = {"exact": ("bf16", '{"0:": auto}'), "coarse": ("bf16", '{"0": auto, "1:": fp8_e5m2}')}
    paths = []
    for name, (default, layers) in texts.items():
        paths.append(tmp_path / f"{name}.yaml")
        paths[-1].write_text(POLICY.format(name=name, default=default, layers=layers))
    engine = with_witness(sglang_env("0.5.20"), tmp_path / "witness")
    program = start(engine, "outputs.py", tiny_model, CHECKOUT / "LICENSE", "512", "auto:1", *paths)
    stock, exact, coarse = run_all(program)
    assert_no_complaint(program.log)
    assert stock["kvpolicy"] is None
    for name, seen in zip(texts, (exact, coarse), strict=True):
        effective: dict[str, Any] = seen["kvpolicy"]["settings"]["cache.kv_dtype.layers"]["effective"]
        assert (name, len(effective)) == (name, {"exact": 1, "coarse": 2}[name])
        assert seen["kvpolicy"]["settings"]["cache.kv_dtype"]["effective"] == "bf16"
        assert max(seen["cached"]) > 0
    assert_outputs_of_stock("exact", exact, stock)
    assert coarse["logprobs"] != stock["logprobs"]
