"""`kvpolicy top`: one frame of any status fits 80 columns; a terminal gets frames until Ctrl-C, a pipe one."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from array import array
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from kvpolicy.cli.main import main
from kvpolicy.live.client import Sample
from kvpolicy.live.view import WIDTH, Snapshot, frame
from tests.live.blocks import healthy_block
from tests.live.test_client import serving

METRICS = 'sglang:prompt_tokens_total{model_name="m"} 100.0\nsglang:num_running_reqs 3\nsglang:num_queue_reqs 0\n'


def lines(*blocks: dict[str, Any], samples: tuple[Sample, ...] = (), before: Snapshot | None = None) -> list[str]:
    return list(frame(Snapshot(10.0, blocks, samples), before))


def test_what_a_frame_says() -> None:
    block = healthy_block()
    shown = lines(block)
    text = "\n".join(shown)
    assert "policy     live-test, digest abababababab, score (decay)" in text
    assert re.search(r"hits       25% of 9,600 prompt tokens", text)
    (bar,) = (line for line in shown if line.startswith("pool       ["))
    assert "#" not in bar
    assert bar.count("=") == round(67 * block["occupancy"]["evictable_tokens"] / 1600)
    kept = block["protected"]["kept"]["tokens"]
    assert 0 < kept <= 400
    assert re.search(rf"^kept +{kept} +\d+%", text, re.M)
    evicted = block["evicted_tokens"]["none"]
    assert re.search(rf"^none +{evicted:,} +\d+%$", text, re.M)
    assert re.search(r"^gold +[\d,]+ +\d+% +[\d,]+ +10% +90%$", text, re.M)
    assert "a secret salt" not in json.dumps(block), "salts may be secrets"
    assert re.search(r"^#1 ", text, re.M)


def test_what_a_frame_says_of_hints() -> None:
    text = "\n".join(lines(healthy_block()))
    assert "hints      retain 1 accepted, 1 clamped; demote 1 refused; envelope 1 ignored" in text
    assert re.search(r"^late +retain +clamped +48 +48  ttl 300 s is\.\.\.$", text, re.M)
    assert re.search(r"^early +retain +accepted +0 +48  retained by.*$", text, re.M)
    assert re.search(r"^one-off +demote +refused +the policy's.*$", text, re.M)


def test_rates_are_since_the_frame_before() -> None:
    block, earlier = healthy_block(), healthy_block()
    earlier["evicted_tokens"]["none"] -= 480
    earlier["traffic"].update(prompt_tokens=9500, hit_tokens=2375)
    text = "\n".join(lines(block, before=Snapshot(8.0, [earlier], ())))
    assert "now 240 tokens/s" in text
    assert "; now 25%" in text
    assert re.search(r"^none .* 240 +\d+%$", text, re.M)


def test_the_engines_own_order_has_the_engines_own_hit_rate() -> None:
    block = healthy_block()
    for key in ("traffic", "why", "protected", "tenants", "occupancy"):
        del block[key]
    assert any("hits       not known" in line for line in lines(block))
    asked, found = (
        Sample("vllm:prefix_cache_queries_total", {}, 200.0),
        Sample("vllm:prefix_cache_hits_total", {}, 50.0),
    )
    assert any("hits       25% of 200 prompt tokens" in line for line in lines(block, samples=(asked, found)))
    assert any("hits       0% of 200 prompt tokens" in line for line in lines(block, samples=(asked,)))


def shadows() -> dict[str, Any]:
    """What a server with two shadows says of them, after real ghosts."""
    from kvpolicy.replay.policies import load
    from kvpolicy.shadows.ghosts import Ghosts, Pool
    from kvpolicy.shadows.records import Record

    ghosts = Ghosts(Pool("sglang", "tokens", 16, 512), b"key")
    ghosts.start(load("lru").flat, [load("mru").flat, load("long_context").flat])
    for number in range(200):
        content = array("q", range(number % 7, number % 7 + 100)).tobytes()
        record = Record(number, number, 100, 0, 64, None, None, None, None, content)
        ghosts.serve(record, ghosts.pages.of(record))
    return {"state": "running", "policies": 2, "since_s": 90.0, "dropped_requests": 3, "fault": None, **ghosts.report()}


def test_shadows_beside_what_runs() -> None:
    block = healthy_block()
    block["shadows"] = found = shadows()
    text = "\n".join(lines(block))
    assert "shadows    200 requests in 90 s, 20,000 prompt tokens, 64% hit here; 3 dropped" in text
    ours, other = found["active"], found["shadows"][0]
    assert ours["hit_tokens"] != other["hit_tokens"]
    assert re.search(rf"^\* lru +{ours['hit_tokens']:,} +\d+% +100% +\d+%$", text, re.M)
    assert re.search(
        rf"^mru +{other['hit_tokens']:,} .* {ours['hit_tokens'] - other['hit_tokens']:,} +\d+%$", text, re.M
    )
    assert "of the last 128 requests" in text
    assert max(map(len, text.splitlines())) <= WIDTH
    block["shadows"] = {**found, "state": "dead", "ended": "the ghost process is gone (exit code -9)"}
    assert "none any more: the ghost process is gone (exit code -9); 3 dropped" in "\n".join(lines(block))
    block["shadows"] = {**found, "state": "none", "policies": 0}
    assert "shadows" not in "\n".join(lines(block))


def test_everything_fits_80_columns() -> None:
    block = healthy_block()
    block["name"] = "n" * 200
    block["conflicts"] = ["c" * 300]
    block["pool_tokens"] = block["occupancy"]["pool_tokens"] = 10**12
    block["fallbacks"] = {f"reason{i}": 10**9 for i in range(9)}
    for i in range(40):
        block["protected"][f"rule-{i}-" + "r" * 60] = {"tokens": 10**11, "budget_tokens": None}
        block["evicted_tokens"][f"rule-{i}-" + "r" * 60] = 10**12
        block["tenants"].append({**block["tenants"][0], "name": "\x1b[31mt" * 20, "resident_tokens": 10**11})
    shown = lines(block, block, before=Snapshot(0.0, [healthy_block(), healthy_block()], ()))
    assert max(map(len, shown)) <= WIDTH
    assert len(shown) < 80
    assert not any("\x1b" in line for line in shown)
    assert sum(line.startswith("none") for line in shown) == 2, "what nothing protected is always shown"


def test_a_pipe_gets_one_frame(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"/kvpolicy": (200, {"engines": [healthy_block()]}), "/metrics": (200, METRICS)}) as url:
        assert main(["top", "--url", url]) == 0
        out = capsys.readouterr().out
        assert "3 requests running, 0 waiting" in out
        assert "\x1b" not in out
        assert main(["top", "--url", url, "--format", "json"]) == 0
        data = json.loads(capsys.readouterr().out)
    assert data["engines"][0]["name"] == "live-test"
    assert data["metrics"][0]["name"] == "sglang:prompt_tokens_total"


def test_a_terminal_gets_frames_until_ctrl_c() -> None:
    with serving({"/kvpolicy": (200, {"engines": [healthy_block()]})}) as url:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "kvpolicy.cli.main", "top", "--url", url, "--interval", "0.05"]
        hears = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it
        process = subprocess.Popen(
            command, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}, preexec_fn=hears
        )
        os.close(theirs)
        seen = b""
        try:
            while seen.count(b"every 0.05 s") < 3:
                seen += os.read(ours, 65536)
            process.send_signal(signal.SIGINT)
            with suppress(OSError):  # the end of a terminal that nobody holds any more
                while more := os.read(ours, 65536):  # read to the end: a full terminal holds up whoever writes to it
                    seen += more
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
            os.close(ours)
    assert seen.startswith(b"\x1b[2J\x1b[H")
    assert b"Traceback" not in seen
