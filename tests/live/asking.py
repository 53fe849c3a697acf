"""Asks a real server to change its policy, and keeps it busy meanwhile."""

from __future__ import annotations

import json
import random
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvpolicy.language import load_policy
from tools.server import Server

__all__ = ["apply", "flat", "load", "post", "rollback", "tokens"]


def tokens(seed: int, count: int = 128) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 250) for _ in range(count)]


def flat(path: Path | str, engine: str) -> dict[str, Any]:
    return load_policy(path, engine).flat


def post(server: Server, path: str, body: Any, key: str | None = None) -> tuple[int, dict[str, Any]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(server.url + path, data, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")


def apply(server: Server, policy: dict[str, Any], **more: Any) -> tuple[int, dict[str, Any]]:
    return post(server, "/kvpolicy/apply", {"policy": policy, "source": "test", **more})


def rollback(server: Server) -> tuple[int, dict[str, Any]]:
    return post(server, "/kvpolicy/rollback", {})


@contextmanager
def load(server: Server, prompts: list[list[int]], clients: int = 2) -> Iterator[list[tuple[int, Any]]]:
    """Requests without a pause for the length of the block: `(which prompt, its output)` of each that was answered."""
    answers: list[tuple[int, Any]] = []
    stop = threading.Event()

    def run(first: int) -> None:
        at = first
        while not stop.is_set():
            which = at % len(prompts)
            answers.append((which, server.generate(prompts[which], 4)["output_ids"]))
            at += clients

    threads = [threading.Thread(target=run, args=(first,)) for first in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        stop.set()
        for thread in threads:
            thread.join()
