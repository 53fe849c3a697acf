"""Throughput of one real server with no shadow policies and with four, in interleaved windows.

    python benchmarks/shadows.py --engine sglang --model DIR --windows 10 -- --attention-backend triton
    python benchmarks/shadows.py --engine vllm --model DIR --windows 10 -- --gpu-memory-utilization 0.5

Shadows are added before every other window and cleared after it, so both sides are the same process. Prompts have 1,024
tokens, of which the first 512 are one of a few that all share, and 128 output tokens. The shape of ``sglang_pressure``,
small leaves in a full pool, is

    ... --prompt-tokens 16 --shared-tokens 0 --new-tokens 8 --batch 128 --in-flight 4 --window 4096 --warm-windows 8

What follows ``--`` goes to the server. Printed: requests/s of each window; the ratio of the rates over all windows, and
of their medians, each with its 95 % bootstrap interval; what a request costs the scheduler's thread; and how many
requests the ghosts missed.
"""

from __future__ import annotations

import argparse
import concurrent.futures as futures
import http.client
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pressure import end_on_sigterm, machine, ratio_interval, split_arguments, total_ratio

from kvpolicy.language import load_policy
from kvpolicy.live.client import LiveError, fetch_statuses
from kvpolicy.live.shadow_client import add_shadows, clear_shadows

POLICIES = ("stock_lru", "long_context", "rag", "adaptive")
POLICY = "apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {name: plain}\neviction: {policy: lru}\n"


