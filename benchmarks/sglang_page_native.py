"""Real servers that plan FlashInfer by pages (`backend: {page_native: true}`) beside stock: same answers, and how fast.

    python benchmarks/sglang_page_native.py --model DIR --pages 16,64 -- --load-format dummy --skip-tokenizer-init \
        --mem-fraction-static 0.85 --max-total-tokens 65536 --cuda-graph-max-bs 32

At each page size one stock server and one with the policy, both with `--attention-backend flashinfer`. Requests share
prefixes and go out one at a time and in batches, so that cached prefixes, chunked prefill and CUDA graphs of several
batch sizes are all used. A split of the work that differs rounds differently, so greedy answers may part where two
tokens are nearly alike: compared are the ids up to there, the log probabilities up to there, and how far ahead stock's
choice was where they part. The exit code is 1 where it was further ahead than log probabilities differ elsewhere
(`--slack` times), or where the server did not plan by pages.

`--decode BATCH,CONTEXT`, as often as wanted: beside that, the time of a decode step with so many requests of so many
tokens, in turn.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from pressure import machine, split_arguments
from sglang_pressure import Side, launch_command, start_all

BACKEND = ("--attention-backend", "flashinfer")
POLICY = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {{name: pages-{page}}}
cache: {{page_size: {page}}}
backend: {{attention: flashinfer, page_native: true}}
"""
PREFIX_TOKENS, NEW_TOKENS = 700, 32
STEPS = (8, 200)  # output tokens of two runs whose difference is decode steps


class Answer(NamedTuple):
    ids: list[int]
    logprobs: list[float]  # of each chosen token
    margins: list[float]  # by which the chosen token was ahead of the next best
    cached_tokens: int


def generate(side: Side, prompts: list[list[int]]) -> list[Answer]:
    """Greedy answers with what each token was worth."""
    body = {
        "input_ids": prompts,
        "sampling_params": {"max_new_tokens": NEW_TOKENS, "ignore_eos": True, "temperature": 0},
        "return_logprob": True,
        "top_logprobs_num": 2,
    }
    found = []
    for told in json.loads(side.call("/generate", body)):
        meta = told["meta_info"]
        chosen = meta["output_token_logprobs"]
        top = [[entry[0] for entry in two] for two in meta["output_top_logprobs"]]
        found.append(
            Answer(
                [int(entry[1]) for entry in chosen],
                [float(entry[0]) for entry in chosen],
                [two[0] - two[1] for two in top],
                meta["cached_tokens"],
            )
        )
    return found


def batches(vocabulary: int) -> list[list[list[int]]]:
    """Prompts as they go out: singles, then batches, all on shared prefixes; lengths end anywhere in a page."""
    rng = random.Random(11)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(10, vocabulary) for _ in range(count)]

    prefixes = [tokens(PREFIX_TOKENS + 61 * i) for i in range(4)]

    def prompt() -> list[int]:
        prefix = rng.choice(prefixes)
        return prefix[: rng.randrange(1, len(prefix))] + tokens(rng.randrange(1, 90))

    return [[prompt()] for _ in range(24)] + [[prompt() for _ in range(size)] for size in (2, 3, 8, 17, 32)]


def compare(page: str, mine: list[Answer], stock: list[Answer], slack: float) -> bool:
    """Print how answers differ; whether one parts where stock was sure."""
    differences, margins, equal = [0.0], [], 0
    for ours, theirs in zip(mine, stock, strict=True):
        pairs = zip(ours.ids, theirs.ids, strict=True)
        parts_at = next((at for at, (a, b) in enumerate(pairs) if a != b), len(theirs.ids))
        equal += parts_at == len(theirs.ids)
        differences += [abs(a - b) for a, b in zip(ours.logprobs[:parts_at], theirs.logprobs[:parts_at], strict=True)]
        margins += theirs.margins[parts_at : parts_at + 1]
    cached = sum(a.cached_tokens == b.cached_tokens for a, b in zip(mine, stock, strict=True))
    most = max(differences)
    failed = bool(margins) and max(margins) > slack * most
    print(
        f"page {page}: {equal}/{len(stock)} answers equal, cached tokens equal in {cached}; log probabilities differ "
        f"by at most {most:.5f} (mean {statistics.fmean(differences):.6f}); where answers part, stock's choice was "
        f"ahead by at most {max(margins, default=0.0):.5f}{': TOO FAR' if failed else ''}",
        flush=True,
    )
    return failed


