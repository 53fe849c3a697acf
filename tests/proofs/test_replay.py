"""Ranks decide alike: one recorded stream in processes that differ in everything a rank may differ in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launching import injecting
from tests.programs import run_all, with_path
from tests.proofs.engines import assert_sound, start, with_witness
from tools.environment import EngineEnv

pytestmark = pytest.mark.engine

#: Everything in policy time or drawn from a sequence: a dynamic score over more units than it samples, ttl, budget.
POLICY = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {name: replay}
cache: {page_size: 16, kv_dtype: bf16}
backend: {attention: torch_native}
eviction:
  score: (1 + hits) / (1 + idle_s) + 0.1 * hits / (1 + idle_requests)
  rules:
    - name: opted-out
      match: request.priority == -1
      admit: never
    - name: returning
      match: hits >= 2
      retain: {weight: 2, ttl: 500ms, budget: 15%}
    - name: asked-for
      match: request.priority == 1 and not is_output
      retain: {weight: 4, budget: 15%}
  tenants: {by: cache_salt, floor: 5%, cap: 40%, max_floors: 2}
hints: {max_priority: 5}
"""

#: Other clocks in every process of that engine: another start, and a machine that runs fast.
SKEW = """\
import time
def skewed(read, scale):
    start = read()
    return lambda: start + (read() - start) * 3 // 2 + 987_654_321 * scale
for name in ("time", "monotonic", "perf_counter"):
    setattr(time, name, skewed(getattr(time, name), 1))
    setattr(time, name + "_ns", skewed(getattr(time, name + "_ns"), 1_000_000_000))
"""


def test_a_recorded_stream_gives_equal_victims(
    sglang_env: Callable[..., EngineEnv], tiny_model: Path, tmp_path: Path
) -> None:
    policy, stream = tmp_path / "policy.yaml", tmp_path / "stream.json"
    policy.write_text(POLICY)
    plain = with_witness(sglang_env("0.5.20"), tmp_path / "witness")  # hashes as in most tests: any but the others'
    other = with_path(injecting(plain, tmp_path / "skew", SKEW), PYTHONHASHSEED="2")

    (recorded,) = start(plain, "replay.py", tiny_model, policy, "record", stream).told()
    # Both at once, as ranks are; the second changes one admitted request of the part that is run again.
    requests = json.loads(stream.read_text())
    changed = next(number for number, item in enumerate(requests) if number >= 5 and item["priority"] != -1)
    first, second = run_all(
        start(plain, "replay.py", tiny_model, policy, "replay", stream),
        start(other, "replay.py", tiny_model, policy, "replay", stream, str(changed)),
    )

    for seen in (recorded, first, second):
        assert_sound(seen["state"])
    assert len(recorded["digests"]) > 50, "eviction calls"
    assert first["digests"] == recorded["digests"]
    assert second["digests"] == recorded["digests"]

    # A detector that can fail: the same again, but one request is one page longer.
    assert recorded["with again"] == first["with again"]
    assert len(first["with again"]) > len(first["digests"])
    assert second["with again"] != first["with again"]
