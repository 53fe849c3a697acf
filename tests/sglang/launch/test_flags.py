"""Which processes kvpolicy touches, decided from argv, environment and `--config` alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kvpolicy_sglang.flags import role_of_process

from kvpolicy.runtime.flags import CARRY_ENV, DISABLE_ENV, FILE_ENV, Role

SERVER = ["/x/sglang/launch_server.py", "--model-path", "m"]
#: What a process without a policy imports of ours: no engine, no core.
IDLE_MODULES = [
    "kvpolicy",
    "kvpolicy.runtime",
    "kvpolicy.runtime.flags",
    "kvpolicy_sglang",
    "kvpolicy_sglang.flags",
    "kvpolicy_sglang.plugin",
]
CARRIED_BY_OTHER = f"{os.getpid() + 1}:payload"
CARRIED_BY_US = f"{os.getpid()}:payload"


@pytest.mark.parametrize(
    ("argv", "environ", "role"),
    [
        (SERVER, {}, Role.NONE),
        ([*SERVER, "--kv-policy", "p.yaml"], {}, Role.LAUNCHER),
        ([*SERVER, "--kv-policy=p.yaml"], {}, Role.LAUNCHER),
        ([*SERVER, "--kv-policies", "p.yaml"], {}, Role.NONE),  # argparse then refuses the flag
        (SERVER, {FILE_ENV: "p.yaml"}, Role.LAUNCHER),
        (SERVER, {FILE_ENV: ""}, Role.NONE),
        ([*SERVER, "--help"], {}, Role.LAUNCHER),
        (["my_program.py", "--help"], {}, Role.NONE),
        # Spawned children inherit argv: the carried policy decides, not the flag.
        ([*SERVER, "--kv-policy", "p.yaml"], {CARRY_ENV: CARRIED_BY_OTHER}, Role.CHILD),
        ([*SERVER, "--kv-policy", "p.yaml"], {CARRY_ENV: CARRIED_BY_US}, Role.LAUNCHER),
        # Disabled: only a launcher must still accept the flag.
        ([*SERVER, "--kv-policy", "p.yaml"], {DISABLE_ENV: "1"}, Role.LAUNCHER),
        (SERVER, {DISABLE_ENV: "1", FILE_ENV: "p.yaml"}, Role.NONE),
        (SERVER, {DISABLE_ENV: "1", CARRY_ENV: CARRIED_BY_OTHER}, Role.NONE),
        (SERVER, {DISABLE_ENV: "0", FILE_ENV: "p.yaml"}, Role.LAUNCHER),
    ],
)
def test_role(argv: list[str], environ: dict[str, str], role: Role) -> None:
    assert role_of_process(argv, environ, is_spawned=CARRY_ENV in environ) is role


def test_disabled_leaves_the_children_of_a_launcher_alone() -> None:
    """Spawned children inherit argv, the flag included."""
    argv = [*SERVER, "--kv-policy", "p.yaml"]
    assert role_of_process(argv, {DISABLE_ENV: "1"}, is_spawned=True) is Role.NONE


def test_a_server_started_by_a_server_is_a_launcher_of_its_own() -> None:
    environ = {CARRY_ENV: CARRIED_BY_OTHER}
    assert role_of_process(SERVER, environ, is_spawned=False) is Role.NONE
    assert role_of_process([*SERVER, "--kv-policy", "p.yaml"], environ, is_spawned=False) is Role.LAUNCHER


@pytest.mark.parametrize(
    ("text", "role"),
    [
        ("kv-policy: p.yaml\n", Role.LAUNCHER),
        ("page-size: 16\n", Role.NONE),
        ("- a list\n", Role.NONE),
        ("kv-policy: [unclosed\n", Role.NONE),
        ("", Role.NONE),
    ],
)
def test_role_from_the_engines_config_file(tmp_path: Path, text: str, role: Role) -> None:
    config = tmp_path / "server.yaml"
    config.write_text(text)
    assert role_of_process([*SERVER, "--config", str(config)], {}, is_spawned=False) is role


@pytest.mark.parametrize("argv", [[*SERVER, "--config"], [*SERVER, "--config", "/does/not/exist.yaml"]])
def test_an_unreadable_config_file_is_left_to_the_engine(argv: list[str]) -> None:
    assert role_of_process(argv, {}, is_spawned=False) is Role.NONE


def test_without_a_policy_the_plugin_imports_nothing_more() -> None:
    """Every process of every SGLang user with kvpolicy installed pays this import."""
    script = (
        "import sys; from kvpolicy_sglang.plugin import load; load();"
        "print(sorted(m for m in sys.modules if m.startswith(('kvpolicy', 'sglang', 'torch', 'pydantic', 'yaml'))))"
    )
    clean = {key: value for key, value in os.environ.items() if not key.startswith("KVPOLICY_")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=clean, check=True)
    assert done.stdout.strip() == str(IDLE_MODULES)
