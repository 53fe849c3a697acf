"""Starts of real engines that are expected to end by themselves, with faults injected into their processes."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from tests.programs import with_path
from tools.environment import EngineEnv
from tools.preloaded import start
from tools.server import stop_group

# Spawned by multiprocessing, hence not the launcher.
_IN_CHILDREN = "import sys\nif '--multiprocessing-fork' in sys.argv:\n"


def policy(attention: str, order: str) -> str:
    """The policy of these tests: every setting, an accept list, and conflicts that end a start."""
    return f"""\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {{name: launch-test}}
cache:
  page_size: {{prefer: 16, accept: [16, 32]}}
  kv_dtype: bf16
  on_conflict: error
backend:
  attention: {attention}
eviction:
  policy: {order}
"""


def write_policy(text: str, folder: Path, *replacements: tuple[str, str]) -> Path:
    """`text` in a file, with parts replaced."""
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    path = folder / "policy.yaml"
    path.write_text(text)
    return path


def injecting(engine: EngineEnv, folder: Path, code: str, *, before_imports: bool = False) -> EngineEnv:
    """`engine` with `code` run at the start of every process; `before_imports`: of the engine's modules, too."""
    folder.mkdir(exist_ok=True)
    (folder / ("sitecustomize.py" if before_imports else "at_start.py")).write_text(code)
    return with_path(engine, folder)


def in_children(statements: str) -> str:
    """Code for :func:`injecting` that runs in spawned children only."""
    return _IN_CHILDREN + "".join(f"    {line}\n" for line in statements.splitlines())


def child_faults(plugin: str, children: str, given: str) -> dict[str, tuple[str, str]]:
    """Faults of the child processes alone: `(statements, what the launcher says then)`.

    `plugin` is the adapter's package, `children` what it calls these processes, and `given` what it says they got
    where that is for another policy.
    """
    return {
        "the plugin cannot be imported": (
            f"sys.modules['{plugin}'] = None",
            f"1 of 1 {children} processes started without the policy",
        ),
        "the core cannot be imported": (
            "sys.modules['kvpolicy.language'] = None",
            "kvpolicy: cannot start with a policy: ModuleNotFoundError: ",  # of it, or of a module in it
        ),
        "the carried policy is damaged": (
            "import os; os.environ['KVPOLICY_CARRY'] = '1:AAAA'",
            "KVPOLICY_CARRY is damaged",
        ),
        "the carried policy is lost": (
            "import os; os.environ.pop('KVPOLICY_CARRY', None)",
            f"1 of 1 {children} processes started without the policy",
        ),
        "the carried policy is another one": (
            "import os\n"
            "from kvpolicy.runtime import carry\n"
            "from kvpolicy.language import digest_of\n"
            "found = carry.read(os.environ['KVPOLICY_CARRY'])\n"
            "found.flat['metadata']['description'] = 'another'\n"
            "found.digest = digest_of(found.flat)\n"
            "carry.export(found)\n"
            "os.environ['KVPOLICY_CARRY'] = '1:' + os.environ['KVPOLICY_CARRY'].partition(':')[2]",
            f"{given} for policy",
        ),
    }


def run_to_end(
    engine: EngineEnv, command: list[str], timeout_s: float = 300, *, apart: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run `python COMMAND`, which is expected to end by itself; its stdout and stderr together, or `apart`."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = start(engine, command, output=output, errors=errors if apart else None)
        try:
            process.wait(timeout_s)
            timed_out = False
        except subprocess.TimeoutExpired:
            timed_out = True
        stop_group(process)  # what it left behind
        output.seek(0), errors.seek(0)
        done = subprocess.CompletedProcess(command, process.returncode, output.read(), errors.read())
    if timed_out:
        raise AssertionError(f"still running after {timeout_s:.0f} s:\n{(done.stdout + done.stderr)[-3000:]}")
    return done


def run_program(engine: EngineEnv, folder: Path, code: str, *arguments: str) -> str:
    """Run a Python program beside the engine; its output, which is shown if it fails."""
    program = folder / "program.py"
    program.write_text(code)
    done = run_to_end(engine, [str(program), *arguments])
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


def assert_said(done: subprocess.CompletedProcess[str], text: str) -> None:
    """`text` is in the output; the end of it is shown otherwise."""
    if text not in done.stdout:
        raise AssertionError(f"not said: {text}\nexit code {done.returncode}, output:\n{done.stdout[-3000:]}")
