"""Decode throughput of real SGLang servers whose requests share a long prompt, or share nothing.

    python benchmarks/shared_decode.py --model DIR --side flashinfer --side triton \
        --side cascade=flashinfer:policy.yaml -- --load-format dummy --skip-tokenizer-init

A side is NAME (an attention backend), or NAME=BACKEND:POLICY; the first is the base. All servers are started together
and measured in turn. `shared`: one prompt is cached, then `--requests` ask it at once, with 16 tokens of their own
each; `alone`: as many requests with nothing in common. Each is asked twice, for one token and for `--tokens`: the first
is the time until all have begun, the difference is decoding. Printed: tokens/s of decoding, milliseconds a step (TPOT),
seconds until all have begun (TTFT of the last), the pool's tokens, medians, with 95 % bootstrap intervals of the ratio
to the base; how many requests' first tokens equal the base's, with the base against itself as the control.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pressure import machine, ratio_interval, split_arguments
from sglang_outputs import free_port
from sglang_pressure import Side, launch_command, start_all

OWN_TOKENS, COMPARED_TOKENS = 16, 16


@dataclass
class Decoding(Side):
    """One server, and tokens/s, s a step and s until all have begun, by kind of traffic."""

    backend: str = ""
    rates: dict[str, list[float]] = field(default_factory=dict)
    begun_s: dict[str, list[float]] = field(default_factory=dict)

    def start(self, command: list[str], env: dict[str, str]) -> None:
        super().start([*command, "--attention-backend", self.backend], env)

    def timed(self, prompts: list[list[int]], tokens: int) -> tuple[float, list[list[int]]]:
        start = time.perf_counter()
        answers = self.generate(prompts, tokens)
        return time.perf_counter() - start, [answer["output_ids"][:COMPARED_TOKENS] for answer in answers]


def side_of(text: str, logs: Path) -> Decoding:
    name, _, rest = text.partition("=")
    backend, _, policy = (rest or name).partition(":")
    return Decoding(name, policy or None, free_port(), logs / f"shared-{name}.log", backend=backend)


def tokens_of(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(10, 100_000) for _ in range(count)]


def measure(side: Decoding, kind: str, prompts: list[list[list[int]]], tokens: int) -> list[list[int]]:
    """One round of a side; `prompts`: for one token, and for `tokens`."""
    begun, _ = side.timed(prompts[0], 1)
    whole, outputs = side.timed(prompts[1], tokens)
    side.begun_s.setdefault(kind, []).append(begun)
    side.rates.setdefault(kind, []).append(len(prompts[1]) * (tokens - 1) / (whole - begun))
    return outputs


def rounds(sides: list[Decoding], args: argparse.Namespace) -> dict[str, str]:
    """Which share of the requests began with the base's tokens."""
    rng = random.Random(1)
    alike: dict[str, list[int]] = {}
    deadline = time.monotonic() + args.stop_after_s
    for number in range(args.rounds + 1):  # the first warms up
        if time.monotonic() > deadline:
            break
        common = tokens_of(rng, args.shared_tokens)
        asked = {
            "shared": [[[*common, *tokens_of(rng, OWN_TOKENS)] for _ in range(args.requests)] for _ in range(2)],
            "alone": [[tokens_of(rng, args.alone_tokens) for _ in range(args.requests)] for _ in range(2)],
        }
        for kind, prompts in asked.items():
            told = {}
            for side in sides if number % 2 else sides[::-1]:
                if kind == "shared":
                    side.generate([common], 1)
                told[side.name] = measure(side, kind, prompts, args.tokens if number else 8)
                if number == 0:
                    side.rates.clear()
                    side.begun_s.clear()
            if number == 1:
                base = told[sides[0].name]
                told[f"{sides[0].name} again"] = sides[0].timed(prompts[1], args.tokens)[1]
                for name, outputs in told.items():
                    alike.setdefault(name, []).append(sum(a == b for a, b in zip(outputs, base, strict=True)))
            if number:
                line = ", ".join(f"{side.name} {side.rates[kind][-1]:.0f}" for side in sides)
                print(f"round {number} {kind}: {line} tokens/s", flush=True)
    return {name: " ".join(f"{count}/{args.requests}" for count in counts) for name, counts in alike.items()}


def report(sides: list[Decoding], args: argparse.Namespace) -> None:
    print(
        f"\n{'traffic':8} {'side':12} {'tokens/s':>9} {'ms/step':>8} {'begun s':>8} {'pool tokens':>12}  "
        "ratio to the base"
    )
    for kind in ("shared", "alone"):
        base = sides[0].rates[kind]
        for side in sides:
            rate, begun = statistics.median(side.rates[kind]), statistics.median(side.begun_s[kind])
            info = json.loads(side.call("/server_info"))
            pool = info.get("max_total_num_tokens") or info["internal_states"][0].get("max_total_num_tokens")
            point, low, high = ratio_interval(side.rates[kind], base)
            print(
                f"{kind:8} {side.name:12} {rate:9.0f} {1e3 * args.requests / rate:8.2f} {begun:8.2f} {pool!s:>12}  "
                f"{point:.3f} [{low:.3f}, {high:.3f}]"
            )
    for side in sides:
        if side.policy:
            block: dict[str, Any] = json.loads(side.call("/server_info"))["internal_states"][0]["kvpolicy"]
            print(side.name, {key: block.get(key) for key in ("cascade", "built", "conflicts", "fallbacks")})


def main() -> int:
    own, engine_arguments = split_arguments(sys.argv[1:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--side", action="append", required=True, help="BACKEND, or NAME=BACKEND:POLICY")
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--shared-tokens", type=int, default=8192)
    parser.add_argument("--alone-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stop-after-s", type=float, default=300, help="no new round after this")
    parser.add_argument("--start-s", type=float, default=300)
    parser.add_argument("--logs", type=Path, default=Path("/tmp"))
    args = parser.parse_args(own)
    print("machine:", machine())
    command = launch_command(args.model, *engine_arguments)
    sides = [side_of(text, args.logs) for text in args.side]
    try:
        start_all(list[Side](sides), command, args.start_s)
        print("first tokens equal the base's (shared, alone):", rounds(sides, args))
        report(sides, args)
    finally:
        for side in sides:
            side.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
