"""The launcher's proof, with each way it can fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvpolicy.runtime import handshake

DIGEST = "ab" * 32


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path)


def test_every_scheduler_reported(directory: str) -> None:
    handshake.report(directory, {"digest": DIGEST, "core": "kvpolicy"})
    (report,) = handshake.verify(directory, DIGEST, [os.getpid()])
    assert report["core"] == "kvpolicy"


def test_a_wrapper_process_between_launcher_and_scheduler_counts_as_the_scheduler(directory: str) -> None:
    handshake.report(directory, {"digest": DIGEST})
    assert handshake.verify(directory, DIGEST, [os.getppid()])


def test_a_silent_scheduler_is_named(directory: str) -> None:
    handshake.report(directory, {"digest": DIGEST})
    with pytest.raises(handshake.Mismatch, match=r"1 of 2 .*pid 999999"):
        handshake.verify(directory, DIGEST, [os.getpid(), 999999])


def test_another_digest_is_named(directory: str) -> None:
    handshake.report(directory, {"digest": "cd" * 32})
    with pytest.raises(handshake.Mismatch, match="cdcdcdcdcdcd"):
        handshake.verify(directory, DIGEST, [os.getpid()])


def test_a_scheduler_that_joins_later_tells_nobody(tmp_path: Path) -> None:
    handshake.report(str(tmp_path / "gone"), {"digest": DIGEST})
    assert list(tmp_path.iterdir()) == [], "a directory that its launcher has removed must not come back"


def test_no_process_to_ask_is_no_proof(directory: str) -> None:
    with pytest.raises(handshake.Mismatch):
        handshake.verify(directory, DIGEST, [])


def test_a_schedulers_last_words_reach_the_launcher(directory: str) -> None:
    assert handshake.failure(directory) is None
    handshake.report_failure(directory, "kvpolicy: because")
    assert handshake.failure(directory) == "kvpolicy: because"


def test_last_words_without_a_place_are_dropped(tmp_path: Path) -> None:
    handshake.report_failure(str(tmp_path / "gone"), "kvpolicy: because")
    assert list(tmp_path.iterdir()) == []


def test_the_directory_is_private_and_goes_away() -> None:
    made = handshake.new_directory()
    assert os.stat(made).st_mode & 0o077 == 0
    handshake.discard(made)
    handshake.discard(made)
    assert not os.path.exists(made)
