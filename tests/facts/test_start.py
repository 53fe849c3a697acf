"""A real server says at start what `check` says from an estimate: protection leaves less room than one request."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import StartServer

POLICY = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {name: room}
cache: {page_size: 16}
eviction: {policy: lru, rules: [{name: keep, match: depth_tokens <= 64, retain: {weight: 1, budget: 60%}}]}
"""


@pytest.mark.server
@pytest.mark.parametrize(("budget", "warns"), [("60%", True), ("0%", False)])
def test_a_server_warns_of_the_room_it_has(server: StartServer, tmp_path: Path, budget: str, warns: bool) -> None:
    policy = tmp_path / "room.yaml"
    policy.write_text(POLICY.replace("60%", budget))
    with server("0.5.20", policy=policy, max_total_tokens=2048) as running:
        assert running.generate(list(range(3, 203)))["output_ids"]
        said = "KVP523: rules and floors may protect 60% of 2,048 tokens, which leaves 820" in running.log()
    assert said == warns
