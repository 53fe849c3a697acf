"""Replay against a real SGLang: the same requests, one by one, through a server and through the simulator.

Stock LRU without a policy, and with watermarks alone. The pool holds a few prompts only, so that most of what is asked
for was evicted meanwhile. Every request's cached tokens must be equal, token for token.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kvpolicy.replay.pages import Pager
from kvpolicy.replay.policies import from_result, load
from kvpolicy.replay.requests import Request
from kvpolicy.replay.simulator import Simulator
from tools.server import Server

POOL_TOKENS = 1024
#: Marks that a request's tokens cross often.
WATERMARKED = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {name: watermarked}
allocator: {watermark: {low: 4%, high: 12%}}
"""


def prompts(count: int, seed: int) -> list[tuple[list[int], int]]:
    """(prompt, output tokens): conversations that grow by turns, shared openings, exact repeats, prefixes of others."""
    draw = random.Random(seed)
    openings = [[draw.randrange(3, 250) for _ in range(length)] for length in (33, 64, 90)]
    known: list[list[int]] = []
    made = []
    for _ in range(count):
        kind = draw.random()
        if known and kind < 0.35:
            prompt = [*draw.choice(known[-12:]), *(draw.randrange(3, 250) for _ in range(draw.randrange(1, 60)))]
        elif known and kind < 0.45:
            prompt = draw.choice(known[-12:])
        elif known and kind < 0.6:
            whole = draw.choice(known[-12:])
            prompt = whole[: draw.randrange(1, len(whole) + 1)]
        else:
            prompt = [*draw.choice(openings), *(draw.randrange(3, 250) for _ in range(draw.randrange(1, 90)))]
        prompt = prompt[:380]
        known.append(prompt)
        made.append((prompt, draw.choice([1, 2, 7, 18])))
    return made


@pytest.mark.engine
@pytest.mark.server
@pytest.mark.parametrize(
    ("version", "page", "flags", "cached_output"),
    [
        # The last token of an output is sampled and never fed back, so its KV does not exist ...
        ("0.5.20", 1, ("--disable-overlap-schedule",), slice(-1)),
        # ... unless the overlap scheduler ran one step more before it saw the end. 0.5.20 caches what that step wrote;
        # 0.5.23 starts no step beyond `max_new_tokens`.
        ("0.5.20", 1, (), slice(None)),
        ("0.5.23", 1, (), slice(-1)),
        ("0.5.23", 16, (), slice(-1)),
    ],
)
def test_lru_hits_what_a_real_server_hits(
    server, version: str, page: int, flags: tuple[str, ...], cached_output: slice
) -> None:
    simulator = Simulator(from_result(load("lru"), "lru"), POOL_TOKENS, page, "node", exact_tokens=True)
    with server(version, "--page-size", str(page), *flags, max_total_tokens=POOL_TOKENS) as running:
        compare(running, simulator, cached_output)
    assert simulator.stats.evicted_tokens > 3 * POOL_TOKENS, "the case is no test of eviction"


@pytest.mark.engine
@pytest.mark.server
@pytest.mark.parametrize(("version", "page"), [("0.5.18", 1), ("0.5.23", 16)])
def test_watermarks_mean_the_same_in_a_real_server(server, tmp_path: Path, version: str, page: int) -> None:
    policy = tmp_path / "watermarked.yaml"
    policy.write_text(WATERMARKED)
    simulator = Simulator(from_result(load(str(policy)), "marks"), POOL_TOKENS, page, "node", exact_tokens=True)
    flags = ("--page-size", str(page), "--attention-backend", "torch_native", "--disable-overlap-schedule")
    with server(version, *flags, policy=policy, max_total_tokens=POOL_TOKENS) as running:
        compare(running, simulator, slice(-1))
        status = running.status()
    mark = simulator.watermark
    assert mark is not None
    assert mark.batches > 20
    assert (status["watermark"]["batches"], status["watermark"]["ahead_pages"]) == (mark.batches, mark.ahead_pages)
    assert status["evict_calls"] == simulator.stats.evict_calls
    assert status["fallbacks"] == {}


def compare(running: Server, simulator: Simulator, cached_output: slice) -> None:
    """Request by request, the server's cached tokens are the simulator's."""
    page = simulator.page_tokens
    pager = Pager(1, page)
    differences = []
    hits = 0
    running.flush_cache()
    for at, (prompt, out) in enumerate(prompts(160, seed=page)):
        answer = running.generate(prompt, max_new_tokens=out)
        output = answer["output_ids"]
        assert len(output) == out
        whole = [*prompt, *output[cached_output]]
        request = Request(at, len(prompt), len(output), prompt, whole)
        pages, full = pager.pages(prompt, len(prompt)), pager.pages(whole, len(whole))
        simulated = simulator.request(request, pages, pager.reusable(len(pages), len(prompt)), full)
        cached = answer["meta_info"]["cached_tokens"]
        hits += cached
        if simulated != cached:
            differences.append((at, len(prompt), out, cached, simulated))
    assert not differences, f"(request, prompt, output, cached by the server, simulated): {differences[:10]}"
    assert hits > 1000, "the case is no test of hits"
