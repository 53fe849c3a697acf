"""Ghosts of live traffic against replay of the same requests: they are the same simulators, so nothing may differ."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvpolicy.language import load_policy
from kvpolicy.replay.pages import Pager
from kvpolicy.replay.policies import from_result, load
from kvpolicy.replay.run import Replay, Settings, replay
from kvpolicy.replay.simulator import Simulator
from kvpolicy.replay.trace import Trace
from kvpolicy.shadows.ghosts import Ghosts, Pool
from kvpolicy.shadows.recording import Recording
from kvpolicy.shadows.records import Record
from kvpolicy.shadows.windows import FIRST_WINDOW_REQUESTS

TRACES = Path(__file__).resolve().parents[2] / "traces"
CONVERSATION = TRACES / "mooncake_conversation_first_half.jsonl.gz"
POOL_TOKENS, PAGE_TOKENS = 2_000_000, 512
CANDIDATES = ("long_context", "gdsf", "lfu")


def records(limit: int) -> Iterator[Record]:
    """The public conversation trace as a vLLM of pages of 512 tokens would tell it; its last block is partly full."""
    for request in Trace(str(CONVERSATION), limit=limit).requests():
        full = request.blocks[: request.input_tokens // PAGE_TOKENS]
        content = array("q", full).tobytes()
        yield Record(
            request.arrival_ms, request.arrival_ms, request.input_tokens, 0, 0, None, None, None, None, content
        )


def ghosts(stream: Iterator[Record], engine: str = "vllm") -> Ghosts:
    found = Ghosts(Pool(engine, "hashes", PAGE_TOKENS, POOL_TOKENS), b"key")
    found.start(load("lru", engine).flat, [load(name, engine).flat for name in CANDIDATES])
    for record in stream:
        found.serve(record, found.pages.of(record))
    return found


def exact(name: str, stream: Iterator[Record]) -> int:
    """Hit tokens of replay's own simulator on the same requests."""
    pager = Pager(PAGE_TOKENS, PAGE_TOKENS, is_exact=True)
    simulator = Simulator(
        from_result(load(name, "vllm"), name),
        POOL_TOKENS,
        PAGE_TOKENS,
        "page",
        exact_tokens=True,
        has_prefix_hashes=True,
        ahead_pages=0,
    )
    from kvpolicy.replay.requests import Request

    for record in stream:
        full = array("q")
        full.frombytes(record.content)
        request = Request(record.arrival_ms, record.input_tokens, 0, list(full), list(full), record.info)
        simulator.request(request, list(full), pager.reusable(len(full), record.input_tokens), list(full))
    return sum(simulator.stats.hit_tokens)


def test_a_ghost_finds_what_replay_finds() -> None:
    """Error of a ghost that was told of every request: none."""
    report = ghosts(records(800)).report()
    assert report["requests"] == 800
    rows = [report["active"], *report["shadows"]]
    assert [row["hit_tokens"] for row in rows] == [exact(name, records(800)) for name in ("lru", *CANDIDATES)]
    assert len({row["hit_tokens"] for row in rows}) >= 3, "the policies differ here"
    for row in rows:
        assert row["regret_active_tokens"] == rows[0]["hit_tokens"] - row["hit_tokens"]
        assert row["prefill_tokens"] == report["input_tokens"] - row["hit_tokens"]
        assert 0 < row["saved_quadratic"] < row["saved_linear"]


@pytest.mark.parametrize("one_in", [20, 4])
def test_what_dropped_requests_cost(one_in: int) -> None:
    """Ghosts that missed every n-th request: their hit rates, and the differences between policies, are off by no more
    than docs/live.md says."""
    stated = {20: 0.015, 4: 0.04}[one_in]

    def some() -> Iterator[Record]:
        return (record for number, record in enumerate(records(1500)) if number % one_in)

    def rates(stream: Iterator[Record]) -> list[float]:
        report = ghosts(stream, "sglang").report()
        return [row["saved_linear"] for row in (report["active"], *report["shadows"])]

    whole, part = rates(records(1500)), rates(some())
    assert part != whole
    for exactly, found in zip(whole, part, strict=True):
        assert abs(found - exactly) < stated
        assert abs((found - part[0]) - (exactly - whole[0])) < stated


