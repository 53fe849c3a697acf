"""The way from a request to a swap on every scheduler: all of them or none, whoever fails on the way."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kvpolicy.compiler import compile_policy
from kvpolicy.eviction import EvictionIndex
from kvpolicy.language import digest_of, policy_from_flat
from kvpolicy.live.preparation import Both, Preparation
from kvpolicy.live.server import MAX_BODY_BYTES, Desk, may_read, why_forbidden
from kvpolicy.live.swap import Candidate, LiveSwap
from kvpolicy.runtime.active import ActivePolicy, Setting
from tests.eviction.tree import Tree
from tests.live.test_preparation import TreeUnits


def flat(policy: str = "lru", **sections: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kvpolicy/v1",
        "kind": "KVPolicy",
        "metadata": {"name": f"test-{policy}"},
        "cache": {"page_size": 16},
        "eviction": {"policy": policy},
        **sections,
    }


class TreeSeat:
    """A seat over a tree of 300 leaves."""

    def __init__(self, refuses: str = "") -> None:
        document = flat()
        policy = policy_from_flat(document, "sglang")
        compiled = compile_policy(policy, "sglang")
        self.active = ActivePolicy(policy, document, digest_of(document), "scheduler", compiled=compiled)
        self.tree = Tree(compiled.eviction.make_index(10_000))
        for _ in range(300):
            self.tree.insert()
        self.refuses = refuses
        self.counts: Counter[str] = Counter()

    def refusals(self, after: Candidate) -> list[str]:
        return [self.refuses] if self.refuses else []

    def prepare(self, after: Candidate) -> Preparation | None:
        self.counts["prepare"] += 1
        if after.is_off:
            return None
        preparation = Preparation(after.compiled.eviction, self.tree.index, TreeUnits(self.tree))
        self.tree.index = Both(self.tree.index, preparation, lambda: None)  # type: ignore[assignment]
        return preparation

    def abandon(self, preparation: Preparation | None) -> None:
        self.counts["abandon"] += 1
        if isinstance(self.tree.index, Both):
            self.tree.index = self.tree.index.before

    def commit(self, after: Candidate, preparation: Preparation | None) -> None:
        if preparation is not None:
            self.tree.index = preparation.index
        self.active.become(after.policy, after.flat, after.digest, after.source, after.compiled, after.is_off)

    def retire(self, units: int) -> bool:
        self.counts["retire"] += 1
        return self.counts["retire"] % 2 == 1


class Ranks:
    """Tensor-parallel ranks of one scheduler: each handles every message; verdicts are gathered in lockstep."""

    def __init__(self, *seats: TreeSeat) -> None:
        self.seats = seats
        self._round: list[dict[str, Any]] = []
        self.swaps = [LiveSwap(seat, "sglang") for seat in seats]

    def handle(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        # Real ranks block in the gather; here each one's own verdict is taken on a copy of its state first.
        verdicts: list[dict[str, Any]] = []
        for swap in self.swaps:
            probe = LiveSwap(swap._seat, "sglang")
            probe._candidate, probe._preparation, probe._previous = swap._candidate, swap._preparation, swap._previous
            judge = {"prepare": probe._start, "commit": probe._may_commit}.get(message["op"])
            if judge is not None:
                verdicts.append(probe._alone(judge, message).to_json())
                if message["op"] == "prepare":
                    probe._forget()
        for swap in self.swaps:
            swap._gather = lambda own: verdicts or [own]  # slices: each its own
            swap.handle(message)
        return [swap.answer.to_json() for swap in self.swaps]


class Schedulers:
    """A channel to several data-parallel groups of one rank each; ``breaks`` may change what one answers."""

    engine = "sglang"

    def __init__(self, *seats: TreeSeat) -> None:
        self.seats = seats
        self.swaps = [LiveSwap(seat, "sglang") for seat in seats]
        self.sent: list[str] = []
        self.before: Callable[[int, dict[str, Any]], None] = lambda group, message: None

    async def send(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        self.sent.append(message["op"])
        await asyncio.sleep(0)
        for group, swap in enumerate(self.swaps):
            self.before(group, message)
            swap.handle(json.loads(json.dumps(message)))
        return [swap.answer.to_json() for swap in self.swaps]

    async def running(self) -> dict[str, Any]:
        return self.seats[0].active.flat

    async def effective(self) -> dict[str, Any]:
        return {setting.path: setting.effective for setting in self.seats[0].active.settings.values()}

    @property
    def digests(self) -> set[str]:
        return {seat.active.digest for seat in self.seats}


def apply(channel: Any, policy: dict[str, Any], **more: Any) -> tuple[int, dict[str, Any]]:
    return asyncio.run(Desk(channel).apply(json.dumps({"policy": policy, **more}).encode()))


def test_all_groups_swap_and_the_plan_is_told() -> None:
    channel = Schedulers(TreeSeat(), TreeSeat())
    status, answer = apply(channel, flat("lfu"), source="new.yaml")
    assert (status, answer["engines"]) == (200, 2)
    assert answer["applied"] == digest_of(flat("lfu"))
    assert [change["path"] for change in answer["plan"]["changes"]] == ["metadata.name", "eviction.policy"]
    assert channel.digests == {answer["applied"]}
    assert [swap.swaps for swap in channel.swaps] == [1, 1]
    assert all(seat.counts["retire"] for seat in channel.seats)


def test_rollback_returns_and_returns_again() -> None:
    channel = Schedulers(TreeSeat())
    first = channel.seats[0].active.digest
    assert asyncio.run(Desk(channel).rollback(b""))[0] == 422
    second = apply(channel, flat("lfu"))[1]["applied"]
    for expected in (first, second):
        assert asyncio.run(Desk(channel).rollback(b"{}"))[0] == 200
        assert channel.digests == {expected}


def test_off_and_back() -> None:
    channel = Schedulers(TreeSeat())
    status, answer = asyncio.run(Desk(channel).apply(b'{"off": true}'))
    assert (status, answer["off"]) == (200, True)
    assert channel.seats[0].active.is_off
    assert asyncio.run(Desk(channel).rollback(b"{}"))[0] == 200
    assert not channel.seats[0].active.is_off


def test_one_group_that_refuses_keeps_all_on_the_old_policy() -> None:
    channel = Schedulers(TreeSeat(), TreeSeat(refuses="no such thing here"))
    before = channel.digests
    status, answer = apply(channel, flat("lfu"))
    assert status == 422
    assert answer["why"] == ["engine 1: no such thing here"]
    assert channel.digests == before
    assert channel.sent[-1] == "abort"
    assert all(not isinstance(seat.tree.index, Both) for seat in channel.seats)


def test_one_group_that_fails_at_the_commit_has_all_put_back() -> None:
    channel = Schedulers(TreeSeat(), TreeSeat())

    def overtaken(group: int, message: dict[str, Any]) -> None:
        if group == 1 and message["op"] == "commit" and channel.sent.count("commit") == 1:
            channel.swaps[1].handle({"op": "abort"})

    channel.before = overtaken
    before = channel.digests
    assert apply(channel, flat("lfu"))[0] == 409
    assert channel.digests == before


def test_restart_class_changes_refuse_the_whole() -> None:
    channel = Schedulers(TreeSeat())
    status, answer = apply(channel, flat("lfu", cache={"page_size": 32}, backend={"attention": "triton"}))
    assert status == 422
    assert answer["why"] == ["cache.page_size: needs a restart", "backend.attention: needs a restart"]
    assert channel.seats[0].counts["prepare"] == 0


def test_a_lost_update_is_refused() -> None:
    channel = Schedulers(TreeSeat())
    first = channel.seats[0].active.digest
    assert apply(channel, flat("lfu"), expect_digest=first[:8])[0] == 200
    status, answer = apply(channel, flat("slru"), expect_digest=first)
    assert status == 409
    assert first[:16] in answer["error"]


def test_one_change_at_a_time() -> None:
    channel = Schedulers(TreeSeat())
    desk = Desk(channel)

    async def both() -> list[int]:
        bodies = [json.dumps({"policy": flat(name)}).encode() for name in ("lfu", "slru")]
        return sorted(status for status, _ in await asyncio.gather(*map(desk.apply, bodies)))

    assert asyncio.run(both()) == [200, 409]


def test_a_client_that_is_cut_off_leaves_the_old_policy() -> None:
    channel = Schedulers(TreeSeat())
    before = channel.digests

    async def cut() -> None:
        task = asyncio.create_task(Desk(channel).apply(json.dumps({"policy": flat("lfu")}).encode()))
        while "prepare" not in channel.sent:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cut())
    assert channel.sent[-1] == "abort"
    assert channel.digests == before
    assert not isinstance(channel.seats[0].tree.index, Both)


def test_a_client_that_is_cut_off_after_the_commit_changes_nothing() -> None:
    """All groups have the new policy, and what it replaced is taken apart to the end."""
    channel = Schedulers(TreeSeat(), TreeSeat())

    async def cut() -> int:
        task = asyncio.create_task(Desk(channel).apply(json.dumps({"policy": flat("lfu")}).encode()))
        while "commit" not in channel.sent:
            await asyncio.sleep(0)
        task.cancel()
        return (await task)[0]

    assert asyncio.run(cut()) == 200
    assert channel.digests == {digest_of(flat("lfu"))}
    assert channel.sent[-1] == "continue"
    assert "abort" not in channel.sent


def test_schedulers_that_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvpolicy.live.server.TIMEOUT_S", 0.05)
    channel = Schedulers(TreeSeat())
    send = channel.send

    async def hang(message: dict[str, Any]) -> list[dict[str, Any]]:
        if message["op"] == "continue":
            await asyncio.sleep(10)
        return await send(message)

    channel.send = hang  # type: ignore[method-assign]
    status, answer = apply(channel, flat("lfu"))
    assert status == 500
    assert "the old policy runs" in answer["error"]
    assert channel.sent[-1] == "abort"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b"[" * 100_000, 400),
        (b"{}", 400),
        (b'{"policy": "/etc/passwd"}', 400),
        (json.dumps({"policy": {**flat(), "extends": "builtin:rag"}}).encode(), 400),
        (json.dumps({"policy": flat("nonsense")}).encode(), 400),
        (json.dumps({"policy": flat(), "expect_digest": 3}).encode(), 400),
        (b" " * (MAX_BODY_BYTES + 1), 413),
    ],
)
def test_bad_requests_reach_no_scheduler(body: bytes, status: int) -> None:
    channel = Schedulers(TreeSeat())
    assert asyncio.run(Desk(channel).apply(body))[0] == status
    assert channel.sent == []


def test_what_is_wrong_with_a_policy_is_said_by_diagnostics() -> None:
    status, answer = apply(Schedulers(TreeSeat()), flat("nonsense"))
    assert status == 400
    assert answer["diagnostics"][0]["code"].startswith("KVP")


KEYS = ["secret", "second"]


@pytest.mark.parametrize(
    ("authorization", "peer", "keys", "environ", "may"),
    [
        (None, "127.0.0.1", [], {}, False),
        (None, "127.0.0.1", [], {"KVPOLICY_APPLY": "loopback"}, True),
        (None, "::1", [], {"KVPOLICY_APPLY": "loopback"}, True),
        (None, "10.0.0.7", [], {"KVPOLICY_APPLY": "loopback"}, False),
        (None, None, [], {"KVPOLICY_APPLY": "loopback"}, False),
        (None, "127.0.0.1", [], {"KVPOLICY_APPLY": "anyone"}, False),
        (None, "127.0.0.1", KEYS, {"KVPOLICY_APPLY": "loopback"}, False),
        ("Bearer wrong", "127.0.0.1", KEYS, {}, False),
        ("Basic secret", "127.0.0.1", KEYS, {}, False),
        ("Bearer secret", "10.0.0.7", KEYS, {}, True),
        ("bearer second", "10.0.0.7", KEYS, {}, True),
        ("Bearer ", "10.0.0.7", KEYS, {}, False),
    ],
)
def test_who_may_change_the_policy(
    authorization: str | None, peer: str | None, keys: list[str], environ: dict[str, str], may: bool
) -> None:
    assert (why_forbidden(authorization, peer, keys, environ) is None) == may


def test_who_may_see_the_policy() -> None:
    assert may_read(None, "127.0.0.1", [])
    assert not may_read(None, "10.0.0.7", [])
    assert not may_read(None, "127.0.0.1", KEYS)
    assert may_read("Bearer second", "10.0.0.7", KEYS)


# -- ranks --


def prepared(ranks: Ranks, policy: dict[str, Any]) -> list[dict[str, Any]]:
    answers = ranks.handle({"op": "prepare", "flat": policy})
    while any(answer["more"] for answer in answers):
        answers = ranks.handle({"op": "continue"})
    return answers


def test_ranks_take_over_together() -> None:
    ranks = Ranks(TreeSeat(), TreeSeat())
    assert {answer["state"] for answer in prepared(ranks, flat("lfu"))} == {"ready"}
    answers = ranks.handle({"op": "commit", "digest": digest_of(flat("lfu"))})
    assert {answer["state"] for answer in answers} == {"applied"}
    assert all(len(swap.to_json()["rank_victim_digests"]) == 2 for swap in ranks.swaps)
    orders = [[node.name for node in seat.tree.next_victims()] for seat in ranks.seats]
    assert orders[0] == orders[1]


def test_a_rank_that_says_no_stops_all() -> None:
    ranks = Ranks(TreeSeat(), TreeSeat(refuses="not here"))
    answers = ranks.handle({"op": "prepare", "flat": flat("lfu")})
    assert {(answer["state"], *answer["why"]) for answer in answers} == {("refused", "rank 1: not here")}
    assert all(not isinstance(seat.tree.index, Both) for seat in ranks.seats)


def test_a_rank_whose_policy_failed_meanwhile_stops_all() -> None:
    ranks = Ranks(TreeSeat(), TreeSeat())
    prepared(ranks, flat("lfu"))
    preparation = ranks.swaps[1]._preparation
    assert preparation is not None
    preparation.fail(RuntimeError("only here"))
    answers = ranks.handle({"op": "commit", "digest": digest_of(flat("lfu"))})
    assert {answer["state"] for answer in answers} == {"failed"}
    assert all("only here" in answer["why"][0] for answer in answers)
    assert {seat.active.digest for seat in ranks.seats} == {digest_of(flat())}
    assert all(type(seat.tree.index) is EvictionIndex for seat in ranks.seats)


def test_a_rank_that_raises_is_waited_for_and_stops_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its verdict goes into the gather: the other ranks wait there."""
    seat = TreeSeat()
    monkeypatch.setattr(seat, "prepare", lambda after: 1 / 0)
    gathered: list[dict[str, Any]] = []

    def gather(own: dict[str, Any]) -> list[dict[str, Any]]:
        gathered.append(own)
        return [own]

    swap = LiveSwap(seat, "sglang", gather)
    swap.handle({"op": "prepare", "flat": flat("lfu")})
    assert [verdict["state"] for verdict in gathered] == ["failed"]
    assert swap.answer.kind == "failed"


