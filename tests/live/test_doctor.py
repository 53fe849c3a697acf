"""Every finding on a block of a policy that was really run, with the one fault that it must see put in."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kvpolicy.cli.main import main
from kvpolicy.live.doctor import examine
from kvpolicy.live.symptoms import SYMPTOMS
from tests.live.blocks import healthy_block
from tests.live.test_client import serving

Fault = Callable[[dict[str, Any]], Any]

CONFLICT = "cache.page_size: the policy asks for 16 at live.yaml:3:3, but --page-size 64 was given explicitly"


def runs_another(block: dict[str, Any], conflict: bool) -> None:
    block["settings"]["cache.page_size"]["effective"] = 64
    if conflict:
        block["conflicts"].append(CONFLICT)


FAULTS: dict[str, tuple[str, Fault, str]] = {
    "KVP701": ("error", lambda block: runs_another(block, conflict=True), "--page-size 64 was given"),
    "KVP702": ("info", lambda block: runs_another(block, conflict=False), "prefers 16 (live.yaml:3:3), 64 runs"),
    "KVP704": ("error", lambda block: block.update(live={"rank_victim_digests": ["ab", "cd"]}), "ab, cd"),
    "KVP711": ("error", lambda block: block.update(fallbacks={"evict": 2, "policy": 1}), "3 calls"),
    "KVP712": ("error", lambda block: block.update(allocator={"faults": {"double_free": 3}}), "double_free 3"),
    "KVP713": ("warning", lambda block: block["why"].update(fault="RuntimeError: x"), "RuntimeError: x"),
    "KVP721": ("warning", lambda block: block["traffic"].update(new_salts=180), "180 of 200 requests"),
    "KVP722": (
        "warning",
        lambda block: block["traffic"].update(short_prompts=40),
        "(20%) are shorter than a page of 16",
    ),
    "KVP731": ("warning", lambda block: block["occupancy"].update(used_tokens=1590), "hold 99% of the pool"),
    "KVP732": (
        "warning",
        lambda block: block["why"].update(evicted_before_reuse_tokens={"none": 3000}),
        "evicted tokens (",
    ),
    "KVP733": ("warning", lambda block: block["protected"]["kept"].update(tokens=1500), "protect 97% of the pool"),
    "KVP734": ("info", lambda block: block.update(evicted_tokens={}, evictions={}), "nothing was evicted"),
}


def test_a_healthy_server_has_nothing() -> None:
    block = healthy_block()
    assert sum(block["evicted_tokens"].values()) > 3000
    assert examine([block]) == []
    assert examine([block, block]) == []


@pytest.mark.parametrize("code", FAULTS)
def test_a_fault_is_found(code: str) -> None:
    severity, put_in, words = FAULTS[code]
    block = healthy_block()
    put_in(block)
    (finding,) = examine([block])
    assert (finding.code, finding.severity, finding.rank) == (code, severity, None)
    assert words in finding.message
    assert [found.rank for found in examine([healthy_block(), block])] == [1]


def test_ranks_that_differ() -> None:
    other = healthy_block()
    other["digest"] = "cd" * 32
    (finding,) = examine([healthy_block(), other])
    assert (finding.code, finding.severity, finding.rank) == ("KVP703", "error", None)


def test_every_symptom_has_its_fault() -> None:
    assert set(SYMPTOMS) == {*FAULTS, "KVP703", "KVP741", "KVP742", "KVP743", "KVP744"}  # these: test_kv_events.py


def test_an_older_or_a_bare_status_is_examined_too() -> None:
    """The engine's own order: no traffic, no memory, no rules, no occupancy."""
    block = healthy_block()
    for key in ("traffic", "why", "protected", "tenants", "occupancy"):
        del block[key]
    assert examine([block]) == []


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    block = healthy_block()
    with serving({"/kvpolicy": (200, {"engines": [block]})}) as url:
        assert main(["doctor", "--url", url]) == 0
        assert capsys.readouterr().out == "policy live-test: no problems\n"
    runs_another(block, conflict=True)
    block["traffic"]["new_salts"] = 180
    with serving({"/kvpolicy": (200, {"engines": [block]})}) as url:
        assert main(["doctor", "--url", url]) == 1
        first, help_, *_, last = capsys.readouterr().out.splitlines()
        assert first == f"KVP701 error: {CONFLICT}"
        assert help_.startswith("        help: ")
        assert last == "policy live-test: 1 error, 1 warning"
        assert main(["doctor", "--url", url, "--format", "json"]) == 1
        assert [found["code"] for found in json.loads(capsys.readouterr().out)] == ["KVP701", "KVP721"]


@pytest.mark.parametrize("command", ["doctor", "top", "why"])
def test_a_server_that_does_not_answer(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serving({}) as url:
        assert main([command, "--url", url]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"kvpolicy {command}: http://127.0.0.1:")
    assert err.count("\n") == 1
