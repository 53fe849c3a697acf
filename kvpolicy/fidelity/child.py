"""The child's half: read the job, score every window in both passes, answer in JSON lines. Shared by both adapters."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, TextIO

from kvpolicy.fidelity.base import FidelityError, Job, Scored, Scorer

__all__ = ["MIN_STRIDE_TOKENS", "main", "stride_of", "windows_of"]

MIN_STRIDE_TOKENS = 64
_MIN_TOKENS = 128  # of a window; a shorter rest of the text is left out


def main(start: Callable[[Job], Scorer]) -> int:
    """Run as a program: the pipe's descriptor is the one argument, the job is on standard input."""
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)  # the engine's own processes must not hold it open
    job = Job(**json.load(sys.stdin))
    with os.fdopen(descriptor, "w", encoding="utf-8") as answers:
        try:
            scorer = start(job)
            try:
                for answer in _answers(scorer, job):
                    _write(answers, answer)
            finally:
                scorer.close()
        except FidelityError as error:
            _write(answers, {"error": str(error)})
            return 1
    return 0


def stride_of(page_size: int) -> int:
    """Tokens a step of the cached pass: only whole pages are shared."""
    return -(-MIN_STRIDE_TOKENS // page_size) * page_size


def windows_of(tokens: list[int], special: list[int], window_tokens: int, max_tokens: int) -> list[list[int]]:
    """The text in windows of ``window_tokens``, each behind the tokenizer's own first tokens (BOS, often nothing)."""
    body = tokens[len(special) :] if special and tokens[: len(special)] == special else tokens
    room = window_tokens - len(special)
    cut = [body[at : at + room] for at in range(0, min(len(body), max_tokens), room)]
    return [[*special, *part] for part in cut if len(part) + len(special) >= _MIN_TOKENS]


def _answers(scorer: Scorer, job: Job) -> Iterator[dict[str, Any]]:
    settings = scorer.settings()
    stride = stride_of(settings.page_size)
    if stride >= job.window_tokens:
        raise FidelityError(
            f"pages of {settings.page_size} tokens leave no prefix in a window of {job.window_tokens}: give --window"
        )
    windows = windows_of(scorer.encode(job.text), scorer.encode(""), job.window_tokens, job.max_tokens)
    if not windows:
        raise FidelityError(f"the text is too short: less than {_MIN_TOKENS} tokens")
    yield {"settings": asdict(settings), "windows": windows, "stride_tokens": stride}
    for index, tokens in enumerate(windows):
        for start in range(0, len(tokens), stride):
            end = min(start + stride, len(tokens))
            if end - start < 2:
                continue
            scored = scorer.score(tokens[:end], start, reuse=True)
            if scored.cached_tokens != start:
                raise FidelityError(
                    f"the engine took {scored.cached_tokens} of {start} prefix tokens from its cache: is prefix "
                    "caching off, or the pool too small for one window?"
                )
            yield _row("cached", index, start, end, scored)
    for index, tokens in enumerate(windows):
        scored = scorer.score(tokens, 0, reuse=False)
        if scored.cached_tokens:
            raise FidelityError(f"the engine took {scored.cached_tokens} tokens from its cache in the cold pass")
        yield _row("cold", index, 0, len(tokens), scored)


def _row(kind: str, window: int, start: int, end: int, scored: Scored) -> dict[str, Any]:
    if not len(scored.actual) == len(scored.ids) == len(scored.logprobs) == end - start - 1:
        raise FidelityError(f"the engine gave {len(scored.actual)} logprobs where {end - start - 1} were due")
    rows = [
        [round(actual, 6), list(ids), [round(value, 6) for value in logprobs]]
        for actual, ids, logprobs in zip(scored.actual, scored.ids, scored.logprobs, strict=True)
    ]
    return {"pass": kind, "window": window, "start": start, "rows": rows}


def _write(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer, separators=(",", ":")) + "\n")
    answers.flush()
