"""vLLM in a program and in a benchmark: with a policy, with one that is switched off, and without any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kvpolicy.language import load_policy
from tests.launching import run_program
from tests.programs import told_by
from tests.vllm.launch.processes import write_policy
from tests.vllm.launch.test_idle import IDLE_MODULES
from tools.environment import EngineEnv

pytestmark = pytest.mark.engine

VllmEnv = Callable[..., EngineEnv]
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}

PROGRAM = """\
import json, os, sys
import kvpolicy_vllm, vllm

if __name__ == "__main__":
    model, policy = sys.argv[1:]
    common = dict(model=model, enforce_eager=True, max_model_len=512, num_gpu_blocks_override=33)
    told = {}
    try:
        kvpolicy_vllm.LLM(policy=policy, block_size=64, **common)
    except kvpolicy_vllm.StartError as error:
        told["refused"] = str(error)
    llm = kvpolicy_vllm.LLM(policy=policy, **common)
    told["class"] = f"{type(llm).__module__}.{type(llm).__name__}"
    told["environment"] = [name for name in os.environ if name.startswith("KVPOLICY_")]
    told["status"] = kvpolicy_vllm.status(llm)
    if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0":
        stock = vllm.LLM(**common)
        core = stock.llm_engine.engine_core.engine_core
        told["stock status"] = kvpolicy_vllm.status(stock)
        told["stock queue"] = type(core.scheduler.kv_cache_manager.block_pool.free_block_queue).__name__
        told["stock block"] = core.vllm_config.cache_config.block_size
        told["still"] = kvpolicy_vllm.status(llm)
    print("TOLD " + json.dumps(told))
"""


@pytest.mark.parametrize("processes", ["in process", "engine processes"])
def test_a_program(vllm_env: VllmEnv, tiny_model: Path, tmp_path: Path, processes: str) -> None:
    policy = write_policy(tmp_path)
    engine = vllm_env("0.32.0", IN_PROCESS if processes == "in process" else {})
    (found,) = told_by(run_program(engine, tmp_path, PROGRAM, str(tiny_model), str(policy)))
    assert "but block_size=64 was given explicitly" in found["refused"]
    assert found["class"] == "vllm.entrypoints.llm.LLM"
    assert found["environment"] == []
    (block,) = found["status"]
    assert block["digest"] == load_policy(policy, engine="vllm").digest
    assert block["settings"]["cache.page_size"]["effective"] == 32
    assert block["core"] == "kvpolicy"
    if processes == "in process":  # an engine without a policy beside it is vLLM's own
        assert found["stock status"] == []
        assert found["stock queue"] == "FreeKVCacheBlockQueue"
        assert found["stock block"] == 128
        assert found["still"] == found["status"]


WITNESS = """\
import json, sys
import vllm

if __name__ == "__main__":
    llm = vllm.LLM(model=sys.argv[1], enforce_eager=True, max_model_len=512, num_gpu_blocks_override=33)
    ours = sorted(name for name in sys.modules if name.startswith("kvpolicy"))
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core import kv_cache_coordinator
    from vllm.v1.core.block_pool import BlockPool
    told = {"modules": ours, "pool": kv_cache_coordinator.BlockPool is BlockPool}
    told["config"] = EngineArgs.create_engine_config.__module__
    print("TOLD " + json.dumps(told))
"""


def test_installed_without_a_policy_nothing_is_patched(vllm_env: VllmEnv, tiny_model: Path, tmp_path: Path) -> None:
    (found,) = told_by(run_program(vllm_env("0.32.0", IN_PROCESS), tmp_path, WITNESS, str(tiny_model)))
    assert found == {"modules": IDLE_MODULES, "pool": True, "config": "vllm.engine.arg_utils"}


BENCH = """\
import sys
from vllm.entrypoints.cli.main import main
sys.argv = ["vllm", "bench", "latency", "--model", sys.argv[1], "--kv-policy", sys.argv[2], "--enforce-eager",
            "--enable-prefix-caching",
            "--max-model-len", "256", "--num-gpu-blocks-override", "33", "--input-len", "32", "--output-len", "2",
            "--batch-size", "1", "--num-iters", "1", "--num-iters-warmup", "1"]
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("disabled", [False, True])
def test_bench_latency(vllm_env: VllmEnv, real_model: Path, tmp_path: Path, disabled: bool) -> None:
    """The real model: vLLM draws its prompts from the first 10,000 tokens of a vocabulary.

    This benchmark turns prefix caching off unless told otherwise, which a policy's eviction would be in conflict with.
    """
    policy = write_policy(tmp_path)
    engine = vllm_env("0.32.0", {**IN_PROCESS, **({"KVPOLICY_DISABLE": "1"} if disabled else {})})
    output = run_program(engine, tmp_path, BENCH, str(real_model), str(policy))
    assert "Avg latency" in output
    ignored = f"KVPOLICY_DISABLE is set: --kv-policy {policy} is ignored, the engine runs stock"
    assert (ignored in output) == disabled
    assert ("kvpolicy: policy launch-test, digest" in output) != disabled
