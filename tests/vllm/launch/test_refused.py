"""Starts that must not happen: the launcher ends non-zero, with the reason, before any port answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launching import assert_said, child_faults, in_children, injecting
from tests.vllm.launch.processes import launch, write_policy
from tools.environment import EngineEnv

pytestmark = pytest.mark.engine

VllmEnv = Callable[..., EngineEnv]


def test_explicit_flags_against_the_policy(vllm_env: VllmEnv, tiny_model: Path, tmp_path: Path) -> None:
    """`auto` equals the default: it counts, since it was given. The second flag stands in the engine's own file."""
    policy = write_policy(tmp_path)
    config = tmp_path / "server.yaml"
    config.write_text(f"kv-policy: {policy}\nkv-cache-dtype: auto\n")
    done = launch(vllm_env(), tiny_model, "--block-size=128", "--config", str(config))
    assert done.returncode == 1
    assert_said(done, f"the policy asks for 16 (also accepted: 32) at {policy}:5:14, but --block-size 128 was given")
    assert_said(done, f"the policy asks for bf16 at {policy}:6:13, but --kv-cache-dtype auto was given")
    assert "Traceback" not in done.stdout


def test_a_cascade_where_vllm_has_none(vllm_env: VllmEnv, tiny_model: Path, tmp_path: Path) -> None:
    policy = write_policy(tmp_path, ("  attention: cpu_attn", "  attention: cpu_attn\n  cascade: auto"))
    done = launch(vllm_env(), tiny_model, "--kv-policy", str(policy))
    assert done.returncode == 1
    assert_said(done, f"backend.cascade: the policy asks for auto at {policy}:")
    assert_said(done, "but it has no cascade attention any more")


def test_a_cache_that_the_policy_cannot_steer(vllm_env: VllmEnv, tiny_model: Path, tmp_path: Path) -> None:
    """Known from the configuration alone, so the launcher says it before a model is loaded."""
    policy = write_policy(tmp_path)
    done = launch(vllm_env(), tiny_model, "--no-enable-prefix-caching", f"--kv-policy={policy}")
    assert done.returncode == 1
    assert_said(done, "(--no-enable-prefix-caching)")
    assert_said(done, f"(policy: {policy}:11:3)")
    assert "Loading weights" not in done.stdout
    assert "Traceback" not in done.stdout


def test_what_the_model_makes_of_a_dtype(vllm_env: VllmEnv, tiny_model: Path, tmp_path: Path) -> None:
    """A CPU stores the model's dtype: under a float32 model, bf16 would be taken and computed wrongly."""
    done = launch(vllm_env(), tiny_model, "--dtype", "float32", "--kv-policy", str(write_policy(tmp_path)))
    assert done.returncode == 1
    assert_said(done, "but vLLM's argument resolution makes it fp32 (--kv-cache-dtype)")


def test_a_policy_with_errors(vllm_env: VllmEnv, tiny_model: Path, tmp_path: Path) -> None:
    policy = write_policy(tmp_path, ("policy: lfu", "policy: lfuu"))
    done = launch(vllm_env("0.32.0", {"KVPOLICY_FILE": str(policy)}), tiny_model)
    assert done.returncode == 1
    assert_said(done, f"{policy}:11:11: ")
    assert_said(done, "not started: the policy has errors")


def test_a_missing_policy_file(vllm_env: VllmEnv, tiny_model: Path, tmp_path: Path) -> None:
    done = launch(vllm_env(), tiny_model, "--kv-policy", str(tmp_path / "absent.yaml"))
    assert done.returncode == 1
    assert_said(done, "absent.yaml")


def test_plugins_restricted_to_others(vllm_env: VllmEnv, tiny_model: Path, tmp_path: Path) -> None:
    """The flag is the safe surface: without the plugin vLLM itself refuses it."""
    engine = vllm_env("0.32.0", {"VLLM_PLUGINS": "other"})
    done = launch(engine, tiny_model, "--kv-policy", str(write_policy(tmp_path)))
    assert done.returncode == 2
    assert_said(done, "unrecognized arguments: --kv-policy")


