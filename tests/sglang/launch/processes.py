"""Real SGLang launchers for the tests of this folder."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests import launching
from tools.environment import EngineEnv
from tools.server import free_port, server_arguments

SglangEnv = Callable[..., EngineEnv]

write_policy = partial(launching.write_policy, launching.policy("torch_native", "lru"))


def launch(engine: EngineEnv, model: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run a launcher that is expected to end by itself; its output is stdout and stderr together."""
    arguments = server_arguments(model, ["--max-total-tokens", "1024", *flags], None, free_port())
    return launching.run_to_end(engine, ["-m", "sglang.launch_server", *arguments])
