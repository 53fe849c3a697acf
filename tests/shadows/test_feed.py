"""A scheduler's side: it never waits, and says what was dropped and what died. The ghost process is the real one."""

from __future__ import annotations

import os
import signal
import socket
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kvpolicy.language import load_policy
from kvpolicy.replay.trace import Trace
from kvpolicy.runtime.active import ActivePolicy
from kvpolicy.shadows.feed import MAX_SHADOWS, Feed
from kvpolicy.shadows.pipe import Board, Receiver, Sender
from kvpolicy.shadows.process import Worker
from kvpolicy.shadows.recording import Recording
from kvpolicy.shadows.records import Record
from tests.inside.activation import activate

RAG, LFU = load_policy("rag", "sglang").flat, load_policy("stock_lru", "sglang").flat


def record(number: int = 0, tokens: int = 64, **more: Any) -> Record:
    content = array("q", range(number, number + tokens)).tobytes()
    return Record(number, number + 5, tokens, 0, 0, None, None, None, None, content)._replace(**more)


@pytest.fixture
def active() -> ActivePolicy:
    found = activate("sglang", {"policy": "lru"})
    found.pool_tokens, found.digest = 1024, "a" * 64
    return found


@pytest.fixture
def feeds(active: ActivePolicy) -> Iterator[Callable[..., Feed]]:
    made: list[Feed] = []

    def make(**more: Any) -> Feed:
        made.append(Feed(active, "sglang", "tokens", 16, **more))
        return made[-1]

    yield make
    for feed in made:
        feed.handle({"op": "shadow_clear"})
        if feed.process is not None:
            with suppress(ProcessLookupError):  # it may have ended
                os.kill(feed.process.pid, signal.SIGCONT)
            assert feed.process.wait(60) is not None


def put(feed: Feed, *records: Record) -> None:
    for each in records:
        feed.put(each, time.perf_counter())


