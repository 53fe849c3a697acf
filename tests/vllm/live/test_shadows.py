"""Shadow policies on a real vLLM, and its traffic as a trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.shadowing import check_recording, check_shadows
from tests.vllm.live.test_swap_server import POLICIES, POOL
from tools.environment import EngineEnv
from tools.server import VllmServer, run_server

pytestmark = [pytest.mark.engine, pytest.mark.server]


def test_shadows_and_recordings(vllm_env: Callable[..., EngineEnv], tiny_model: Path, tmp_path: Path) -> None:
    (policy := tmp_path / "plain.yaml").write_text(POLICIES["plain"])
    # Its development routes have one that empties the prefix cache.
    engine = vllm_env(extra={"KVPOLICY_APPLY": "loopback", "VLLM_SERVER_DEV_MODE": "1"})
    with run_server(engine, tiny_model, *POOL, policy=policy, log_path=tmp_path / "log") as running:
        assert isinstance(running, VllmServer)

        def flush() -> None:
            running._request("/reset_prefix_cache", {})

        check_shadows(running, flush)
        check_recording(running, flush, tmp_path, "--granularity", "page")
