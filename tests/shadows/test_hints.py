"""Hints in the feed: a ghost follows those that its policy allows, and a recording keeps them without their words."""

from __future__ import annotations

import json
import marshal
import random
import tempfile
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from kvpolicy.eviction.envelope import Action, Envelope, read_envelope
from kvpolicy.hints import action, envelope
from kvpolicy.replay.policies import from_result, load
from kvpolicy.replay.run import Settings, replay
from kvpolicy.replay.trace import Trace
from kvpolicy.shadows.ghosts import Ghosts, Pool
from kvpolicy.shadows.process import Worker
from kvpolicy.shadows.recording import Recording
from kvpolicy.shadows.records import Record, plain_hints

POOL_TOKENS, PAGE_TOKENS = 1024, 16
POLICY = """
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {name: hinted}
eviction:
  policy: lru
  rules:
    - {name: planners, match: request.hint_class == 'planner', retain: {weight: 8, budget: 20%}}
hints: {allow: [retain, demote, expire, class], classes: [planner], max_ttl: 15m, budget: 30%}
"""
LRU = load("lru", "sglang").flat


@pytest.fixture(scope="module")
def hinted(tmp_path_factory: pytest.TempPathFactory) -> str:
    (file := tmp_path_factory.mktemp("policy") / "hinted.yaml").write_text(POLICY)
    return str(file)


def record(number: int, tokens: int, hints: Any = None, arrival_ms: int = 0, **more: Any) -> Record:
    content = array("q", range(number, number + tokens)).tobytes()
    asked = plain_hints(read_envelope(hints))
    return Record(arrival_ms, arrival_ms, tokens, 1, 0, None, None, None, None, content, asked)._replace(**more)


def conversation(seed: int = 1, count: int = 400) -> list[Record]:
    """Prompts that come again, with every kind of hint among them, by sessions and by name."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        at = draw.randrange(24)
        actions = [
            action("retain", f"turn {at}", ttl=draw.choice(["20s", 60, "10m"]), **draw.choice([{}, {"tokens": 40}])),
            action("demote", "d"),
            action("expire", "e", **draw.choice([{}, {"of": f"turn {draw.randrange(24)}"}])),
            action("class", "c", name=draw.choice(["planner", "stranger"])),
        ]
        hints = envelope(*draw.sample(actions, draw.choice([0, 0, 1, 1, 2])))
        session = draw.choice([None, f"session {at}"])
        found.append(record(10_000 * at, 80 + at % 5 * 24, hints, 700 * number, session_id=session))
    return found


def ghosts(records: Iterable[Record], *flats: dict[str, Any]) -> list[int]:
    """The hit tokens of each policy's ghost."""
    found = Ghosts(Pool("sglang", "tokens", PAGE_TOKENS, POOL_TOKENS), b"key")
    found.start(flats[0], list(flats[1:]))
    for each in records:
        found.serve(each, found.pages.of(each))
    report = found.report()
    rows = [report["active"], *report["shadows"]]
    assert [row["faults"] for row in rows] == [0] * len(rows)
    return [row["hit_tokens"] for row in rows]


def write(path: Path, records: Iterable[Record]) -> None:
    """As the process does on a server that runs the policy."""
    worker = Worker()
    pool = {"engine": "sglang", "content": "tokens", "page_tokens": PAGE_TOKENS, "pool_tokens": POOL_TOKENS}
    flat = {**LRU, "hints": {"allow": ["class"], "classes": ["planner"]}}
    worker.handle({"op": "start", "pool": pool, "active": json.dumps(flat), "shadows": "[]"})
    worker.handle({"op": "record", "path": str(path)})
    for each in records:
        worker.handle(marshal.loads(marshal.dumps(tuple(each))))
    worker.handle({"op": "end_record"})
    assert worker.fault == ""


def test_a_ghost_follows_the_hints_that_its_policy_allows(hinted: str) -> None:
    flood = [record(100_000 * number, 96) for number in range(1, 20)]
    kept = record(0, 96, envelope(action("retain", "kept", ttl="10m")))
    policy = load(hinted, "sglang").flat
    assert ghosts([kept, *flood, record(0, 96)], LRU, policy) == [0, 80], "the last token is always computed"
    assert ghosts([kept, *flood, record(0, 96, arrival_ms=700_000)], LRU, policy) == [0, 80]
    # Its time is over: policy time moves with requests.
    assert ghosts([kept, record(5000, 16, arrival_ms=700_000), *flood, record(0, 96)], LRU, policy) == [0, 0]


