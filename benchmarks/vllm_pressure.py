"""Throughput of real vLLM engines, with room and with a full pool: stock beside policies, in interleaved windows.

    python benchmarks/vllm_pressure.py --model DIR --side stock --side lru=policies/stock_lru.yaml \
        --windows 6 -- --num-gpu-blocks-override 20000 --attention-backend TRITON_ATTN --gpu-memory-utilization 0.3

Every side is one process with one offline ``LLM`` (the engine runs in it), all started before anything is measured and
asked in turn, so that a change of the machine's mood hits all of them alike. Prompts are unique, the same ones on every
side. Each side first fills its pool: ``--windows`` windows at most count as unpressured while no cached block is lost;
then as many with the pool full. What follows ``--`` are vLLM's engine arguments, given to every side.

Printed: requests/s a window and side, medians, the 95 % bootstrap interval of the ratio to stock; over the rounds in
which all pools were full, stock's total time over the side's, by the clock and by the engine's CPU time, bootstrapped
over rounds, which a machine that swings disturbs least; whether greedy outputs asked one request at a time are equal
(with stock against itself as the control), and the policy's counters.
``--out FILE`` keeps everything as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pressure import add_arguments, named_sides, outputs_alike, ratio_interval, run, split_arguments, total_ratio

ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


# -- a side: one engine in a process of its own, told what to do by lines of JSON -------------------------------------


def serve(model: str, policy: str | None, engine_arguments: list[str]) -> None:
    """Answer requests on stdin until it ends; answers start with ``ANSWER``, as vLLM prints to stdout too."""
    import kvpolicy_vllm
    from vllm import LLM, SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    given = parser.parse_args(["--model", model, *engine_arguments])
    defaults = parser.parse_args(["--model", model])
    asked = {name: value for name, value in vars(given).items() if value != getattr(defaults, name)}
    llm = kvpolicy_vllm.LLM(policy=policy, model=model, **asked) if policy else LLM(model=model, **asked)
    cache = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager
    block_tokens = llm.llm_engine.vllm_config.cache_config.block_size
    answer({"blocks": cache.block_pool.num_gpu_blocks, "block_tokens": block_tokens})

    for line in sys.stdin:
        task = json.loads(line)
        rng = random.Random(task["seed"])
        prompts = [
            {"prompt_token_ids": [rng.randrange(10, task["vocabulary"]) for _ in range(task["prompt_tokens"])]}
            for _ in range(task["requests"])
        ]
        sampling = SamplingParams(temperature=0, max_tokens=task["output_tokens"], ignore_eos=True, detokenize=False)
        batch = task["batch"]
        outputs: list[list[int]] = []
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        for at in range(0, len(prompts), batch):
            done = llm.generate(prompts[at : at + batch], sampling, use_tqdm=False)
            outputs += [list(result.outputs[0].token_ids) for result in done]
        answer(
            {
                "s": time.perf_counter() - start_s,
                "cpu_s": time.process_time() - start_cpu_s,
                "cached_blocks": len(cache.block_pool.cached_block_hash_to_block),
                "outputs": outputs if task["show"] else None,
                "kvpolicy": kvpolicy_vllm.status(llm) if policy else None,
            }
        )


def answer(value: Any) -> None:
    print("ANSWER " + json.dumps(value), flush=True)


# -- the measuring process ---------------------------------------------------------------------------------------------


@dataclass
class Side:
    """One engine under test and what was measured on it, in requests/s."""

    name: str
    policy: str | None
    log: Path
    process: subprocess.Popen[str] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    idle: list[float] = field(default_factory=list)
    full: list[float] = field(default_factory=list)
    times: dict[int, tuple[float, float]] = field(default_factory=dict)  # full rounds: seconds, and of CPU

    def start(self, model: str, engine_arguments: list[str]) -> None:
        command = [
            sys.executable,
            __file__,
            "--model",
            model,
            "--serve",
            self.policy or "stock",
            "--",
            *engine_arguments,
        ]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env={**os.environ, **ENVIRONMENT},
            )  # fmt: skip

    def ready(self) -> None:
        self.facts = self._read()

    def ask(self, **task: Any) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        return self._read()

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _read(self) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("ANSWER "):
                found: dict[str, Any] = json.loads(line.removeprefix("ANSWER "))
                return found
        raise SystemExit(f"{self.name}: the engine ended\n{self.log.read_text(errors='replace')[-4000:]}")


def measure(sides: list[Side], args: argparse.Namespace) -> dict[str, Any]:
    """Windows on all sides in turn, until each has its full ones; returns each side's last counters."""
    common = {"vocabulary": args.vocabulary, "prompt_tokens": args.prompt_tokens, "output_tokens": args.output_tokens}
    window = {**common, "requests": args.window, "batch": args.batch, "show": False}
    for side in sides:
        side.ask(**{**window, "requests": args.batch, "seed": 0})
    number = 0
    last: dict[str, Any] = {}
    cached = dict.fromkeys((side.name for side in sides), 0)
    deadline_s = time.monotonic() + args.stop_after_s
    while any(len(side.full) < args.windows for side in sides) and time.monotonic() < deadline_s:
        number += 1
        for side in sides if number % 2 else sides[::-1]:  # no side always goes first
            told = side.ask(**window, seed=number)
            rate = args.window / (told["cpu_s"] if args.cpu_time else told["s"])
            # A cache that grew by all it was given has lost nothing yet; one that grew by nothing was full throughout.
            grew = told["cached_blocks"] - cached[side.name]
            cached[side.name] = told["cached_blocks"]
            blocks = args.window * ((args.prompt_tokens + args.output_tokens - 1) // side.facts["block_tokens"])
            state = "full" if grew < blocks // 20 else "filling" if grew > blocks * 0.95 else "between"
            if state == "filling":
                side.idle.append(rate)
            elif state == "full":
                side.full.append(rate)
                side.times[number] = told["s"], told["cpu_s"]
            last[side.name] = told["kvpolicy"]
            print(f"window {number:3d}  {side.name:14s} {rate:8.1f} requests/s  {state}", flush=True)
    return last


def report(sides: list[Side]) -> dict[str, Any]:
    stock, rows = sides[0], {}
    print(f"\n{'side':14s} {'filling':>9s} {'full':>9s}   ratio to {stock.name}: filling, full [95 % interval]")
    for side in sides:
        medians = [statistics.median(rates) if rates else float("nan") for rates in (side.idle, side.full)]
        text = f"{side.name:14s} {medians[0]:9.1f} {medians[1]:9.1f}"
        row: dict[str, Any] = {"filling": side.idle, "full": side.full}
        for name, ours, theirs in (("filling", side.idle, stock.idle), ("full", side.full, stock.full)):
            if side is not stock and ours and theirs:
                row[f"{name}_ratio"] = point, low, high = ratio_interval(ours, theirs)
                text += f"   {point:.3f} [{low:.3f}, {high:.3f}]"
        print(text)
        rows[side.name] = row
    common = sorted(set.intersection(*(set(side.times) for side in sides)))
    if common:
        print(f"\n{len(common)} rounds, {stock.name}'s total time over the side's [95 % interval]: time, CPU time")
        for side in sides:
            both = [total_ratio([(stock.times[n][at], side.times[n][at]) for n in common]) for at in (0, 1)]
            rows[side.name]["total_ratios"] = both
            print(f"{side.name:14s}" + "".join("   {:.3f} [{:.3f}, {:.3f}]".format(*ratio) for ratio in both))
    return rows


def measured(sides: list[Side], args: argparse.Namespace, engine_arguments: list[str]) -> dict[str, Any]:
    for side in sides:
        side.start(args.model, engine_arguments)
        time.sleep(args.stagger_s)
    for side in sides:
        side.ready()
        print(f"{side.name}: {side.facts}", flush=True)
    task = {"seed": 99, "vocabulary": args.vocabulary, "prompt_tokens": args.prompt_tokens, "output_tokens": 16,
            "requests": args.compare, "batch": 1, "show": True}  # fmt: skip
    alike = outputs_alike(sides, lambda side: list(side.ask(**task)["outputs"]))
    counters = measure(sides, args)
    return {"sides": report(sides), "outputs": alike, "kvpolicy": counters}


def main() -> int:
    own, engine_arguments = split_arguments(sys.argv[1:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_arguments(parser, vocabulary=100_000, compare=16, stop_after_s=480, counted="from the first one")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=512, help="requests given to the engine at once")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=8)
    parser.add_argument("--stagger-s", type=float, default=3, help="between two starts: engines measure free memory")
    parser.add_argument("--cpu-time", action="store_true", help="by CPU time: for a machine that is not quiet")
    args = parser.parse_args(own)
    if args.serve:
        serve(args.model, None if args.serve == "stock" else args.serve, engine_arguments)
        return 0
    sides = [Side(name, policy, args.logs / f"vllm-{name}.log") for name, policy in named_sides(args.side)]
    return run(sides, lambda: measured(sides, args, engine_arguments), args.out)


if __name__ == "__main__":
    raise SystemExit(main())
