"""Starts that must not happen: the launcher ends non-zero, with the reason, before any port answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import SGLANG_VERSIONS
from tests.launching import assert_said, child_faults, in_children, injecting
from tests.sglang.launch.processes import SglangEnv, launch, write_policy

pytestmark = pytest.mark.engine

DEMO = "0.5.20"


@pytest.mark.parametrize("version", SGLANG_VERSIONS)
def test_an_explicit_flag_against_the_policy(
    sglang_env: SglangEnv, tiny_model: Path, tmp_path: Path, version: str
) -> None:
    """`lru` equals the default, and 1 is what the engine would choose: both count, since they were given."""
    policy = write_policy(tmp_path, ("policy: lru", "policy: lfu"))
    flags = ["--page-size", "1", "--radix-eviction-policy=lru", "--kv-policy", str(policy)]
    done = launch(sglang_env(version), tiny_model, *flags)
    assert done.returncode == 1
    assert_said(done, f"the policy asks for 16 (also accepted: 32) at {policy}:5:14, but --page-size 1 was given")
    assert_said(done, f"the policy asks for lfu at {policy}:11:11, but --radix-eviction-policy lru was given")
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize("flag", ["--enable-hierarchical-cache", "--disable-radix-cache"])
def test_a_cache_that_the_policy_cannot_steer(
    sglang_env: SglangEnv, tiny_model: Path, tmp_path: Path, flag: str
) -> None:
    """Known from the arguments alone, so the launcher says it before a model is loaded."""
    policy = write_policy(tmp_path)
    done = launch(sglang_env(DEMO), tiny_model, flag, f"--kv-policy={policy}")
    assert done.returncode == 1
    assert_said(done, f"({flag})")
    assert_said(done, f"(policy: {policy}:11:3)")
    assert_said(done, "on_conflict: warn")
    assert "Traceback" not in done.stdout


def test_a_flag_of_the_config_file_against_the_policy(sglang_env: SglangEnv, tiny_model: Path, tmp_path: Path) -> None:
    """The policy itself comes from `--config` here too."""
    config = tmp_path / "server.yaml"
    config.write_text(f"kv-policy: {write_policy(tmp_path)}\nkv-cache-dtype: auto\n")
    done = launch(sglang_env(DEMO), tiny_model, "--config", str(config))
    assert done.returncode == 1
    assert_said(done, "but --kv-cache-dtype auto was given")


@pytest.mark.parametrize("version", ["0.5.18", "0.5.20"])
def test_an_override_of_the_engine(sglang_env: SglangEnv, tiny_model: Path, tmp_path: Path, version: str) -> None:
    """Without AMX the engine replaces intel_amx by torch_native."""
    policy = write_policy(tmp_path, ("torch_native", "intel_amx"))
    # The machine of this test may have AMX.
    without_amx = "import torch\ntorch._C._cpu._is_amx_tile_supported = bool\n"
    engine = injecting(sglang_env(version), tmp_path / "fault", without_amx)
    done = launch(engine, tiny_model, "--kv-policy", str(policy))
    assert done.returncode == 1
    assert_said(done, f"the policy asks for intel_amx at {policy}:9:14, but SGLang's")
    assert_said(done, "makes it torch_native (--attention-backend)")


def test_a_policy_with_errors(sglang_env: SglangEnv, tiny_model: Path, tmp_path: Path) -> None:
    policy = write_policy(tmp_path, ("policy: lru", "policy: lruu"))
    done = launch(sglang_env(DEMO), tiny_model, "--kv-policy", str(policy))
    assert done.returncode == 1
    assert_said(done, f"{policy}:11:11: ")
    assert_said(done, "not started: the policy has errors")


def test_a_missing_policy_file(sglang_env: SglangEnv, tiny_model: Path, tmp_path: Path) -> None:
    done = launch(sglang_env(DEMO, {"KVPOLICY_FILE": str(tmp_path / "absent.yaml")}), tiny_model)
    assert done.returncode == 1
    assert_said(done, "absent.yaml")


def test_plugins_restricted_to_others(sglang_env: SglangEnv, tiny_model: Path, tmp_path: Path) -> None:
    """The flag is the safe surface: without the plugin SGLang itself refuses it."""
    done = launch(sglang_env(DEMO, {"SGLANG_PLUGINS": "other"}), tiny_model, "--kv-policy", str(write_policy(tmp_path)))
    assert done.returncode == 2
    assert_said(done, "unrecognized arguments: --kv-policy")


def test_an_unsupported_engine(sglang_env: SglangEnv, tiny_model: Path, tmp_path: Path) -> None:
    newer = "import sglang.version\nsglang.version.__version__ = '0.5.24'\n"
    engine = injecting(sglang_env(DEMO), tmp_path / "fault", newer, before_imports=True)
    done = launch(engine, tiny_model, "--kv-policy", str(write_policy(tmp_path)))
    assert done.returncode == 1
    assert_said(
        done, "SGLang 0.5.24 is not supported: the places where a policy goes in are known for 0.5.16 to 0.5.23"
    )


def test_an_import_failure_in_the_launcher(sglang_env: SglangEnv, tiny_model: Path, tmp_path: Path) -> None:
    """SGLang swallows plugin exceptions; a launcher asked for a policy must end all the same."""
    code = "import sys\nsys.modules['kvpolicy.compiler'] = None\n"
    engine = injecting(sglang_env(DEMO), tmp_path / "fault", code)
    done = launch(engine, tiny_model, "--kv-policy", str(write_policy(tmp_path)))
    assert done.returncode == 1
    assert_said(done, "kvpolicy: cannot start with a policy: ModuleNotFoundError: import of kvpolicy.compiler halted")


def test_a_hook_that_does_not_take(sglang_env: SglangEnv, tiny_model: Path, tmp_path: Path) -> None:
    """The registry logs a hook it cannot apply and goes on; the flag would then be accepted and ignored."""
    code = (
        "import sglang.srt.plugins.hook_registry as registry\n"
        "apply = registry.HookRegistry._apply_target.__func__\n"
        "def refuse(cls, target, hooks):\n"
        "    if target.endswith('.from_cli_args'):\n"
        "        raise RuntimeError('injected')\n"
        "    return apply(cls, target, hooks)\n"
        "registry.HookRegistry._apply_target = classmethod(refuse)\n"
    )
    engine = injecting(sglang_env(DEMO), tmp_path / "fault", code)
    done = launch(engine, tiny_model, "--kv-policy", str(write_policy(tmp_path)))
    assert done.returncode == 1
    assert_said(done, "these hooks did not apply")
    assert_said(done, "ServerArgs.from_cli_args")


CHILD_FAULTS = child_faults("kvpolicy_sglang", "scheduler", "the scheduler was given arguments")


@pytest.mark.server
@pytest.mark.parametrize("fault", CHILD_FAULTS)
def test_a_fault_in_the_child_only(sglang_env: SglangEnv, tiny_model: Path, tmp_path: Path, fault: str) -> None:
    statements, words = CHILD_FAULTS[fault]
    engine = injecting(sglang_env(DEMO), tmp_path / "fault", in_children(statements))
    done = launch(engine, tiny_model, "--kv-policy", str(write_policy(tmp_path)))
    assert done.returncode not in (0, None)
    assert_said(done, words)
    assert "Uvicorn running" not in done.stdout
