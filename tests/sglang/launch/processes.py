"""Real launcher processes for the tests of this folder, with faults injected through `sitecustomize`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tools.environment import EngineEnv
from tools.server import free_port, server_arguments, stop_group

# Spawned by multiprocessing, hence not the launcher.
IN_CHILDREN = "import sys\nif '--multiprocessing-fork' in sys.argv:\n"

POLICY = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {name: launch-test}
cache:
  page_size: {prefer: 16, accept: [16, 32]}
  kv_dtype: bf16
  on_conflict: error
backend:
  attention: torch_native
eviction:
  policy: lru
"""


def write_policy(folder: Path, *replacements: tuple[str, str]) -> Path:
    """The policy of these tests in a file, with parts replaced."""
    text = POLICY
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    path = folder / "policy.yaml"
    path.write_text(text)
    return path


def injecting(engine: EngineEnv, folder: Path, code: str) -> EngineEnv:
    """`engine` with `code` run at the start of every interpreter."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(code)
    path = os.pathsep.join([str(folder), engine.env["PYTHONPATH"]])
    return replace(engine, env={**engine.env, "PYTHONPATH": path})


def in_children(statements: str) -> str:
    """Code for :func:`injecting` that runs in spawned children only."""
    return IN_CHILDREN + "".join(f"    {line}\n" for line in statements.splitlines())


def launch(engine: EngineEnv, model: Path, *flags: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a launcher that is expected to end by itself; its output is stdout and stderr together."""
    arguments = server_arguments(model, ["--max-total-tokens", "1024", *flags], None, free_port())
    command = [str(engine.python), "-m", "sglang.launch_server", *arguments]
    process = subprocess.Popen(
        command,
        env=engine.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        stop_group(process)
        output, _ = process.communicate()
        raise AssertionError(f"still running after {timeout_s:.0f} s:\n{output[-3000:]}") from None
    return subprocess.CompletedProcess(command, process.returncode, output)


def assert_said(done: subprocess.CompletedProcess[str], text: str) -> None:
    """`text` is in the output; the end of it is shown otherwise."""
    if text not in done.stdout:
        raise AssertionError(f"not said: {text}\nexit code {done.returncode}, output:\n{done.stdout[-3000:]}")


SglangEnv = Callable[..., EngineEnv]
