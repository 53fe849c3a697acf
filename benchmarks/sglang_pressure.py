"""Throughput of real SGLang servers with a pool full of small leaves: stock beside policies, in interleaved windows.

    python benchmarks/sglang_pressure.py --model DIR --side stock --side lru=policies/stock_lru.yaml \
        --windows 6 -- --attention-backend triton --max-total-tokens 1000000 --max-running-requests 512

Every side is one server, all started together and measured in turn, so that a change of the machine's mood hits all of
them alike. Prompts are unique (16 tokens, 8 output tokens), the same ones on every side. A window is ``--window``
requests. First the pool fills (windows without eviction), then it is full. What follows ``--`` goes to every server.

Printed: requests/s a window and side, medians, the 95 % bootstrap interval of the ratio to stock, eviction calls and
their time, the comparison of outputs asked one request at a time (with stock against itself as the control), and the
victim digests where a side has them. ``--out FILE`` keeps everything as JSON.
"""

from __future__ import annotations

import argparse
import concurrent.futures as futures
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pressure import add_arguments, end_on_sigterm, named_sides, outputs_alike, ratio_interval, run, split_arguments

PROMPT_TOKENS, OUTPUT_TOKENS, BATCH, IN_FLIGHT = 16, 8, 128, 4


@dataclass
class Side:
    """One server under test and what was measured on it."""

    name: str
    policy: str | None
    port: int
    log: Path
    process: subprocess.Popen[bytes] | None = None
    idle: list[float] = field(default_factory=list)  # requests/s while nothing was evicted
    full: list[float] = field(default_factory=list)  # requests/s with the pool full
    evict_calls: float = 0.0
    evict_s: float = 0.0

    def start(self, command: list[str], env: dict[str, str]) -> None:
        extra = ["--kv-policy", self.policy] if self.policy else []
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port), *extra],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )

    def call(self, path: str, body: Any = None, timeout_s: float = 600) -> str:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data=data, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return str(answer.read().decode())

    def healthy(self) -> bool:
        if self.process is not None and self.process.poll() is not None:
            tail = self.log.read_text(errors="replace")[-4000:]
            raise SystemExit(f"{self.name}: the server exited with {self.process.returncode}\n{tail}")
        try:
            self.call("/health", timeout_s=3)
        except (urllib.error.URLError, OSError):
            return False
        return True

    def generate(self, prompts: list[list[int]], new_tokens: int = OUTPUT_TOKENS) -> list[dict[str, Any]]:
        sampling = {"max_new_tokens": new_tokens, "ignore_eos": True, "temperature": 0}
        answer = json.loads(self.call("/generate", {"input_ids": prompts, "sampling_params": sampling}))
        return answer if isinstance(answer, list) else [answer]

    def metric(self, suffix: str) -> float:
        """Sum of every sample whose name ends in ``suffix`` (labels differ by version); 0 when there is none."""
        total = 0.0
        for line in self.call("/metrics").splitlines():
            if not line.startswith("#") and line.split("{")[0].split(" ")[0].endswith(suffix):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def stop(self) -> None:
        if self.process is None:
            return
        for sig in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, sig)
            except ProcessLookupError:
                return
            time.sleep(2)


def launch_command(model: str, *more: str) -> list[str]:
    """Starts a server; each side adds its port."""
    start = [sys.executable, "-m", "sglang.launch_server", "--model-path", model, "--host", "127.0.0.1"]
    return [*start, "--skip-server-warmup", *more]


