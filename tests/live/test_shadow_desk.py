"""What the HTTP side takes and refuses of shadows and recordings, before and after a scheduler is asked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kvpolicy.language import load_policy
from kvpolicy.live import shadows
from kvpolicy.live.server import MAX_BODY_BYTES
from kvpolicy.live.shadows import ShadowDesk

RAG = load_policy("rag", "sglang").flat


class Schedulers:
    """Two data-parallel groups that keep what they are told, and write what they are asked to."""

    engine = "sglang"

    def __init__(self, refused: str = "", state: str = "running") -> None:
        self.told: list[dict[str, Any]] = []
        self.folders: list[Path] = []
        self.refused, self.state = refused, state

    async def shadow(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        self.told.append(message)
        if message["op"] == "shadow_record":
            self.folders.append(Path(message["path"]).parent)
        if message["op"] == "shadow_look" and self.state == "running":
            for rank in range(2):
                (self.folders[-1] / f"trace-{rank}").write_text(f"rank {rank}\n")
        gone = "the ghost process is gone" if self.state == "dead" else None
        return [
            {"rank": rank, "state": self.state, "ended": gone, "refused": self.refused, "dropped_requests": rank}
            for rank in (1, 0)
        ]


def ask(channel: Schedulers, body: Any, what: str = "shadows") -> tuple[int, dict[str, Any]]:
    desk = ShadowDesk(channel)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return asyncio.run({"shadows": desk.shadows, "record": desk.record}[what](data))


def test_good_policies_reach_the_schedulers() -> None:
    channel = Schedulers()
    assert ask(channel, {"add": [RAG, RAG]})[0] == 200
    assert channel.told == [{"op": "shadow_add", "policies": [RAG, RAG]}]
    assert ask(channel, {"clear": True})[0] == 200
    assert channel.told[-1] == {"op": "shadow_clear"}


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b"{", 400, "JSON"),
        ([], 400, "object"),
        ({}, 400, "add"),
        ({"add": []}, 400, "add"),
        ({"add": ["rag"]}, 400, "flattened"),
        ({"add": [RAG, {**RAG, "extends": "/etc/passwd"}]}, 400, "extends"),
        ({"add": [{**RAG, "eviction": {"policy": "nonsense"}}]}, 400, "has errors"),
        (b"x" * (MAX_BODY_BYTES + 1), 413, "256 KiB"),
    ],
)
def test_what_is_no_request_reaches_nobody(body: Any, status: int, word: str) -> None:
    channel = Schedulers()
    found, answer = ask(channel, body)
    assert (found, channel.told) == (status, [])
    assert word in answer["error"]


def test_a_scheduler_may_refuse() -> None:
    status, answer = ask(Schedulers("8 shadows run"), {"add": [RAG]})
    assert (status, answer["why"]) == (422, ["8 shadows run", "8 shadows run"])


def test_a_recording_brings_a_trace_of_each_group_and_leaves_nothing() -> None:
    channel = Schedulers()
    status, answer = ask(channel, {"for_s": 0.05}, "record")
    assert status == 200, answer
    assert [message["op"] for message in channel.told] == ["shadow_record", "shadow_end_record", "shadow_look"]
    assert answer["engines"] == [
        {"rank": 0, "dropped_requests": 0, "trace": "rank 0\n"},
        {"rank": 1, "dropped_requests": 1, "trace": "rank 1\n"},
    ]
    assert not channel.folders[0].exists()


def test_a_recording_may_be_ended_early() -> None:
    channel = Schedulers()
    desk = ShadowDesk(channel)

    async def end() -> tuple[int, int, int, dict[str, Any]]:
        recording = asyncio.create_task(desk.record(b'{"for_s": 3600}'))
        while not channel.told:
            await asyncio.sleep(0)
        ended, _ = await desk.record(b'{"end": true}')
        status, answer = await recording
        again, _ = await desk.record(b'{"end": true}')
        return ended, again, status, answer

    ended, again, status, answer = asyncio.run(end())
    assert (ended, again, status) == (200, 409, 200), "none is under way any more"
    assert 0 <= answer["ran_s"] < 3600
    assert [engine["trace"] for engine in answer["engines"]] == ["rank 0\n", "rank 1\n"]


@pytest.mark.parametrize("seen", [0, 1])
def test_a_recording_whose_client_goes_away_ends(seen: int) -> None:
    """Before or after the schedulers were told; their files are written to the end first, and another may begin."""
    channel = Schedulers()
    desk = ShadowDesk(channel)

    async def leave() -> int:
        recording = asyncio.create_task(desk.record(b'{"for_s": 3600}'))
        await asyncio.sleep(0)
        while len(channel.told) < seen:
            await asyncio.sleep(0)
        recording.cancel()
        with pytest.raises(asyncio.CancelledError):
            await recording
        assert not channel.folders[0].exists()
        return (await desk.record(b'{"for_s": 0.05}'))[0]

    assert asyncio.run(leave()) == 200
    assert [message["op"] for message in channel.told] == 2 * ["shadow_record", "shadow_end_record", "shadow_look"]


def test_a_recording_whose_process_died_is_no_recording() -> None:
    channel = Schedulers(state="dead")
    status, answer = ask(channel, {"for_s": 0.05}, "record")
    assert status == 500
    assert "the ghost process is gone" in answer["error"]
    assert not channel.folders[0].exists()


def test_a_recording_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadows, "FINISH_S", 0.3)
    status, answer = ask(Schedulers(state="elsewhere"), {"for_s": 0.05}, "record")
    assert status == 500
    assert "another machine" in answer["error"]


@pytest.mark.parametrize("for_s", [None, 0, -1, "60", True, 1e9, float("nan")])
def test_how_long_a_recording_may_be(for_s: Any) -> None:
    channel = Schedulers()
    assert ask(channel, {"for_s": for_s}, "record")[0] == 400
    assert not channel.told


def test_one_recording_at_a_time() -> None:
    desk = ShadowDesk(Schedulers())

    async def both() -> list[int]:
        body = json.dumps({"for_s": 0.2}).encode()
        return sorted(status for status, _ in await asyncio.gather(desk.record(body), desk.record(body)))

    assert asyncio.run(both()) == [200, 409]
