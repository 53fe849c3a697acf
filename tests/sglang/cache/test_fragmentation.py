"""Runs of slots: counted as a plain loop counts them, and told by a real server while requests run."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
from kvpolicy_sglang.fragmentation import runs_in_order, runs_of_set  # noqa: E402


def runs(ids: list[int]) -> list[int]:
    """Lengths of the stretches of neighbours, one after the other."""
    lengths: list[int] = []
    for at, number in enumerate(ids):
        if at and number == ids[at - 1] + 1:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


@given(st.lists(st.integers(0, 60), unique=True))
def test_runs_are_counted_as_by_hand(ids: list[int]) -> None:
    slots = torch.tensor(ids, dtype=torch.int64)
    assert runs_in_order(slots) == len(runs(ids))
    lengths = runs(sorted(ids))
    assert runs_of_set(slots) == (len(lengths), max(lengths, default=0))


POLICY = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {name: plain}
cache: {page_size: 16}
allocator: {watermark: {low: 2%, high: 5%}}
"""


@pytest.mark.server
@pytest.mark.parametrize("version", ["0.5.18", "0.5.23"])
def test_a_server_tells_its_runs(server, tmp_path: Path, version: str) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    flags = ("--attention-backend", "torch_native", "--enable-metrics")
    with server(version, *flags, policy=policy, max_total_tokens=2048) as running:
        idle = running.status()
        assert idle["kv_pool"]["class"] == "MHATokenToKVPool"
        assert (idle["built"]["kv_cache_dtype"], idle["built"]["page_size"]) == ("bf16", 16)
        fresh = idle["fragmentation"]
        assert (fresh["free_pages"], fresh["free_runs"], fresh["longest_free_run_pages"]) == (128, 1, 128)
        assert fresh["requests"] == 0

        # Two that decode side by side take pages in turn, so neither lies in one run.
        answers = [threading.Thread(target=running.generate, args=([7 + i] * 40, 400)) for i in range(2)]
        for answer in answers:
            answer.start()
        seen: list[dict[str, float]] = []
        while any(answer.is_alive() for answer in answers):
            seen.append(running.status()["fragmentation"])
            time.sleep(0.1)
        most = max(seen, key=lambda figures: figures["index_entries"])
        assert most["requests"] == 2
        assert most["index_entries"] > 200, "one a token with this backend"
        assert most["runs_per_request"] > 3
        after = running.status()
        assert after["fragmentation"]["requests"] == 0
        assert after["fallbacks"] == {}
        metrics = {name.partition("{")[0]: value for name, value in running.metrics().items()}
        for name in ("free_runs", "longest_free_run_pages"):
            assert metrics[f"kvpolicy_{name}"] == after["fragmentation"][name]
