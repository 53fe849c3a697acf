"""The commands that ask a running server, against real ones: what happened there is what they say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvpolicy.live import engine_metrics
from tests.conftest import StartServer
from tests.live.policies import POOL_TOKENS, tokens, write_policy
from tests.live.test_monitoring import samples
from tools.environment import EngineEnv
from tools.server import Server, run_server

pytestmark = [pytest.mark.engine, pytest.mark.server]

EVENTS = {"0.5.18": 25718, "0.5.23": 25723, "vllm": 25732}  # ports


@pytest.fixture(params=["0.5.18", "0.5.23", "vllm"])
def serving(
    request: pytest.FixtureRequest,
    server: StartServer,
    vllm_env: Callable[..., EngineEnv],
    tiny_model: Path,
    tmp_path: Path,
) -> Iterator[tuple[Server, int]]:
    """A server with little room, and its page size."""
    with _serving(request.param, server, vllm_env, tiny_model, tmp_path) as running:
        yield running


@contextmanager
def _serving(
    engine: str, server: StartServer, vllm_env: Callable[..., EngineEnv], model: Path, folder: Path
) -> Iterator[tuple[Server, int]]:
    if engine == "vllm":
        pool = ("--num-gpu-blocks-override", str(POOL_TOKENS // 32 + 1), "--max-model-len", "512", *_events("vllm"))
        policy = write_policy(folder, 32)
        with run_server(vllm_env(), model, *pool, policy=policy, log_path=folder / "log") as running:
            yield running, 32
    else:
        policy = write_policy(folder, 16)
        flags = ("--enable-metrics", *_events(engine))
        with server(engine, *flags, policy=policy, max_total_tokens=POOL_TOKENS) as running:
            yield running, 16


def _events(engine: str) -> tuple[str, str]:
    """One port a kind of server: tests run side by side."""
    endpoint = f"tcp://*:{EVENTS[engine]}"  # with another host both engines connect instead of listening
    enable = {"enable_kv_cache_events": True} if engine == "vllm" else {}
    return "--kv-events-config", json.dumps({**enable, "publisher": "zmq", "endpoint": endpoint})


def ask(command: str, running: Server, *arguments: str, code: int = 0) -> str:
    words = [sys.executable, "-m", "kvpolicy.cli.main", command, "--url", running.url, *arguments]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (code, "")
    return done.stdout


def total(running: Server, metric: str, label: str = "") -> float:
    return sum(v for name, v in running.metrics().items() if re.match(metric + r"(\{|$)", name) and label in name)


def test_a_real_server(serving: tuple[Server, int]) -> None:
    """One server for all commands: each start costs half a minute."""
    running, page = serving
    assert "nothing was evicted yet" in ask("why", running)

    plain, kept, shared = tokens(1, 200), tokens(2, 200), tokens(3, 100)
    running.generate(plain, 2)
    running.generate(kept, 2, priority=1)
    running.generate([*shared, *tokens(4, 100)], 2)
    running.generate([*shared, *tokens(5, 100)], 2)  # in two parts from now on
    for seed in range(100, 112):  # protected too, so that protected ones must go
        running.generate(tokens(seed, 200), 2, priority=1)
    for prompt in (plain, kept, [*shared, *tokens(4, 100)]):
        assert running.generate(prompt, 2)["meta_info"]["cached_tokens"] == 0
    cut = 200 // page * page  # of whole pages
    why = json.loads(ask("why", running, "--format", "json"))[0]
    assert why["fault"] is None
    both, second, first = why["misses"][:3]
    assert [miss["rule"] for miss in (first, second, both)] == ["none", "kept", "none"]
    assert [miss["tokens"] for miss in (first, second, both)] == [cut, cut, cut]
    assert [miss["start_tokens"] for miss in (first, second, both)] == [0, 0, 0]
    assert second["evicted_ago_requests"] < first["evicted_ago_requests"], "protected, so evicted later"
    assert both["units"] > 1, "the shared part, and what followed it"
    for miss in (first, second, both):
        assert (miss["score"] > 0.5) == (miss["hits"] == 1) == (miss is both)
        assert 0 < miss["evicted_ago_s"] < 600
        assert cut <= miss["wanted_tokens"] <= 20 * POOL_TOKENS
    assert why["evicted_before_reuse"]["kept"] >= 1
    assert why["evicted_before_reuse_tokens"]["kept"] == cut
    block = running.status()
    assert sum(why["age_s"]["counts"]) == sum(block["evictions"].values())
    assert block["fallbacks"] == {}

    text = ask("why", running)
    wanted = -(-second["wanted_tokens"] // page)
    assert f"{cut} tokens missing from the start of a prompt, evicted" in text
    assert re.search(
        rf"by rule kept \(score -0\.\d+, cutoff -?0\.\d+, 0 hits\); keeping it needed {wanted} pages", text
    )

    assert total(running, "kvpolicy_evicted_before_reuse_tokens_total", 'rule="kept"') == cut
    assert total(running, "kvpolicy_evicted_age_seconds_count") == sum(block["evictions"].values())
    assert total(running, "kvpolicy_reuse_after_eviction_requests_count") == sum(why["away_s"]["counts"])
    exposed = {name.partition("{")[0] for name in running.metrics()}
    assert {name for name in exposed if name.startswith("kvpolicy_")} <= samples().keys()
    running.generate(shared, 2)
    exposed = {name.partition("{")[0] for name in running.metrics()}
    for alike in engine_metrics.BY_MEANING:
        assert len(exposed.intersection(alike)) == 1, "an engine's metric has another name here"

    # top: what the status says, in figures.
    block = running.status()
    assert block["traffic"]["requests"] == 20
    assert block["traffic"]["prompt_tokens"] == 19 * 200 + 100
    assert block["traffic"]["hit_tokens"] == 100 // page * page * 2  # the shared part, twice
    pool = block["occupancy"]
    assert pool["used_tokens"] == 0, "nothing runs"
    assert pool["evictable_tokens"] > POOL_TOKENS // 2
    assert sum(pool[key] for key in ("used_tokens", "evictable_tokens", "free_tokens")) == POOL_TOKENS
    assert 0 < block["protected"]["kept"]["tokens"] <= pool["evictable_tokens"]
    shown = ask("top", running)
    assert f"hits       {block['traffic']['hit_tokens'] / 3900:.0%} of 3,900 prompt tokens" in shown
    assert re.search(rf"^kept +{block['protected']['kept']['tokens']:,} ", shown, re.M)
    assert max(map(len, shown.splitlines())) <= 80

    # doctor: nothing is wrong; then 100 requests with a salt each.
    assert re.fullmatch(r"(?s)(KVP73[23] warning: .*)?policy explained: .*", ask("doctor", running))
    for seed in range(100):
        running.generate(tokens(seed, 5), 1, cache_salt=f"salt {seed}")
    found = ask("doctor", running)
    assert "KVP721 warning: 100 of 100 requests with a cache_salt came with a new one" in found
    assert f"KVP722 warning: 100 of 120 prompts (83%) are shorter than a page of {page} tokens" in found

    # What a router hears, while requests with salts come.
    endpoint = next(word for word in running.process.args if "tcp://*" in str(word))  # type: ignore[union-attr]
    events = ("--kv-events", json.loads(str(endpoint))["endpoint"].replace("*", "127.0.0.1"), "--format", "json")
    with ThreadPoolExecutor() as pool_of_one:
        asked = [
            pool_of_one.submit(ask, "doctor", running, *events, "--listen", "6", "--router-page-size", size, code=code)
            for size, code in ((str(page), 0), ("128", 1))
        ]
        seed = 1000
        while not all(each.done() for each in asked):
            running.generate(tokens(seed := seed + 1, 100), 1, cache_salt="router")
    fits, differs = ({finding["code"] for finding in json.loads(each.result())} for each in asked)
    assert not fits & {"KVP741", "KVP742", "KVP744"}
    # Of the router's findings: with each request above, fewer salts are new, so KVP721 may end between the two.
    assert {code for code in differs - fits if code > "KVP740"} == {"KVP741"}
    assert running.status()["fallbacks"] == {}
