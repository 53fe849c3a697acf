"""int8 and int4 KV on real SGLangs: what is stored and counted, how backends read it, and what comes out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import run_all
from tests.proofs.engines import assert_no_complaint, start, with_witness
from tools.environment import CHECKOUT, EngineEnv

pytestmark = pytest.mark.engine

HERE = Path(__file__).resolve().parent
POLICY = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {{name: {name}}}
cache: {{page_size: 1, kv_dtype: {name}_per_token_head}}
backend: {{attention: torch_native}}
eviction: {{policy: lru}}
"""


@pytest.mark.parametrize("version", ["0.5.18", "0.5.20", "0.5.23"])
def test_the_pool(sglang_env: Callable[..., EngineEnv], version: str) -> None:
    (told,) = run_all(start(sglang_env(version), HERE / "encoded.py"))
    for name, head_bytes, at_rest, largest in (("int8", 64 + 2, "int8", 0.01), ("int4", 32 + 4, "uint8", 0.15)):
        seen = told[name]
        assert seen["counted_bytes"] == seen["built_bytes"] == 3 * 2 * 2 * head_bytes, (version, seen)
        assert (seen["default"], seen["at_rest"]) == (f"{name}_per_token_head", f"torch.{at_rest}")
        assert seen["shape"] == [96, 2, 64]
        assert 0 < seen["error"] < largest
        assert seen["copied_back"]
        assert seen["triton"]["decode"] == 0.0  # on a CPU the wrapper's kernel is the PyTorch one
        assert seen["triton"]["extend"] < 1e-6  # the same kernel, given the same numbers
    assert "heads of one width, one of 32, 64, 128, 256" in told["head size"]
    assert "heads of one width" in told["two widths"]
    assert "attention sinks" in told["sinks"]
    assert "attention sinks and temperature" in told["temperature"]
    assert "int8 and int4 are of all layers" in told["layers"]
    assert "SGLang built a NoOpMHATokenToKVPool, which has one dtype" in told["another pool"]


def test_outputs(sglang_env: Callable[..., EngineEnv], tiny_model: Path, tmp_path: Path) -> None:
    """A server serves, finds prefixes in the cache, and stays near stock; int4 is further from it than int8."""
    paths = [tmp_path / f"{name}.yaml" for name in ("int8", "int4")]
    for path in paths:
        path.write_text(POLICY.format(name=path.stem))
    engine = with_witness(sglang_env("0.5.20"), tmp_path / "witness")
    program = start(engine, "outputs.py", tiny_model, CHECKOUT / "LICENSE", "512", "auto:1", *paths)
    stock, *ours = run_all(program)
    assert_no_complaint(program.log)
    far = []
    for path, seen in zip(paths, ours, strict=True):
        block = seen["kvpolicy"]
        assert block["settings"]["cache.kv_dtype"]["effective"] == f"{path.stem}_per_token_head"
        assert block["fallbacks"] == {}
        assert seen["cached"] == stock["cached"]
        assert max(seen["cached"]) > 0
        pairs = [
            (one, other)
            for mine, theirs in zip(seen["logprobs"], stock["logprobs"], strict=True)
            for one, other in zip(mine[:1], theirs[:1], strict=True)  # later ones may follow another token
        ]
        far.append(sum(abs(one - other) for one, other in pairs) / len(pairs))
    assert 0 < far[0] < far[1] < 0.5, far