def test_an_unsupported_engine(vllm_env: VllmEnv, tiny_model: Path, tmp_path: Path) -> None:
    newer = "import sys, types\nv = types.ModuleType('vllm._version')\nv.__version__ = '0.34.0'\n"
    newer += "v.__version_tuple__ = (0, 34, 0)\nsys.modules['vllm._version'] = v\n"
    engine = injecting(vllm_env(), tmp_path / "fault", newer, before_imports=True)
    done = launch(engine, tiny_model, "--kv-policy", str(write_policy(tmp_path)))
    assert done.returncode == 1
    assert_said(done, "vLLM 0.34.0 is not supported: the places where a policy goes in are known for 0.26 to 0.33")


def test_an_import_failure_in_the_launcher(vllm_env: VllmEnv, tiny_model: Path, tmp_path: Path) -> None:
    engine = injecting(vllm_env(), tmp_path / "fault", "import sys\nsys.modules['kvpolicy.compiler'] = None\n")
    done = launch(engine, tiny_model, "--kv-policy", str(write_policy(tmp_path)))
    assert done.returncode == 1
    assert_said(done, "kvpolicy: cannot start with a policy: ModuleNotFoundError: import of kvpolicy.compiler halted")


# The module is imported before plugins load; a class that lacks the method is what a future version may bring.
WITHOUT = """\
import importlib.abc, sys
class Remove(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == 'kvpolicy_vllm.launcher':
            DO
            sys.meta_path.remove(self)
sys.meta_path.insert(0, Remove())
"""


def test_a_seam_that_this_version_lacks(vllm_env: VllmEnv, tiny_model: Path, tmp_path: Path) -> None:
    statement = "import vllm.v1.engine.utils as u; del u.wait_for_engine_startup"
    engine = injecting(vllm_env(), tmp_path / "fault", WITHOUT.replace("DO", statement))
    done = launch(engine, tiny_model, "--kv-policy", str(write_policy(tmp_path)))
    assert done.returncode == 1
    assert_said(done, "this vLLM has no place for the policy: vllm.v1.engine.utils.wait_for_engine_startup is missing")


def test_a_hook_that_another_plugin_undid(vllm_env: VllmEnv, tiny_model: Path, tmp_path: Path) -> None:
    """The flag would be accepted and ignored."""
    undo = (
        "import kvpolicy_vllm.hooks as hooks\n"
        "wrap = hooks.wrap\n"
        "def undone(owner, name, around):\n"
        "    stock = owner.__dict__[name]\n"
        "    wrap(owner, name, around)\n"
        "    if name == 'create_engine_config':\n"
        "        setattr(owner, name, stock)\n"
        "hooks.wrap = undone\n"
    )
    done = launch(
        injecting(vllm_env(), tmp_path / "fault", undo), tiny_model, "--kv-policy", str(write_policy(tmp_path))
    )
    assert done.returncode == 1
    assert_said(done, "removed these hooks of the policy: vllm.engine.arg_utils.EngineArgs.create_engine_config")


CHILD_FAULTS = child_faults("kvpolicy_vllm", "engine", "the engine was given a configuration") | {
    "a worker has another policy": (
        "import kvpolicy_vllm.worker as worker; worker.digest_of = lambda flat: 'feedface' * 8",
        "kvpolicy: worker 0 has policy feedfacefeed",
    ),
    "the scheduler builds a pool of its own": (
        "import kvpolicy_vllm.cache_hooks as cache; cache.install = lambda active, config: None",
        "kvpolicy: the scheduler was built without the policy's block pool",
    ),
}


@pytest.mark.server
@pytest.mark.parametrize("fault", CHILD_FAULTS)
def test_a_fault_in_the_children_only(vllm_env: VllmEnv, tiny_model: Path, tmp_path: Path, fault: str) -> None:
    statements, words = CHILD_FAULTS[fault]
    engine = injecting(vllm_env(), tmp_path / "fault", in_children(statements))
    done = launch(engine, tiny_model, "--kv-policy", str(write_policy(tmp_path)))
    assert done.returncode not in (0, None)
    assert_said(done, words)
    assert "Application startup complete" not in done.stdout
