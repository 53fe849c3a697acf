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
import platform
import random
import shlex
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


def prompts(rng: random.Random, count: int, vocabulary: int) -> list[list[int]]:
    return [[rng.randrange(10, vocabulary) for _ in range(PROMPT_TOKENS)] for _ in range(count)]


def window(side: Side, requests: list[list[int]]) -> float:
    """Requests/s over ``requests``, sent as batches with a few in flight."""
    batches = [requests[i : i + BATCH] for i in range(0, len(requests), BATCH)]
    started = time.perf_counter()
    with futures.ThreadPoolExecutor(IN_FLIGHT) as pool:
        list(pool.map(side.generate, batches))
    return len(requests) / (time.perf_counter() - started)


def ratio_interval(ours: list[float], theirs: list[float], draws: int = 4000) -> tuple[float, float, float]:
    """``(median ratio, low, high)``: 95 % percentile bootstrap over windows, seeded."""
    rng = random.Random(0)
    ratios = sorted(
        statistics.median(rng.choices(ours, k=len(ours))) / statistics.median(rng.choices(theirs, k=len(theirs)))
        for _ in range(draws)
    )
    point = statistics.median(ours) / statistics.median(theirs)
    return point, ratios[int(0.025 * draws)], ratios[int(0.975 * draws)]


def outputs_alike(sides: list[Side], count: int, vocabulary: int) -> dict[str, str]:
    """Greedy outputs asked one request at a time, against the first side; its own second pass is the control."""
    asked = prompts(random.Random(99), count, vocabulary)
    first = [sides[0].generate([p], 16)[0]["output_ids"] for p in asked]
    result = {}
    for side in [sides[0], *sides[1:]]:
        again = [side.generate([p], 16)[0]["output_ids"] for p in asked]
        name = f"{side.name} again" if side is sides[0] else side.name
        result[name] = f"{sum(a == b for a, b in zip(first, again, strict=True))}/{count} equal"
    return result


def kvpolicy_state(side: Side) -> Any:
    """The status block of every data-parallel group, and the victim digest of every rank that reports metrics."""
    info = json.loads(side.call("/server_info"))
    ranks = [line for line in side.call("/metrics").splitlines() if line.startswith("kvpolicy_victim_digest")]
    return {"status": [state.get("kvpolicy") for state in info.get("internal_states", [])], "digest_by_rank": ranks}


def machine() -> str:
    gpu = (
        subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip()
        if Path("/usr/bin/nvidia-smi").exists()
        else ""
    )
    return f"{gpu or 'no GPU'}; {os.cpu_count()} CPUs; Python {platform.python_version()}"


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


def report(sides: list[Side], alike: dict[str, str]) -> dict[str, Any]:
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
    print("outputs, one request at a time:", alike)
    return rows


def main() -> int:
    own, _, rest = (lambda a: (a[: a.index("--")], "--", a[a.index("--") + 1 :]) if "--" in a else (a, "", []))(
        sys.argv[1:]
    )
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--side", action="append", required=True, help="stock, or NAME=POLICY; the first is the base")
    parser.add_argument("--window", type=int, default=4096, help="requests in a window")
    parser.add_argument("--windows", type=int, default=6, help="windows with the pool full, a side")
    parser.add_argument("--vocabulary", type=int, default=120_000)
    parser.add_argument("--compare", type=int, default=48, help="requests whose outputs are compared")
    parser.add_argument("--start-s", type=float, default=300, help="how long a server may take to start")
    parser.add_argument("--stop-after-s", type=float, default=560, help="no new window after this, from the start")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--logs", type=Path, default=Path("/tmp"))
    args = parser.parse_args(own)

    started = time.monotonic()
    sides = []
    for text in args.side:
        name, _, policy = text.partition("=")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        sides.append(Side(name, policy or None, port, args.logs / f"sglang-{name}.log"))
    command = [
        sys.executable,
        "-m",
        "sglang.launch_server",
        "--model-path",
        args.model,
        "--host",
        "127.0.0.1",
        "--enable-metrics",
        "--skip-server-warmup",
        *rest,
    ]
    print("machine:", machine())
    print("command:", shlex.join([Path(sys.executable).name, *sys.argv]), flush=True)
    try:
        for side in sides:
            side.start(command, dict(os.environ))
            time.sleep(args.start_s and 3)  # two servers that probe free memory at once see each other's
        waiting = list(sides)
        while waiting:
            if time.monotonic() - started > args.start_s:
                raise SystemExit(
                    f"not healthy in {args.start_s:.0f} s: {[s.name for s in waiting]}\n"
                    + waiting[0].log.read_text(errors="replace")[-4000:]
                )
            waiting = [side for side in waiting if not side.healthy()]
            time.sleep(1)
        print(f"all healthy after {time.monotonic() - started:.0f} s", flush=True)
        alike = outputs_alike(sides, args.compare, args.vocabulary)
        measure(sides, args, started + args.stop_after_s)
        result = {
            "machine": machine(),
            "command": sys.argv,
            "sides": report(sides, alike),
            "outputs": alike,
            "kvpolicy": {side.name: kvpolicy_state(side) for side in sides if side.policy},
        }
        print(json.dumps(result["kvpolicy"])[:3000])
        if args.out:
            args.out.write_text(json.dumps(result, indent=1))
    finally:
        for side in sides:
            side.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