def decode_step_ms(side: Side, prompts: list[list[int]]) -> float:
    taken = []
    for steps in STEPS:
        start = time.perf_counter()
        side.generate(prompts, steps)
        taken.append((time.perf_counter() - start) * 1e3)
    return (taken[1] - taken[0]) / (STEPS[1] - STEPS[0])


def measure_decode(page: str, sides: dict[str, Side], batch: int, context: int, vocabulary: int, rounds: int) -> None:
    rng = random.Random(3)
    prompts = [[rng.randrange(10, vocabulary) for _ in range(context)] for _ in range(batch)]
    for side in sides.values():
        side.generate(prompts, 2)  # cached from here on
    ms: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in sorted(sides, reverse=bool(number % 2)):
            ms[name].append(decode_step_ms(sides[name], prompts))
    medians = {name: statistics.median(values) for name, values in ms.items()}
    print(
        f"page {page}: a decode step of {batch} requests of {context} tokens: stock {medians['stock']:.3f} ms, pages "
        f"{medians['pages']:.3f} ms, {medians['stock'] / medians['pages']:.3f} x; rounds: {ms}",
        flush=True,
    )


def pages_of(side: Side) -> Any:
    """Page size of the plans, and the fallbacks of the policy."""
    block = json.loads(side.call("/server_info"))["internal_states"][0]["kvpolicy"]
    return block["built"].get("attention_page_size"), block["fallbacks"], block["conflicts"]


def one_page_size(page: str, command: list[str], folder: Path, args: argparse.Namespace) -> bool:
    """Whether something is wrong."""
    policy = folder / f"pages-{page}.yaml"
    policy.write_text(POLICY.format(page=page))
    sides = {
        "stock": Side("stock", None, args.port, args.logs / f"page-native-stock-{page}.log"),
        "pages": Side("pages", str(policy), args.port + 1, args.logs / f"page-native-pages-{page}.log"),
    }
    try:
        start_all(list(sides.values()), [*command, "--page-size", page], args.start_s)
        asked = batches(args.vocabulary)
        told = {
            name: [answer for prompts in asked for answer in generate(side, prompts)] for name, side in sides.items()
        }
        planned, fallbacks, conflicts = pages_of(sides["pages"])
        failed = compare(page, told["pages"], told["stock"], args.slack)
        if planned != int(page) or fallbacks or conflicts:
            print(f"page {page}: planned with pages of {planned}, fallbacks {fallbacks}, conflicts {conflicts}")
            failed = True
        for case in args.decode:
            batch, context = map(int, case.split(","))
            measure_decode(page, sides, batch, context, args.vocabulary, args.rounds)
        return failed
    finally:
        for side in sides.values():
            side.stop()


def main() -> int:
    own, engine_arguments = split_arguments(sys.argv[1:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--pages", default="16,64")
    parser.add_argument("--vocabulary", type=int, default=40_000)
    parser.add_argument("--decode", metavar="BATCH,CONTEXT", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slack", type=float, default=4.0)
    parser.add_argument("--port", type=int, default=31_700)
    parser.add_argument("--start-s", type=float, default=400)
    parser.add_argument("--logs", type=Path, default=Path("/tmp"))
    args = parser.parse_args(own)
    print("machine:", machine())
    command = launch_command(args.model, *BACKEND, *engine_arguments)
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for page in args.pages.split(","):
            failed |= one_page_size(page, command, Path(folder), args)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
