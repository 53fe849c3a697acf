"""`kvpolicy explain waiting` on a real server: the scheduler's policy decides what becomes of a waiting prefix.

The pool holds three old prompts. While one request runs, two more wait: a new one that needs room, then one that
repeats the oldest prompt. Under `lpm` the queue is matched before anything is admitted, under `fcfs` it is not.
"""

from __future__ import annotations

import json
import random
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from pathlib import Path

import pytest

from tools.server import Server

POOL_TOKENS = 2048
OLD_TOKENS = 400
POLICY = "apiVersion: kvpolicy/v1\nkind: KVPolicy\neviction: {policy: lru}\n"


def start_long_request(server: Server, prompt: list[int]) -> HTTPResponse:
    """A request that is certainly running: its first token has come."""
    sampling = {"temperature": 0, "max_new_tokens": 300, "ignore_eos": True}
    body = json.dumps({"input_ids": prompt, "sampling_params": sampling, "stream": True}).encode()
    request = urllib.request.Request(server.url + "/generate", body, {"Content-Type": "application/json"})
    response = urllib.request.urlopen(request, timeout=180)
    response.readline()
    return response


@pytest.mark.engine
@pytest.mark.server
@pytest.mark.parametrize(("schedule", "hit"), [("lpm", OLD_TOKENS - 1), ("fcfs", 0)])
def test_the_prefix_of_a_waiting_request(server, tmp_path: Path, schedule: str, hit: int) -> None:
    (tmp_path / "lru.yaml").write_text(POLICY)
    draw = random.Random(1)

    def prompt(first: int, tokens: int) -> list[int]:
        return [first, *(draw.randrange(3, 250) for _ in range(tokens - 1))]

    flags = ("--schedule-policy", schedule, "--max-running-requests", "1", "--page-size", "1")
    with server("0.5.20", *flags, policy=tmp_path / "lru.yaml", max_total_tokens=POOL_TOKENS) as running:
        running.flush_cache()
        old = [prompt(first, OLD_TOKENS) for first in (10, 11, 12)]
        for each in old:
            running.generate(each, max_new_tokens=1)
        with ThreadPoolExecutor() as threads, start_long_request(running, prompt(13, 20)) as response:
            new = threads.submit(running.generate, prompt(14, 600), 1)
            time.sleep(0.3)  # it is in the queue first
            again = threads.submit(running.generate, old[0], 1)
            response.read()
            new.result()
            assert again.result()["meta_info"]["cached_tokens"] == hit
        evicted = running.internal_state()["kvpolicy"]["evicted_tokens"]
        assert sum(evicted.values()) >= OLD_TOKENS, "nothing had to go"
