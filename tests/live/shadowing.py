"""What shadow policies and recordings must do on a real server, the same for both engines."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvpolicy.hints import action, envelope, with_hints
from tests.live.asking import post
from tools.server import Server, VllmServer

__all__ = ["HINTS", "check_hints", "check_recording", "check_shadows", "command"]


def command(running: Server, *words: str, code: int = 0) -> str:
    """What `kvpolicy ...` prints of that server."""
    arguments = [sys.executable, "-m", "kvpolicy.cli.main", *words, "--url", running.url]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def traffic(seed: int, count: int = 60) -> list[tuple[list[int], int]]:
    """(prompt, output tokens): shared openings, repeats, one-off prompts."""
    draw = random.Random(seed)

    def text(length: int) -> list[int]:
        return [draw.randrange(3, 250) for _ in range(length)]

    openings = [text(96), text(64)]
    known: list[list[int]] = []
    made = []
    for _ in range(count):
        if known and draw.random() < 0.4:
            prompt = draw.choice(known[-8:]) + text(draw.randrange(0, 30))
        else:
            prompt = draw.choice(openings) + text(draw.randrange(1, 90))
        known.append(prompt[:300])
        made.append((prompt[:300], draw.choice([1, 2, 9])))
    return made


def send(running: Server, requests: list[tuple[list[int], int]]) -> list[int]:
    """The cached tokens that the server counted for each."""
    return [int(running.generate(prompt, new)["meta_info"]["cached_tokens"]) for prompt, new in requests]


def settled(running: Server, requests: int) -> dict[str, Any]:
    """The server's `shadows` once that many requests went through the ghosts."""
    deadline_s = time.monotonic() + 60
    while True:
        shadows: dict[str, Any] = running.status()["shadows"]
        if shadows.get("requests") == requests or time.monotonic() > deadline_s:
            return shadows
        time.sleep(0.1)


def check_shadows(running: Server, flush: Callable[[], None]) -> None:
    """On a server that runs lru over an empty cache: the ghost of what runs finds what the server finds."""
    flush()
    assert "3 shadows run on 1 engine(s)" in command(running, "shadow", "add", "long_context", "mru", "lfu")
    requests = traffic(1)
    cached = send(running, requests)
    shadows = settled(running, len(requests))
    assert (shadows["state"], shadows["dropped_requests"], shadows["fault"]) == ("running", 0, None)
    assert shadows["input_tokens"] == sum(len(prompt) for prompt, _ in requests)
    assert shadows["engine_hit_tokens"] == sum(cached) > 0
    active = shadows["active"]
    assert active["hit_tokens"] == sum(cached), "the ghost of the running policy is the server's cache"
    assert active["evicted_tokens"] > 0
    rows = {row["name"]: row for row in shadows["shadows"]}
    assert set(rows) == {"long-context", "mru", "lfu"}
    for row in rows.values():
        assert row["regret_active_tokens"] == sum(cached) - row["hit_tokens"]
        assert row["prefill_tokens"] == shadows["input_tokens"] - row["hit_tokens"]
        assert row["faults"] == 0
    assert len({row["hit_tokens"] for row in rows.values()}) > 1, "the policies differ on this traffic"
    shown = command(running, "shadow", "list")
    assert f"{len(requests)} requests in " in shown
    assert max(map(len, command(running, "top").splitlines())) <= 80
    assert "the server refuses" in command(running, "shadow", "add", *["lru"] * 6, code=1)

    # A ghost process that dies is said and counted; requests are served as before.
    os.kill(shadows["pid"], signal.SIGKILL)
    _until(lambda: running.status()["shadows"]["state"] == "dead")
    send(running, traffic(2, 3))
    shadows = running.status()["shadows"]
    assert shadows["dropped_requests"] == 3
    assert "the ghost process is gone" in command(running, "shadow", "list")
    assert "No shadows run" in command(running, "shadow", "clear")
    assert running.status()["shadows"]["state"] == "none"
    assert running.status()["fallbacks"] == {}


def check_recording(running: Server, flush: Callable[[], None], folder: Path, *replay: str) -> None:
    """A trace recorded from an empty cache on, replayed: the cached tokens that the server counted."""
    flush()
    file = folder / "recorded.jsonl.gz"
    recording = _record(running, file)
    requests = traffic(3, 45)
    cached = send(running, requests)
    recording.send_signal(signal.SIGINT)  # Ctrl-C
    _, said = recording.communicate(timeout=120)
    assert f"{len(requests)} requests recorded in " in said, said
    row = replayed(running, file, "lru", *replay)
    assert (row["policy"], row["requests"]) == ("lru", len(requests))
    assert row["hit_tokens"] == sum(cached) > 0
    assert row["evicted_tokens"] > 0
    _until(lambda: running.status()["shadows"]["pid"] is None)  # nobody needs it any more
    check_abandoned_recording(running, folder)


