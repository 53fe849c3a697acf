"""A policy is swapped in a real SGLang server that serves: nothing in its cache is lost, and nothing else changes."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import StartServer
from tests.live.asking import apply, flat, load, post, rollback, tokens
from tests.live.shadowing import HINTS, check_hints, check_recording, check_shadows
from tools.server import Server

pytestmark = pytest.mark.server

POOL_TOKENS = 1024
HEAD = "apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {name: %s}\ncache: {page_size: %d}\n"
PLAIN = HEAD % ("plain", 16) + "eviction: {policy: lru}\n"
RULES = (
    HEAD % ("rules", 16)
    + """
eviction:
  policy: lru
  rules:
    - name: kept
      match: request.priority == 1 and not is_output
      retain: {weight: 8, ttl: 600s, budget: 40%}
"""
)
SCORE = HEAD % ("score", 16) + "eviction: {score: hits}\n"
BIGGER_PAGES = HEAD % ("bigger-pages", 32) + "eviction: {policy: lfu}\n"
NOTHING = (
    HEAD % ("nothing", 16) + "eviction: {policy: lru, rules: [{name: all, match: size_tokens >= 0, admit: never}]}\n"
)
PLANNERS = "eviction: {policy: lru, rules: [{name: p, match: request.hint_class == 'planner', retain: {weight: 8}}]}\n"
HINTED = HEAD % ("hinted", 16) + PLANNERS + HINTS
POLICIES = {
    "nothing": NOTHING,
    "hinted": HINTED,
    "plain": PLAIN,
    "rules": RULES,
    "score": SCORE,
    "bigger": BIGGER_PAGES,
}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    for name, text in POLICIES.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return {name: tmp_path / f"{name}.yaml" for name in POLICIES}


def cached(server: Server, prompt: list[int], **request: int) -> int:
    return int(server.generate(prompt, 2, **request)["meta_info"]["cached_tokens"])


def flood(server: Server, seed: int) -> None:
    for i in range(2 * POOL_TOKENS // 120):
        cached(server, tokens(10_000 * seed + i, 120))


@pytest.mark.parametrize("version", ["0.5.18", "0.5.20", "0.5.23"])
def test_a_swap_keeps_what_is_cached(server: StartServer, files: dict[str, Path], tmp_path: Path, version: str) -> None:
    env = {"KVPOLICY_APPLY": "loopback"}
    with server(version, policy=files["plain"], max_total_tokens=POOL_TOKENS, env=env) as running:
        if version != "0.5.18":  # one of each way in which a finished request is cached; here for the server's sake
            check_shadows(running, running.flush_cache)
            check_recording(running, running.flush_cache, tmp_path)
            running.flush_cache()
        policies = {name: flat(path, "sglang") for name, path in files.items()}
        started = running.status()["digest"]
        resident = [tokens(seed) for seed in (1, 2, 3)]
        outputs = [running.generate(prompt, 4)["output_ids"] for prompt in resident]

        # To a policy that needs metadata and time, where the one before kept neither.
        status, answer = apply(running, policies["rules"], expect_digest=started[:12])
        assert status == 200, answer
        block = running.status()
        assert block["digest"] == answer["applied"] != started
        assert block["name"] == "rules"
        assert block["core"] == "kvpolicy"
        assert block["live"]["swaps"] == 1
        assert [cached(running, prompt) for prompt in resident] == [112] * 3
        assert [running.generate(prompt, 4)["output_ids"] for prompt in resident] == outputs

        # It decides: what its rule keeps survives a flood, what it does not is gone.
        cached(running, tokens(4), priority=1)
        flood(running, 1)
        assert cached(running, tokens(4), priority=1) == 112
        assert cached(running, tokens(1)) == 0

        # The next policy takes over what this one recorded: hits, and so the order.
        for _ in range(3):
            cached(running, tokens(5))
        assert apply(running, policies["score"])[0] == 200
        flood(running, 2)
        assert cached(running, tokens(5)) == 112

        # What cannot be done while running is refused as a whole; so is what nobody may expect.
        digest = running.status()["digest"]
        status, answer = apply(running, policies["bigger"])
        assert status == 422
        assert "cache.page_size: needs a restart" in answer["why"]
        status, answer = apply(running, policies["plain"], expect_digest=started)
        assert status == 409, answer
        assert apply(running, {**policies["plain"], "extends": "/etc/passwd"})[0] == 400
        status, answer = apply(running, {**policies["plain"], "eviction": {"policy": "nonsense"}})
        assert status == 400
        assert answer["diagnostics"][0]["code"]
        assert post(running, "/kvpolicy/apply", b"{" * 300_000)[0] == 413
        assert post(running, "/kvpolicy/apply", b"{")[0] == 400
        assert running.status()["digest"] == digest

        # Back, and off: the engine's own order serves, and a later policy finds everything again.
        assert rollback(running)[0] == 200
        assert running.status()["name"] == "rules"
        resident = [tokens(seed) for seed in (6, 7)]
        for prompt in resident:
            cached(running, prompt, priority=1)
        assert post(running, "/kvpolicy/apply", {"off": True})[0] == 200
        block = running.status()
        assert (block["core"], block["core_reason"]) == ("engine", "switched off")
        assert [cached(running, prompt) for prompt in resident] == [112] * 2
        before = block["evictions"]
        flood(running, 3)
        assert running.status()["evictions"] == before
        assert cached(running, resident[0], priority=1) == 0  # no rule held it
        assert rollback(running)[0] == 200
        assert running.status()["core"] == "kvpolicy"
        assert running.status()["fallbacks"] == {}

        if version != "0.5.18":
            assert apply(running, policies["hinted"])[0] == 200
            check_hints(running, running.flush_cache, files["hinted"])


def test_swaps_under_load(server: StartServer, files: dict[str, Path]) -> None:
    env = {"KVPOLICY_APPLY": "loopback"}
    metrics = "--enable-metrics"
    with server("0.5.20", metrics, policy=files["plain"], max_total_tokens=POOL_TOKENS, env=env) as running:
        policies = [flat(files[name], "sglang") for name in ("rules", "score", "plain")]
        prompts = [tokens(seed, 100) for seed in range(20)]  # twice the pool
        expected = [running.generate(prompt, 4)["output_ids"] for prompt in prompts]
        start_s = time.monotonic()
        with load(running, prompts) as answers:
            for i in range(20):
                status, answer = apply(running, policies[i % 3])
                assert status == 200, answer
                if i % 5 == 4:
                    assert post(running, "/kvpolicy/apply", {"off": True})[0] == 200
        assert len(answers) > 20
        assert all(output == expected[which] for which, output in answers), time.monotonic() - start_s
        block = running.status()
        assert block["live"]["swaps"] == 24
        assert block["fallbacks"] == {}
        running.flush_cache()  # the engine's own check of lost slots runs when it is idle
        assert cached(running, prompts[0]) == 0
        check_the_guard(running, files["nothing"])


def check_the_guard(running: Server, bad: Path) -> None:
    """Under a policy that caches nothing the hit rate falls: the guard says so, and the old policy is back."""
    digest = running.status()["digest"]
    twice = [prompt for seed in range(2000) for prompt in 2 * [tokens(50_000 + seed, 100)]]
    guard = ["--guard", "hit_rate", "--baseline", "3s", "--for", "30s"]
    words = [sys.executable, "-m", "kvpolicy.cli.main", "apply", str(bad), "--url", running.url, *guard]
    with load(running, twice, clients=1):
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    found = re.search(r"Got worse: hit_rate \(.*\): ([0-9.]+) before, ([0-9.]+) since", done.stderr)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) > 0.4  # 96 of 100 tokens of every other prompt
    assert float(found[2]) < 0.2
    assert running.status()["digest"] == digest


@pytest.mark.parametrize(
    ("flags", "answers"),
    [((), {None: 403}), (("--admin-api-key", "secret"), {None: 401, "wrong": 401, "secret": 200})],
)
def test_who_may_change_the_policy(
    server: StartServer, files: dict[str, Path], flags: tuple[str, ...], answers: dict[str | None, int]
) -> None:
    with server("0.5.20", *flags, policy=files["plain"], max_total_tokens=POOL_TOKENS) as running:
        body = {"policy": flat(files["score"], "sglang")}
        for key, expected in answers.items():
            assert post(running, "/kvpolicy/apply", body, key)[0] == expected
            assert post(running, "/kvpolicy/rollback", {}, key)[0] == expected
