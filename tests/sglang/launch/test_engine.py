"""`kvpolicy_sglang.Engine(policy=...)` in a program, on each version."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvpolicy.language import load_policy
from tests.conftest import SGLANG_VERSIONS
from tests.launching import run_program
from tests.programs import told_by
from tests.sglang.launch.processes import SglangEnv, write_policy

pytestmark = pytest.mark.engine

PROGRAM = """\
import json, os, sys
import kvpolicy_sglang

if __name__ == "__main__":
    model, policy = sys.argv[1:]
    common = dict(
        model_path=model, device="cpu", dtype="bfloat16", sampling_backend="pytorch",
        disable_cuda_graph=True, max_total_tokens=2048,
    )
    told = {}
    try:
        kvpolicy_sglang.Engine(policy=policy, page_size=64, **common)
    except kvpolicy_sglang.StartError as error:
        told["refused"] = str(error)

    engine = kvpolicy_sglang.Engine(policy=policy, **common)
    told["class"] = f"{type(engine).__module__}.{type(engine).__name__}"
    told["environment"] = [name for name in os.environ if name.startswith("KVPOLICY_")]
    told["output"] = engine.generate(
        input_ids=[5] * 100, sampling_params={"temperature": 0, "max_new_tokens": 2}
    )["meta_info"]["prompt_tokens"]
    info = engine.get_server_info()
    told["static"], told["live"] = info["kvpolicy"], info["internal_states"][0]["kvpolicy"]
    engine.shutdown()
    print("TOLD " + json.dumps(told))
"""


@pytest.mark.parametrize("version", SGLANG_VERSIONS)
def test_engine(sglang_env: SglangEnv, tiny_model: Path, tmp_path: Path, version: str) -> None:
    policy = write_policy(tmp_path)
    (told,) = told_by(run_program(sglang_env(version), tmp_path, PROGRAM, str(tiny_model), str(policy)))
    assert "but page_size=64 was given explicitly" in told["refused"]
    assert told["class"] == "sglang.srt.entrypoints.engine.Engine"
    assert told["environment"] == []
    assert told["output"] == 100
    digest = load_policy(policy, engine="sglang").digest
    for block in (told["static"], told["live"]):
        assert block["digest"] == digest
        assert block["settings"]["cache.page_size"]["effective"] == 16
    assert told["live"]["core"] == "kvpolicy"