def until(true: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_requests_reach_the_ghosts(feeds: Callable[..., Feed]) -> None:
    feed = feeds()
    assert not feed.is_open
    feed.handle({"op": "shadow_add", "policies": [RAG]})
    assert feed.is_open
    put(feed, *[record(0), record(0), record(0, 32)])
    until(lambda: feed.to_json().get("requests") == 3)
    found = feed.to_json()
    assert (found["state"], found["refused"], found["ended"]) == ("running", "", None)
    assert (found["policies"], found["dropped_requests"]) == (1, 0)
    assert found["shadows"][0]["name"] == "rag"
    assert found["active"]["hit_tokens"] == 48 + 16, "the last token is always computed"
    assert found["us_per_request"] > 0


def test_another_running_policy_starts_them_again(feeds: Callable[..., Feed], active: ActivePolicy) -> None:
    feed = feeds()
    feed.handle({"op": "shadow_add", "policies": [RAG]})
    put(feed, record(0), record(0))
    until(lambda: feed.to_json().get("requests") == 2)
    active.digest = "b" * 64
    put(feed, record(0))
    until(lambda: feed.to_json().get("requests") == 1)
    assert feed.to_json()["active"]["hit_tokens"] == 0


def test_a_process_that_is_slow_costs_records_not_time(feeds: Callable[..., Feed]) -> None:
    feed = feeds(max_backlog_bytes=200_000)
    feed.handle({"op": "shadow_add", "policies": [RAG]})
    put(feed, record(0))
    until(lambda: feed.to_json().get("requests") == 1)
    assert feed.process is not None
    os.kill(feed.process.pid, signal.SIGSTOP)
    count = 3000  # 50 MB, where the socket and the backlog hold less
    put(feed, *[record(number, 2048) for number in range(count)])
    dropped = feed.dropped_requests
    assert 0 < dropped < count
    assert feed.requests == 1 + count - dropped
    os.kill(feed.process.pid, signal.SIGCONT)
    until(lambda: feed.to_json().get("requests") == feed.requests)  # and what was not dropped arrives
    assert feed.to_json()["dropped_requests"] == dropped
    assert feed.to_json()["state"] == "running"


def test_a_process_that_dies_is_said_and_counted(
    feeds: Callable[..., Feed], active: ActivePolicy, caplog: pytest.LogCaptureFixture
) -> None:
    feed = feeds()
    feed.handle({"op": "shadow_add", "policies": [RAG]})
    put(feed, record(0))
    assert feed.process is not None
    feed.process.kill()
    feed.process.wait()
    put(feed, record(1), record(2))
    found = feed.to_json()
    assert found["state"] == "dead"
    assert found["ended"] == "the ghost process is gone (exit code -9)"
    assert found["dropped_requests"] == 2
    assert caplog.text.count("the ghost process is gone") == 1
    assert not active.fallbacks, "no decision failed"
    feed.handle({"op": "shadow_add", "policies": [LFU]})  # starts all of them again
    put(feed, record(0))
    until(lambda: feed.to_json().get("requests") == 1)
    assert [row["name"] for row in feed.to_json()["shadows"]] == ["rag", "stock-lru"]


def test_a_fault_in_the_description_ends_the_shadows(feeds: Callable[..., Feed], active: ActivePolicy) -> None:
    feed = feeds()
    feed.handle({"op": "shadow_add", "policies": [RAG]})
    feed.put(None, time.perf_counter())  # type: ignore[arg-type]
    assert active.fallbacks["shadows"] == 1
    assert not feed.is_open
    assert feed.to_json()["state"] == "dead"


def test_a_fault_in_the_ghosts_is_said(feeds: Callable[..., Feed]) -> None:
    feed = feeds()
    feed.handle({"op": "shadow_add", "policies": [{**RAG, "eviction": {"policy": "nonsense"}}]})
    until(lambda: feed.to_json().get("fault"))
    assert "nonsense" in feed.to_json()["fault"]


def test_most_shadows(feeds: Callable[..., Feed]) -> None:
    feed = feeds()
    feed.handle({"op": "shadow_add", "policies": [RAG] * (MAX_SHADOWS + 1)})
    assert "at most 8" in feed.to_json()["refused"]
    assert feed.to_json()["state"] == "none"


def test_the_process_goes_with_its_scheduler(feeds: Callable[..., Feed]) -> None:
    feed = feeds()
    feed.handle({"op": "shadow_add", "policies": [RAG]})
    assert feed.process is not None
    feed.handle({"op": "shadow_clear"})
    assert feed.process.wait(60) == 0
    assert feed.to_json()["state"] == "none"


def test_a_recording(feeds: Callable[..., Feed], tmp_path: Path) -> None:
    """Beside shadows and without; a second one at a time is refused."""
    feed = feeds(rank=3)
    feed.handle({"op": "shadow_record", "path": str(tmp_path / "trace")})
    put(feed, record(0, cache_salt="secret", session_id="secret too"), record(0))
    feed.handle({"op": "shadow_record", "path": str(tmp_path / "another")})
    assert feed.to_json()["refused"] == "another recording is under way"
    feed.handle({"op": "shadow_end_record"})
    file = tmp_path / "trace-3"
    until(lambda: (feed.to_json(), file.exists())[1])
    assert feed.process is not None
    assert feed.process.wait(60) == 0, "nobody needs it any more"
    trace = Trace(str(file))
    assert trace.info.format == "recorded"
    salted, plain = trace.requests()
    assert (salted.info.cache_salt, salted.info.session_id) == ("#0", "#0")
    assert (plain.input_tokens, plain.arrival_ms, plain.duration_ms) == (64, 0, 5)
    assert salted.blocks == [0, 1, 2, 3]
    assert plain.blocks == [4, 5, 6, 7], "another tenant's prefix is another one"
    assert "secret" not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0


def test_a_recording_that_grows_too_large_ends(tmp_path: Path) -> None:
    recording = Recording(str(tmp_path / "trace"), "sglang", 16, max_bytes=500)
    for _ in range(10):
        recording.add(record(), [1, 2, 3, 4])
    assert recording.is_full
    assert 0 < recording.rows < 10
    recording.end()
    assert len((tmp_path / "trace").read_text().splitlines()) == recording.rows


def test_a_board_shows_the_latest_whole_text() -> None:
    board = Board.create()
    assert board.read() is None
    for text in (b"first", b"second, which is longer", b"third"):
        board.write(text)
        assert board.read() == text
    os.pwrite(board.fd, b"half of the next", 0 if board._number % 2 == 1 else Board._PLACE_BYTES)
    assert board.read() == b"third"
    with pytest.raises(ValueError, match="bytes"):
        board.write(b"x" * Board._PLACE_BYTES)
    board.close()


def test_messages_in_pieces() -> None:
    """A large record goes through a socket that takes a part of it at a time."""
    ours, theirs = socket.socketpair()
    sender, receiver = Sender(ours), Receiver(theirs)
    messages = [("a", b"x" * 3_000_000), {"op": "b"}, ("c", 1)]
    for message in messages:
        assert sender.put(message)
    found: list[Any] = []
    while len(found) < 3:
        sender.flush()
        found += receiver.receive() or ()
    assert found == messages
    assert sender.is_empty
    sender.close()
    assert receiver.receive() is None
    theirs.close()


def test_a_worker_survives_what_it_does_not_understand() -> None:
    worker = Worker()
    worker.handle({"no": "op"})
    worker.handle((1, 2))
    assert "TypeError" in worker.report()["fault"] or "KeyError" in worker.report()["fault"]
