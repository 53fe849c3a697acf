"""Real vLLM launchers for the tests of this folder; what they share with SGLang's is in `tests/sglang/launch`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.sglang.launch.processes import assert_said, in_children, injecting
from tools.environment import EngineEnv
from tools.server import VLLM_MODULE, free_port, stop_group, vllm_arguments

__all__ = ["assert_said", "in_children", "injecting", "launch", "run_program", "write_policy"]

POLICY = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {name: launch-test}
cache:
  page_size: {prefer: 16, accept: [16, 32]}
  kv_dtype: bf16
  on_conflict: error
backend:
  attention: cpu_attn
eviction:
  policy: lfu
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


def launch(engine: EngineEnv, model: Path, *flags: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a `vllm serve` that is expected to end by itself; its output is stdout and stderr together."""
    arguments = ["serve", *vllm_arguments(model, flags, None, free_port())]
    return _run([str(engine.python), "-m", VLLM_MODULE, *arguments], engine, timeout_s)


def run_program(engine: EngineEnv, folder: Path, code: str, *arguments: str, timeout_s: float = 300) -> str:
    """Run a Python program beside vLLM; its output, which is shown if it fails."""
    program = folder / "program.py"
    program.write_text(code)
    done = _run([str(engine.python), str(program), *arguments], engine, timeout_s)
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


def _run(command: list[str], engine: EngineEnv, timeout_s: float) -> subprocess.CompletedProcess[str]:
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