def test_the_clairvoyant_of_the_first_window_is_replays() -> None:
    """It starts with the ghosts, on an empty cache."""
    report = ghosts(records(FIRST_WINDOW_REQUESTS)).report()
    window = report["window"]
    assert window["requests"] == FIRST_WINDOW_REQUESTS
    with Recorded(records(FIRST_WINDOW_REQUESTS)) as result:
        bound = result.bound("clairvoyant", POOL_TOKENS)
        assert bound is not None
        assert window["hit_tokens"] == sum(bound.hit_tokens) > 0
    for row in (report["active"], *report["shadows"]):
        assert row["window_hit_tokens"] == row["hit_tokens"]
        assert row["regret_clairvoyant_tokens"] == window["hit_tokens"] - row["hit_tokens"] >= 0


def test_windows_follow_one_another() -> None:
    """They double; the clairvoyant of a later one starts warm and stays ahead of every policy."""
    sizes = []
    found = Ghosts(Pool("vllm", "hashes", PAGE_TOKENS, POOL_TOKENS), b"key")
    found.start(load("lru", "vllm").flat, [load("long_context", "vllm").flat])
    before = None
    for record in records(1000):
        found.serve(record, found.pages.of(record))
        report = found.report()
        if report["window"] != before:
            before = report["window"]
            sizes.append(before["requests"])
            assert report["active"]["regret_clairvoyant_tokens"] >= 0
            assert report["shadows"][0]["regret_clairvoyant_tokens"] >= 0
    assert sizes == [128, 256, 512]


def test_tokens_become_pages() -> None:
    """From token ids: pages of one token are the tokens, larger ones hashes of their prefix, equal where it is."""
    tokens = array("q", [5, 6, 7, 8, 9])
    record = Record(0, 0, 5, 0, 0, None, None, None, None, tokens.tobytes())
    one = Ghosts(Pool("sglang", "tokens", 1, 100), b"key").pages
    assert not one.are_hashes
    assert one.of(record) == tokens
    two = Ghosts(Pool("sglang", "tokens", 2, 100), b"key").pages
    pages = two.of(record)
    assert len(pages) == 2
    other = two.of(record._replace(content=array("q", [5, 6, 1, 8]).tobytes()))
    assert other[0] == pages[0]
    assert other[1] != pages[1]
    swapped = two.of(record._replace(content=array("q", [1, 6, 7, 8]).tobytes()))
    assert swapped[1] != pages[1], "a page names its prefix"
    assert Ghosts(Pool("sglang", "tokens", 2, 100), b"another").pages.of(record) != pages, "nobody else can guess them"


def test_a_policy_that_fails_is_said() -> None:
    flat = {**load_policy("stock_lru", "sglang").flat, "eviction": {"policy": "nonsense"}}
    found = Ghosts(Pool("sglang", "tokens", 1, 100), b"key")
    with pytest.raises(Exception, match="nonsense"):
        found.start(flat, [flat])


class Recorded:
    """Replay of these records as a recording."""

    def __init__(self, stream: Iterator[Record]) -> None:
        self._stream = stream

    def __enter__(self) -> Replay:
        import tempfile

        self._folder = tempfile.TemporaryDirectory()
        path = f"{self._folder.name}/trace.jsonl"
        recording = Recording(path, "vllm", PAGE_TOKENS)
        for record in self._stream:
            pages = array("q")
            pages.frombytes(record.content)
            recording.add(record, pages)
        recording.end()
        eviction = from_result(load("lru", "vllm"), "lru")
        return replay(Trace(path), [eviction], Settings((POOL_TOKENS,), granularity="page"))

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


def test_a_recording_replays_as_the_ghosts_ran() -> None:
    with Recorded(records(600)) as result:
        assert result.requests == 600
        (run,) = result.runs
        assert sum(run.hit_tokens) == exact("lru", records(600)) > 0