def check_abandoned_recording(running: Server, folder: Path) -> None:
    """One recording at a time, and one whose client is gone is none."""
    recording = _record(running, folder / "abandoned")
    assert post(running, "/kvpolicy/record", {"for_s": 0.1})[0] == 409
    recording.kill()
    recording.communicate()
    _until(lambda: post(running, "/kvpolicy/record", {"for_s": 0.1})[0] == 200)
    assert post(running, "/kvpolicy/record", {"end": True})[0] == 409
    assert not (folder / "abandoned").exists()
    _until(lambda: running.status()["shadows"]["pid"] is None)
    assert running.status()["fallbacks"] == {}


#: What a policy follows for :func:`check_hints`, beside a rule that retains what planners use.
HINTS = "hints: {allow: [retain, demote, expire, class], classes: [planner], budget: 40%}\n"


def hinted(seed: int) -> list[tuple[list[int], list[dict[str, Any]]]]:
    """(prompt, what it asks for): documents that somebody wants kept, between prompts that nobody repeats."""
    draw = random.Random(seed)

    def text(length: int) -> list[int]:
        return [draw.randrange(3, 250) for _ in range(length)]

    kept, named, ended, left = (text(100) for _ in range(4))
    flood = [(text(120), []) for _ in range(18)]
    return [
        (kept, [action("retain", "kept", ttl="10m")]),
        (named, [action("class", "who", name="planner")]),
        (ended, [action("retain", "ended", ttl="10m", tokens=64)]),
        *flood[:9],
        (left, [action("demote", "left")]),
        (ended, []),
        (ended, [action("expire", "done", of="ended")]),
        *flood[9:],
        *((prompt, []) for prompt in (kept, named, ended, left)),
    ]


def check_hints(running: Server, flush: Callable[[], None], policy: Path, *replay: str) -> None:
    """On a server that runs ``policy``, which follows HINTS: its own ghost and a replayed recording find what it finds,
    and a ghost that no hint reaches finds less."""
    flush()
    command(running, "shadow", "add", "lru")
    file = policy.with_suffix(".jsonl")
    recording = _record(running, file)
    requests = hinted(7)
    cached = [
        int(running.generate(prompt, 2, **_with_hints(running, actions))["meta_info"]["cached_tokens"])
        for prompt, actions in requests
    ]
    kept, named, ended, left = cached[-4:]
    assert min(kept, named) >= 64, "retained, by a hint and by a rule for the class that a hint names"
    assert (ended, left) == (0, 0)
    shadows = settled(running, len(requests))
    assert (shadows["dropped_requests"], shadows["fault"]) == (0, None)
    assert shadows["active"]["hit_tokens"] == sum(cached)
    assert shadows["shadows"][0]["hit_tokens"] < sum(cached) - 64
    recording.send_signal(signal.SIGINT)
    _, said = recording.communicate(timeout=120)
    assert f"{len(requests)} requests recorded in " in said, said
    assert replayed(running, file, str(policy), *replay)["hit_tokens"] == sum(cached)
    command(running, "shadow", "clear")
    assert running.status()["fallbacks"] == {}


def _with_hints(running: Server, actions: list[dict[str, Any]]) -> dict[str, Any]:
    if not actions:
        return {}
    if isinstance(running, VllmServer):
        return with_hints({}, envelope(*actions), engine="vllm")
    return {"sampling_params": with_hints({}, envelope(*actions), engine="sglang")}


def replayed(running: Server, file: Path, policy: str, *replay: str) -> dict[str, Any]:
    """The row of that policy in a replay of the file over the server's pool."""
    pool = str(running.status()["pool_tokens"])
    arguments = ["replay", str(file), "--policy", policy, "--capacity", pool, "--format", "json", *replay]
    words = [sys.executable, "-m", "kvpolicy.cli.main", *arguments]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)
    row: dict[str, Any] = report["rows"][0]
    return {"requests": report["requests"], **row}


def _record(running: Server, file: Path) -> subprocess.Popen[str]:
    """A recording that has begun, for longer than any test takes."""
    words = [sys.executable, "-m", "kvpolicy.cli.main", "record", "--url", running.url, "-o", str(file), "--for", "1h"]
    recording = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    _until(lambda: running.status().get("shadows", {}).get("recorded_requests") is not None)
    return recording


def _until(is_so: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
