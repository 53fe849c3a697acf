"""Small ways to run a replay from a test: requests as strings of letters, one letter a page."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvpolicy.replay.policies import from_result, load
from kvpolicy.replay.requests import NOBODY, Request
from kvpolicy.replay.simulator import Simulator

TRACES = Path(__file__).resolve().parent.parent.parent / "traces"
CONVERSATION = TRACES / "mooncake_conversation_first_half.jsonl.gz"
SYNTHETIC = TRACES / "mooncake_synthetic.jsonl.gz"
AGENTIC = TRACES / "agentic_sessions_400.jsonl.gz"


def serve(
    simulator: Simulator, prompt: Sequence[str], at_ms: int = 0, output: Sequence[str] = (), **more: object
) -> int:
    """One request of one-token pages; its hit tokens."""
    full = [*prompt, *output]
    info = more.pop("info", NOBODY)
    duration = more.pop("duration_ms", None)
    assert not more
    request = Request(at_ms, len(prompt), len(output), list(prompt), full, info, duration)  # type: ignore[arg-type]
    return simulator.request(request, list(prompt), len(prompt), full)


def simulator(policy: str = "lru", capacity: int | None = 8, granularity: str = "node", **more: bool) -> Simulator:
    result = load(policy)
    assert result.policy is not None, result.diagnostics
    return Simulator(from_result(result, policy), capacity, 1, granularity, **more)


@pytest.fixture
def trace_file(tmp_path: Path):
    """Write rows (objects, or raw text lines) as a trace file."""

    def write(*rows: object, name: str = "trace.jsonl") -> str:
        text = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
        path = tmp_path / name
        if name.endswith(".gz"):
            path.write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text)
        return str(path)

    return write
