"""Shadow policies on a real SGLang, and its traffic as a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.live.shadowing import check_recording, check_shadows

pytestmark = [pytest.mark.engine, pytest.mark.server]

LRU = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {name: plain}
cache: {page_size: 16}
eviction: {policy: lru}
"""


@pytest.mark.parametrize("version", ["0.5.20", "0.5.23"])
def test_shadows_and_recordings(server: StartServer, tmp_path: Path, version: str) -> None:
    (policy := tmp_path / "plain.yaml").write_text(LRU)
    env = {"KVPOLICY_APPLY": "loopback"}
    with server(version, policy=policy, max_total_tokens=1024, env=env) as running:
        check_shadows(running, running.flush_cache)
        check_recording(running, running.flush_cache, tmp_path)
