"""What `kvpolicy why` says of a status."""

from __future__ import annotations

import json

import pytest

from kvpolicy.cli.main import main
from kvpolicy.live.why import report
from tests.live.blocks import PAGE_TOKENS, healthy_block
from tests.live.test_client import serving


def test_misses_are_told_with_rule_score_and_room() -> None:
    block = healthy_block()
    text = "\n".join(report(block, most=2))
    miss = block["why"]["misses"][0]
    assert "from the start of a prompt, evicted" in text
    wanted = f"{-(-miss['wanted_tokens'] // PAGE_TOKENS)} pages ({miss['wanted_tokens']:,} tokens)"
    assert (
        f"under no rule (score {miss['score']:.4g}, cutoff {miss['cutoff']:.4g}, 1 hit); keeping it needed {wanted}"
        in text
    )
    assert text.count("missing") == 2
    assert "nine tenths" not in text
    miss.update(rule="kept", score=None, start_tokens=32)
    text = "\n".join(report(block, most=1))
    assert "missing after the first 32, evicted" in text
    assert f"by rule kept (idle for {miss['idle_requests']} requests, 1 hit)" in text


def test_what_cannot_be_told() -> None:
    block = healthy_block()
    block["traffic"]["short_prompts"] = 7
    assert "7 of 200 prompts were shorter than a page: nothing of them is cached" in report(block, 1)
    block["why"]["misses"] = []
    assert "no miss that an eviction explains" in report(block, 1)
    block["why"]["fault"] = "RuntimeError: x"
    assert any("after a fault: RuntimeError: x" in line for line in report(block, 1))
    block["evictions"] = {}
    assert list(report(block, 1))[-1] == "nothing was evicted yet"
    del block["why"]
    assert list(report(block, 1))[-1].endswith("start the server with KVPOLICY_WHY=1")
    block["core"] = "engine"
    assert list(report(block, 1))[-1].startswith("the engine's own order serves (")


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    block = healthy_block()
    with serving({"/kvpolicy": (200, {"engines": [block, block]})}) as url:
        assert main(["why", "--url", url, "--misses", "1"]) == 0
        out = capsys.readouterr().out
        assert out.startswith("data-parallel rank 0:\npolicy live-test")
        assert out.count("missing") == 2
        assert main(["why", "--url", url, "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out) == [block["why"]] * 2
