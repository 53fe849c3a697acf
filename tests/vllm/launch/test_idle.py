"""What vLLM's processes pay for an installed kvpolicy that nobody uses, and which command lines use it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: What a process without a policy imports of ours: no engine, no core.
IDLE_MODULES = ["kvpolicy", "kvpolicy.runtime", "kvpolicy.runtime.flags", "kvpolicy_vllm", "kvpolicy_vllm.plugin"]
SCRIPT = """\
import sys
sys.argv = ARGV
from kvpolicy_vllm.plugin import load
load()
print(sorted(m for m in sys.modules if m.startswith(("kvpolicy", "vllm", "torch", "pydantic", "yaml"))))
"""


def loaded(*argv: str, **environ: str) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("KVPOLICY_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("ARGV", repr([*argv]))],
        capture_output=True,
        text=True,
        env={**clean, **environ},
    )
    return done.stdout.strip() or done.stderr


@pytest.mark.parametrize(
    "argv", [["vllm", "serve", "m"], ["program.py", "--help"], ["vllm", "serve", "--kv-policies", "p"]]
)
def test_without_a_policy_the_plugin_imports_nothing_more(argv: list[str]) -> None:
    assert loaded(*argv) == str(IDLE_MODULES)


def test_disabled_without_the_flag_is_as_if_not_installed() -> None:
    assert loaded("vllm", "serve", "m", KVPOLICY_DISABLE="1", KVPOLICY_FILE="p.yaml") == str(IDLE_MODULES)


@pytest.mark.parametrize(
    "argv", [["vllm", "serve", "m", "--kv-policy=p"], ["vllm", "serve", "--help=kvpolicy"], ["/x/vllm", "bench", "-h"]]
)
def test_a_policy_or_a_question_for_the_flags_needs_the_engine(argv: list[str]) -> None:
    """There is none in this interpreter, which is said with words."""
    assert "kvpolicy: cannot start with a policy: ModuleNotFoundError: No module named 'vllm'" in loaded(*argv)