@dataclass
class Client:
    """Keeps one connection a thread, for one window: servers close idle ones in between."""

    port: int
    local: threading.local = field(default_factory=threading.local)

    def complete(self, prompts: list[list[int]], new_tokens: int) -> int:
        """Output tokens of some requests, sent as one."""
        if not hasattr(self.local, "connection"):
            self.local.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        body = {
            "model": "default",
            "prompt": prompts,
            "max_tokens": new_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        self.local.connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads(self.local.connection.getresponse().read())
        return int(answer["usage"]["completion_tokens"])


def prompts(rng: random.Random, args: argparse.Namespace, shared: list[list[int]]) -> list[list[int]]:
    own = args.prompt_tokens - args.shared_tokens
    return [
        [*rng.choice(shared), *(rng.randrange(10, args.vocabulary) for _ in range(own))] for _ in range(args.window)
    ]


def window(port: int, pool: futures.ThreadPoolExecutor, requests: list[list[int]], args: argparse.Namespace) -> float:
    """Requests/s."""
    client = Client(port)
    batches = [requests[at : at + args.batch] for at in range(0, len(requests), args.batch)]
    started_s = time.perf_counter()
    made = sum(pool.map(lambda batch: client.complete(batch, args.new_tokens), batches))
    assert made == len(requests) * args.new_tokens
    return len(requests) / (time.perf_counter() - started_s)


def until(true: Any, limit_s: float, what: str) -> Any:
    deadline_s = time.monotonic() + limit_s
    while not (found := true()):
        if time.monotonic() > deadline_s:
            raise SystemExit(f"not in {limit_s:g} s: {what}")
        time.sleep(0.2)
    return found


def measure(url: str, port: int, args: argparse.Namespace) -> dict[str, Any]:
    rng = random.Random(1)
    shared = [[rng.randrange(10, args.vocabulary) for _ in range(args.shared_tokens)] for _ in range(args.prefixes)]
    flats = [load_policy(name, args.engine).flat for name in POLICIES]
    rates: dict[int, list[float]] = {0: [], len(flats): []}
    microseconds, missed, told = [], 0, 0
    with futures.ThreadPoolExecutor(args.in_flight) as pool:
        for _ in range(args.warm_windows):
            window(port, pool, prompts(rng, args, shared), args)
        for number in range(2 * args.windows):
            count = (0, len(flats))[(number + number // 2) % 2]  # 0 4 4 0 0 4 ...: neither always goes first
            if count:
                add_shadows(url, flats)
                until(lambda: shadows_of(url).get("active"), 120, "the ghosts started")
            rates[count].append(window(port, pool, prompts(rng, args, shared), args))
            print(f"window {number:3d}  {count} shadows  {rates[count][-1]:8.2f} requests/s", flush=True)
            if count:
                seen = shadows_of(url)
                microseconds.append(seen["us_per_request"])
                told, missed = told + seen["told_requests"], missed + seen["dropped_requests"]
                late_s = time.perf_counter()
                until(lambda: caught_up(url), 300, "the ghosts caught up")
                print(f"            {seen['us_per_request']:.0f} us a request on the scheduler's thread; ghosts done "
                      f"{time.perf_counter() - late_s:.1f} s later", flush=True)  # fmt: skip
                clear_shadows(url)
    rounds = [(1 / without, 1 / shadowed) for without, shadowed in zip(rates[0], rates[len(flats)], strict=True)]
    totals, medians = total_ratio(rounds), ratio_interval(rates[len(flats)], rates[0])
    print(f"\nmedian requests/s: {statistics.median(rates[0]):.2f} without, "
          f"{statistics.median(rates[len(flats)]):.2f} with {len(flats)} shadows")  # fmt: skip
    print("ratio over all windows {:.4f} [{:.4f}, {:.4f}]".format(*totals))
    print("ratio of the medians   {:.4f} [{:.4f}, {:.4f}]".format(*medians))
    print(
        f"scheduler's thread: {statistics.median(microseconds):.0f} us a request; {missed} of {told + missed} dropped"
    )
    return {
        "rates": rates,
        "totals": totals,
        "medians": medians,
        "us_per_request": microseconds,
        "told": told,
        "dropped": missed,
    }


def shadows_of(url: str) -> dict[str, Any]:
    found: dict[str, Any] = fetch_statuses(url)[0].get("shadows") or {}
    return found


def caught_up(url: str) -> bool:
    shadows = shadows_of(url)
    return bool(shadows["requests"] == shadows["told_requests"])


def is_up(url: str, process: subprocess.Popen[bytes], log: Path) -> bool:
    if process.poll() is not None:
        raise SystemExit(f"the server ended with {process.returncode}\n{log.read_text(errors='replace')[-4000:]}")
    try:
        return bool(fetch_statuses(url))
    except LiveError:
        return False


def main() -> int:
    own, engine_arguments = split_arguments(sys.argv[1:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=("sglang", "vllm"), required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--windows", type=int, default=10, help="a side")
    parser.add_argument("--window", type=int, default=512, help="requests in a window")
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1, help="requests that one call carries; --in-flight counts calls")
    parser.add_argument("--warm-windows", type=int, default=1, help="before the first that counts")
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--shared-tokens", type=int, default=512)
    parser.add_argument("--prefixes", type=int, default=4, help="different shared beginnings")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=40_000)
    parser.add_argument("--start-s", type=float, default=400)
    parser.add_argument("--logs", type=Path, default=Path("/tmp"))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(own)

    end_on_sigterm()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (policy := args.logs / "shadows-plain.yaml").write_text(POLICY)
    start = {
        "sglang": ["sglang.launch_server", "--model-path", args.model, "--skip-server-warmup"],
        "vllm": ["vllm.entrypoints.cli.main", "serve", args.model, "--served-model-name", "default"],
    }[args.engine]
    command = [sys.executable, "-m", *start, "--host", "127.0.0.1", "--port", str(port), "--kv-policy", str(policy)]
    print("machine:", machine())
    print("command:", *sys.argv, flush=True)
    log, url = args.logs / f"shadows-{args.engine}.log", f"http://127.0.0.1:{port}"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, *engine_arguments],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "KVPOLICY_APPLY": "loopback"},
            start_new_session=True,
        )
    try:
        until(lambda: is_up(url, process, log), args.start_s, "the server is up")
        found = measure(url, port, args)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    if args.out:
        args.out.write_text(json.dumps({"machine": machine(), "command": sys.argv, **found}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