def test_a_later_prepare_takes_the_place_of_an_earlier_one() -> None:
    seat = TreeSeat()
    swap = LiveSwap(seat, "sglang")
    assert swap.handle({"op": "prepare", "flat": flat("lfu")})
    assert swap.handle({"op": "prepare", "flat": flat("slru")})
    while swap.handle({"op": "continue"}):
        pass
    swap.handle({"op": "commit", "digest": digest_of(flat("lfu"))})
    assert swap.answer.kind == "conflict"
    assert seat.active.digest == digest_of(flat())


def test_a_commit_before_all_is_in_changes_nothing() -> None:
    seat = TreeSeat()
    swap = LiveSwap(seat, "sglang")
    assert swap.handle({"op": "prepare", "flat": flat("lfu")})
    swap.handle({"op": "commit", "digest": digest_of(flat("lfu"))})
    assert swap.answer.kind == "failed"
    assert seat.active.digest == digest_of(flat())
    assert type(seat.tree.index) is EvictionIndex


@pytest.mark.parametrize("message", [{}, {"op": "nonsense"}, {"op": "prepare"}, {"op": "prepare", "flat": {}}])
def test_a_message_that_is_none_changes_nothing(message: dict[str, Any]) -> None:
    seat = TreeSeat()
    swap = LiveSwap(seat, "sglang")
    assert not swap.handle(message)
    assert swap.answer.kind == "failed"
    assert seat.active.digest == digest_of(flat())


def test_a_wish_that_what_runs_meets_is_swapped_and_told() -> None:
    """The plan that the client made, the server's refusals and the plan it answers with agree."""
    seat = TreeSeat()
    seat.active.settings["page_size"] = Setting("cache.page_size", "--page-size", 16, 16)
    channel = Schedulers(seat)
    status, answer = apply(channel, flat("lfu", cache={"page_size": {"prefer": 32, "accept": [16, 32]}}))
    assert (status, answer["plan"]["class"]) == (200, "hot")
    setting = seat.active.settings["page_size"]
    assert (setting.requested, setting.effective, setting.decided_by) == (32, 16, "accept list")
    status, answer = apply(channel, flat("lfu", cache={"page_size": {"prefer": 32, "accept": [32, 64]}}))
    assert status == 422
    assert answer["why"] == ["cache.page_size: needs a restart"]
