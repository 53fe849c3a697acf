"""The engines' own serving benchmarks as child programs: their command lines, and what their result files say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvpolicy.bench.base import BenchError, Failed, Target, Traffic, Window
from kvpolicy.live import engine_metrics
from kvpolicy.live.client import LiveError, fetch_metrics

__all__ = ["measure"]

_RESULT = "result.json"
_TIMEOUT_S = 3600.0


def measure(target: Target, traffic: Traffic, seed: int, *, timeout_s: float = _TIMEOUT_S) -> Window:
    """Send one window; requests are the same for the same seed. Failed where requests did, BenchError otherwise."""
    with tempfile.TemporaryDirectory(prefix="kvpolicy-bench-") as folder:
        before = _cache_counters(target)
        command = _COMMANDS[target.engine](target, traffic, seed, Path(folder))
        output = _run(command, target, timeout_s)
        after = _cache_counters(target)
        try:
            result = json.loads((Path(folder) / _RESULT).read_text().splitlines()[0])
        except (OSError, ValueError, IndexError):
            raise BenchError(f"the benchmark of {target.engine} wrote no result: {_last_words(output)}") from None
    return _window(result, traffic, _hit_rate(before, after))


def _sglang(target: Target, traffic: Traffic, seed: int, folder: Path) -> list[str]:
    command = [
        sys.executable, "-m", "sglang.benchmark.serving", "--backend", "sglang", "--base-url", target.url,
        "--model", target.model, "--tokenizer", target.tokenizer, "--seed", str(seed), "--disable-tqdm",
        "--warmup-requests", "0", "--output-file", str(folder / _RESULT), "--num-prompts", str(traffic.requests),
    ]  # fmt: skip
    if traffic.shared_tokens:
        command += [
            "--dataset-name", "generated-shared-prefix",
            "--gsp-num-groups", str(traffic.groups), "--gsp-prompts-per-group", str(traffic.requests // traffic.groups),
            "--gsp-system-prompt-len", str(traffic.shared_tokens), "--gsp-question-len", str(traffic.input_tokens),
            "--gsp-output-len", str(traffic.output_tokens),
        ]  # fmt: skip
    else:
        command += [
            "--dataset-name", "random-ids", "--random-range-ratio", "1",
            "--random-input-len", str(traffic.input_tokens), "--random-output-len", str(traffic.output_tokens),
        ]  # fmt: skip
    return [*command, *_pace(traffic), *traffic.extra]


def _vllm(target: Target, traffic: Traffic, seed: int, folder: Path) -> list[str]:
    command = [
        sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "openai",
        "--base-url", target.url, "--model", target.model, "--tokenizer", target.tokenizer, "--seed", str(seed),
        "--disable-tqdm", "--num-warmups", "0", "--ready-check-timeout-sec", "0", "--ignore-eos",
        "--percentile-metrics", "ttft,tpot", "--metric-percentiles", "99",
        "--save-result", "--result-dir", str(folder), "--result-filename", _RESULT,
        "--num-prompts", str(traffic.requests),
    ]  # fmt: skip
    if traffic.shared_tokens:
        command += [
            "--dataset-name", "prefix_repetition",
            "--prefix-repetition-num-prefixes", str(traffic.groups),
            "--prefix-repetition-prefix-len", str(traffic.shared_tokens),
            "--prefix-repetition-suffix-len", str(traffic.input_tokens),
            "--prefix-repetition-output-len", str(traffic.output_tokens),
        ]  # fmt: skip
    else:
        command += [
            "--dataset-name", "random", "--random-range-ratio", "0",
            "--random-input-len", str(traffic.input_tokens), "--random-output-len", str(traffic.output_tokens),
        ]  # fmt: skip
    return [*command, *_pace(traffic), *traffic.extra]


_COMMANDS: dict[str, Callable[[Target, Traffic, int, Path], list[str]]] = {"sglang": _sglang, "vllm": _vllm}


def _pace(traffic: Traffic) -> list[str]:
    found = [] if traffic.rate is None else ["--request-rate", f"{traffic.rate:g}"]
    return found + ([] if traffic.concurrency is None else ["--max-concurrency", str(traffic.concurrency)])


def _run(command: list[str], target: Target, timeout_s: float) -> str:
    """What the child printed. It is in a session of its own, so that nothing of it outlives this call."""
    environ = dict(os.environ)
    if target.api_key is not None:
        environ["OPENAI_API_KEY"] = target.api_key  # what both benchmarks send as the bearer token
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ, start_new_session=True
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise BenchError(f"the benchmark of {target.engine} did not end in {timeout_s:g} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(0)
        output = log.read()
    if code != 0:
        raise BenchError(f"the benchmark of {target.engine} ended with exit code {code}: {_last_words(output)}")
    return output


def _last_words(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def _window(result: dict[str, Any], traffic: Traffic, hit_rate: float | None) -> Window:
    try:
        completed = int(result["completed"])
        window = Window(
            requests=completed,
            duration_s=float(result["duration"]),
            output_tokens_per_s=float(result["output_throughput"]),
            ttft_ms=float(result["mean_ttft_ms"]),
            ttft_p99_ms=float(result["p99_ttft_ms"]),
            tpot_ms=float(result["mean_tpot_ms"]),
            hit_rate=hit_rate,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BenchError(f"the engine's benchmark wrote a result without {error}: another release?") from None
    # With arguments of the user's own, how many requests there are is the data set's business.
    failed = int(result.get("failed") or 0) or (0 if traffic.extra else traffic.requests - completed)
    if failed or not completed:
        raise Failed(f"{failed or traffic.requests} of {failed + completed or traffic.requests} requests failed")
    return window


def _cache_counters(target: Target) -> tuple[float, float] | None:
    """(prompt tokens looked up, found) since the server's start; None where it does not say."""
    try:
        samples = fetch_metrics(target.url, target.api_key)
    except LiveError:
        return None
    looked_up = engine_metrics.total(samples, engine_metrics.LOOKED_UP_TOKENS)
    # The counter of cached tokens comes with the first one.
    return None if looked_up is None else (looked_up, engine_metrics.total(samples, engine_metrics.HIT_TOKENS) or 0.0)


def _hit_rate(before: tuple[float, float] | None, after: tuple[float, float] | None) -> float | None:
    if after is None:
        return None
    looked_up, hit = (now - then for now, then in zip(after, before or (0.0, 0.0), strict=True))
    return hit / looked_up if looked_up > 0 else None