def test_a_recording_replays_as_the_ghosts_ran(hinted: str, tmp_path: Path) -> None:
    policy = load(hinted, "sglang")
    classes = {**policy.flat, "hints": {"allow": ["class"], "classes": ["planner"]}}
    plain, ruled, found = ghosts(conversation(), LRU, classes, policy.flat)
    assert len({plain, ruled, found}) == 3, "classes make a difference here, and so do the other hints"
    write(tmp_path / "trace", conversation())
    result = replay(Trace(str(tmp_path / "trace")), [from_result(policy, "hinted")], Settings((POOL_TOKENS,)))
    (run,) = result.runs
    assert sum(run.hit_tokens) == found


def test_a_row_with_hints_to_the_letter(tmp_path: Path) -> None:
    hints = envelope(
        action("retain", "the client's words", ttl="5m", tokens=40),
        action("expire", "more words", of="the client's words"),
        action("class", "more words", name="planner"),
        action("retain", "unreadable words", ttl="soon"),
    )
    other = envelope(action("class", "c", name="a class that nobody named"), action("demote", "d"))
    write(tmp_path / "trace", [record(0, 33, hints), record(0, 33, other), record(0, 33)])
    first, second, third = map(json.loads, (tmp_path / "trace").read_text().splitlines())
    assert first["kv_hints"] == {
        "actions": [
            {
                "action_id": "#0",
                "action_type": "kv.retain",
                "action_version": "1.0",
                "payload": {"ttl": "300000ms", "tokens": 40},
            },
            {"action_id": "#1", "action_type": "kv.expire", "action_version": "1.0", "payload": {"of": "#0"}},
            {"action_id": "#1", "action_type": "kv.class", "action_version": "1.0", "payload": {"name": "planner"}},
        ]
    }
    assert [each["payload"] for each in second["kv_hints"]["actions"]] == [{"name": "#0"}, {}]
    assert "kv_hints" not in third
    assert "words" not in (tmp_path / "trace").read_text()
    assert "nobody named" not in (tmp_path / "trace").read_text()


NAMES = st.sampled_from(["a", "b", "planner", "#0", "\ud800", "x" * 200])
ACTIONS = st.fixed_dictionaries(
    {
        "action_id": NAMES,
        "action_type": st.sampled_from(["kv.retain", "kv.demote", "kv.expire", "kv.class", "kv.fetch"]),
        "action_version": st.sampled_from(["1.0", "2.0"]),
        "payload": st.fixed_dictionaries(
            {},
            optional={
                "ttl": st.sampled_from(["5m", "7ms", "soon", "0.29s"]) | st.integers() | st.floats(),
                "tokens": st.integers(-1, 2**60),
                "of": NAMES,
                "name": NAMES,
            },
        ),
    }
)


def recorded(folder: str, one: Record) -> Path:
    recording = Recording(f"{folder}/trace", "sglang", PAGE_TOKENS, named_classes=("planner",))
    recording.add(Record(*marshal.loads(marshal.dumps(tuple(one)))), [0, 1])
    recording.end()
    return Path(folder, "trace")


@settings(deadline=None)
@given(st.lists(ACTIONS, max_size=17))
def test_what_is_recorded_is_what_was_asked_for(actions: list[dict[str, Any]]) -> None:
    """But for names, which are numbers, and ttls beyond ten years."""
    sent = read_envelope({"actions": actions})
    assert sent is not None
    with tempfile.TemporaryDirectory() as folder:
        (request,) = Trace(str(recorded(folder, record(0, 33, {"actions": actions})))).requests()
    wanted = [each for each in sent.actions if not each.fault]
    found = () if request.info.hints is None else request.info.hints.actions
    assert [each.fault for each in found] == [""] * len(wanted)
    numbers: dict[tuple[str, str | None], str | None] = {}
    for before, after in zip(wanted, found, strict=True):
        assert (after.name, after.tokens) == (before.name, before.tokens)
        assert after.ttl_ms == (None if before.ttl_ms is None else min(before.ttl_ms, 10 * 365 * 24 * 3_600_000))
        for kind, name, number in (
            ("action", before.action_id, after.action_id),
            ("action", before.of, after.of),
            ("class", before.class_name, after.class_name),
        ):
            assert numbers.setdefault((kind, name), number) == number
    assert len({(kind, number) for (kind, _), number in numbers.items()}) == len(numbers), "none for two names"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["kv.retain", "1"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["actions", "action_id", "action_type", "action_version", "payload", "ttl", "of", "x"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(JSON)
def test_whatever_stands_in_a_row_is_read(value: Any) -> None:
    """As a server does: what cannot be read asks for nothing."""
    with tempfile.TemporaryDirectory() as folder:
        file = recorded(folder, record(0, 33))
        file.write_text(json.dumps({**json.loads(file.read_text()), "kv_hints": value}))
        (request,) = Trace(str(file)).requests()
    hints = request.info.hints
    assert hints is None or isinstance(hints, Envelope)
    assert all(isinstance(each, Action) for each in (hints.actions if hints is not None else ()))
