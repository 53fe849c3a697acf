"""Real vLLM launchers for the tests of this folder."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

from tests import launching
from tools.environment import EngineEnv
from tools.server import VLLM_MODULE, free_port, vllm_arguments

write_policy = partial(launching.write_policy, launching.policy("cpu_attn", "lfu"))


def launch(engine: EngineEnv, model: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run a `vllm serve` that is expected to end by itself; its output is stdout and stderr together."""
    arguments = ["serve", *vllm_arguments(model, flags, None, free_port())]
    return launching.run_to_end(engine, ["-m", VLLM_MODULE, *arguments])