def prompts(rng: random.Random, count: int, vocabulary: int) -> list[list[int]]:
    return [[rng.randrange(10, vocabulary) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def window(side: Side, requests: list[list[int]]) -> float:
    """Requests/s over ``requests``, sent as batches with a few in flight."""
    batches = [requests[i : i + BATCH] for i in range(0, len(requests), BATCH)]
    started = time.perf_counter()
    with futures.ThreadPoolExecutor(IN_FLIGHT) as pool:
        list(pool.map(side.generate, batches))
    return len(requests) / (time.perf_counter() - started)


def outputs(side: Side, count: int, vocabulary: int) -> list[list[int]]:
    """Greedy outputs, asked one request at a time."""
    return [side.generate([prompt], 16)[0]["output_ids"] for prompt in prompts(random.Random(99), count, vocabulary)]


def kvpolicy_state(side: Side) -> Any:
    """The status block of every data-parallel group, and the victim digest of every rank that reports metrics."""
    info = json.loads(side.call("/server_info"))
    ranks = [line for line in side.call("/metrics").splitlines() if line.startswith("kvpolicy_victim_digest")]
    return {"status": [state.get("kvpolicy") for state in info.get("internal_states", [])], "digest_by_rank": ranks}


def measure(sides: list[Side], args: argparse.Namespace, deadline: float) -> None:
    rng = random.Random(1)
    for side in sides:
        side.generate(prompts(rng, 64, args.vocabulary))
        window(side, prompts(rng, 2 * BATCH, args.vocabulary))
    number = full_rounds = 0
    while full_rounds < args.windows and time.monotonic() < deadline:
        number += 1
        batch = prompts(rng, args.window, args.vocabulary)
        turn = sides if number % 2 else sides[::-1]  # no side always goes first
        evicting = 0
        for side in turn:
            calls = side.metric("eviction_duration_seconds_count")
            spent = side.metric("eviction_duration_seconds_sum")
            rate = window(side, batch)
            calls = side.metric("eviction_duration_seconds_count") - calls
            spent = side.metric("eviction_duration_seconds_sum") - spent
            evicting += calls > 0
            # A window that begins to evict midway is neither: it counts for no side.
            if calls == 0:
                side.idle.append(rate)
            elif side.evict_calls > 0:
                side.full.append(rate)
            if calls:
                side.evict_calls += calls
                side.evict_s += spent
            mean_ms = 1e3 * spent / calls if calls else 0.0
            print(
                f"window {number:3d}  {side.name:12s} {rate:8.0f} requests/s  "
                f"{calls:5.0f} evictions, {mean_ms:7.2f} ms each",
                flush=True,
            )
        full_rounds += evicting == len(sides) and all(len(side.full) > full_rounds for side in sides)


def report(sides: list[Side]) -> dict[str, Any]:
    stock = sides[0]
    rows: dict[str, Any] = {}
    print(
        f"\n{'side':12s} {'unpressured':>12s} {'full':>8s} {'full/own':>9s} {'ms/evict':>9s}   ratio to "
        f"{stock.name}: unpressured, full [95 % interval]"
    )
    for side in sides:
        row: dict[str, Any] = {
            "unpressured": side.idle,
            "full": side.full,
            "evict_calls": side.evict_calls,
            "evict_ms": 1e3 * side.evict_s / side.evict_calls if side.evict_calls else None,
        }
        free, full = (statistics.median(x) if x else float("nan") for x in (side.idle, side.full))
        text = f"{side.name:12s} {free:12.0f} {full:8.0f} {full / free:9.2f} {row['evict_ms'] or 0:9.2f}"
        if side is not stock:
            for name, ours, theirs in (("unpressured", side.idle, stock.idle), ("full", side.full, stock.full)):
                if ours and theirs:
                    point, low, high = ratio_interval(ours, theirs)
                    row[f"{name}_ratio"] = [point, low, high]
                    text += f"   {point:.3f} [{low:.3f}, {high:.3f}]"
        print(text)
        rows[side.name] = row
    return rows


def start_all(sides: list[Side], command: list[str], start_s: float) -> None:
    """Start every server, and wait until all of them are healthy."""
    end_on_sigterm()
    started = time.monotonic()
    for side in sides:
        side.start(command, dict(os.environ))
        time.sleep(start_s and 3)  # two servers that probe free memory at once see each other's
    waiting = list(sides)
    while waiting:
        if time.monotonic() - started > start_s:
            raise SystemExit(
                f"not healthy in {start_s:.0f} s: {[s.name for s in waiting]}\n"
                + waiting[0].log.read_text(errors="replace")[-4000:]
            )
        waiting = [side for side in waiting if not side.healthy()]
        time.sleep(1)
    print(f"all healthy after {time.monotonic() - started:.0f} s", flush=True)


def measured(sides: list[Side], args: argparse.Namespace, command: list[str]) -> dict[str, Any]:
    deadline = time.monotonic() + args.stop_after_s
    start_all(sides, command, args.start_s)
    alike = outputs_alike(sides, lambda side: outputs(side, args.compare, args.vocabulary))
    measure(sides, args, deadline)
    counters = {side.name: kvpolicy_state(side) for side in sides if side.policy}
    return {"sides": report(sides), "outputs": alike, "kvpolicy": counters}


def main() -> int:
    own, engine_arguments = split_arguments(sys.argv[1:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_arguments(parser, vocabulary=120_000, compare=48, stop_after_s=560, counted="from the start")
    parser.add_argument("--start-s", type=float, default=300, help="how long a server may take to start")
    args = parser.parse_args(own)

    sides = []
    for name, policy in named_sides(args.side):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        sides.append(Side(name, policy, port, args.logs / f"sglang-{name}.log"))
    command = launch_command(args.model, "--enable-metrics", *engine_arguments)
    return run(sides, lambda: measured(sides, args, command), args.out)


if __name__ == "__main__":
    raise SystemExit(main())
