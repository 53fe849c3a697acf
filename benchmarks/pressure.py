"""What the pressure benchmarks of both engines share: their sides, how outputs and rates compare, and the result."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shlex
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar


class Side(Protocol):
    """An engine under test."""

    name: str

    def stop(self) -> None: ...


S = TypeVar("S", bound=Side)


def split_arguments(words: list[str]) -> tuple[list[str], list[str]]:
    """`(this program's, the engine's)`: the engine's follow ``--``."""
    cut = words.index("--") if "--" in words else len(words)
    return words[:cut], words[cut + 1 :]


def add_arguments(
    parser: argparse.ArgumentParser, *, vocabulary: int, compare: int, stop_after_s: float, counted: str
) -> None:
    """The arguments that both programs take; `counted` says from when `--stop-after-s` is."""
    parser.add_argument("--model", required=True)
    parser.add_argument("--side", action="append", default=[], help="stock, or NAME=POLICY; the first is the base")
    parser.add_argument("--window", type=int, default=4096, help="requests in a window")
    parser.add_argument("--windows", type=int, default=6, help="windows with the pool full, a side")
    parser.add_argument("--vocabulary", type=int, default=vocabulary)
    parser.add_argument("--compare", type=int, default=compare, help="requests whose outputs are compared")
    parser.add_argument("--stop-after-s", type=float, default=stop_after_s, help=f"no new window after this, {counted}")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--logs", type=Path, default=Path("/tmp"))


def named_sides(given: list[str]) -> Iterable[tuple[str, str | None]]:
    """`(name, policy)` of each ``--side``; None is stock."""
    for text in given or ["stock"]:
        name, _, policy = text.partition("=")
        yield name, policy or None


def ratio_interval(ours: list[float], theirs: list[float], draws: int = 4000) -> tuple[float, float, float]:
    """``(median ratio, low, high)``: 95 % percentile bootstrap over windows, seeded."""
    rng = random.Random(0)
    ratios = [
        statistics.median(rng.choices(ours, k=len(ours))) / statistics.median(rng.choices(theirs, k=len(theirs)))
        for _ in range(draws)
    ]
    return statistics.median(ours) / statistics.median(theirs), *_middle(ratios)


def total_ratio(rounds: list[tuple[float, float]], draws: int = 4000) -> tuple[float, float, float]:
    """The same of the sums of (stock's, the side's) times; the bootstrap draws rounds."""
    rng = random.Random(0)

    def of(drawn: list[tuple[float, float]]) -> float:
        return sum(theirs for theirs, _ in drawn) / sum(ours for _, ours in drawn)

    return of(rounds), *_middle([of(rng.choices(rounds, k=len(rounds))) for _ in range(draws)])


def _middle(drawn: list[float]) -> tuple[float, float]:
    """Between which 95 % of them are."""
    drawn.sort()
    return drawn[int(0.025 * len(drawn))], drawn[int(0.975 * len(drawn))]


def end_on_sigterm() -> None:
    """From now on SIGTERM ends this program as an exception does, so that its servers end too: `timeout` sends it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def outputs_alike(sides: Sequence[S], outputs: Callable[[S], list[list[int]]]) -> dict[str, str]:
    """`outputs` of each side, asked one request at a time, against the first's, whose second pass is the control."""
    first = outputs(sides[0])
    result = {}
    for side in sides:
        again = outputs(side)
        name = f"{side.name} again" if side is sides[0] else side.name
        result[name] = f"{sum(a == b for a, b in zip(first, again, strict=True))}/{len(first)} equal"
    return result


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


def run(sides: Sequence[Side], measured: Callable[[], dict[str, Any]], out: Path | None) -> int:
    """Say what runs where, measure, and leave no engine behind.

    `measured` gives what it found as `sides`, `outputs` and `kvpolicy`; all of it goes to `out`, if there is one.
    """
    print("machine:", machine())
    print("command:", shlex.join([Path(sys.executable).name, *sys.argv]), flush=True)
    try:
        found = measured()
        print("outputs, one request at a time:", found["outputs"])
        print(json.dumps(found["kvpolicy"])[:3000])
        if out:
            out.write_text(json.dumps({"machine": machine(), "command": sys.argv, **found}, indent=1))
    finally:
        for side in sides:
            side.stop()
    return 0
