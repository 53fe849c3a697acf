"""A failing workload -> a small one that still fails: fewer events, fewer words an event, shorter segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from kvpolicy.policytest.workload import Workload

__all__ = ["MAX_TRIES", "shrink"]

#: Workloads tried at most; each is smaller than one of seconds ago, so this is a bound, not a target.
MAX_TRIES = 1000


def shrink(workload: Workload, fails: Callable[[Workload], bool]) -> Workload:
    """Greedy: take the first smaller candidate that still fails, until none does."""
    tries = 0
    while True:
        for candidate in _smaller(workload):
            tries += 1
            if tries > MAX_TRIES:
                return workload
            if fails(candidate):
                workload = candidate
                break
        else:
            return workload


def _smaller(workload: Workload) -> Iterator[Workload]:
    pages, steps = workload.pool_tokens // workload.page_tokens, workload.steps
    if workload.page_tokens > 1:
        lengths = tuple((name, max(1, tokens // workload.page_tokens)) for name, tokens in workload.lengths)
        yield replace(workload, page_tokens=1, pool_tokens=pages, lengths=lengths)
    size = len(steps) // 2
    while size:
        for start in range(0, len(steps), size):
            if len(steps) > size:
                yield replace(workload, steps=steps[:start] + steps[start + size :])
        size //= 2
    for index, step in enumerate(steps):
        for simpler in _simpler(step):
            yield replace(workload, steps=(*steps[:index], simpler, *steps[index + 1 :]))
    for index, (name, tokens) in enumerate(workload.lengths):
        for fewer in (1, tokens // 2, tokens - 1):
            if 1 <= fewer < tokens:
                lengths = (*workload.lengths[:index], (name, fewer), *workload.lengths[index + 1 :])
                yield replace(workload, lengths=lengths)
    for fewer in (pages // 2, pages - 1):
        if 1 <= fewer < pages:
            yield replace(workload, pool_tokens=fewer * workload.page_tokens)


def _simpler(step: str) -> Iterator[str]:
    """The step without one of its words (and what belongs to it), or with a shorter path."""
    words = step.split()
    for index, word in enumerate(words):
        if word.startswith(("+", "x")) or "=" in word:
            yield " ".join(words[:index] + words[index + 1 :])
        elif word in ("for", "->"):
            yield " ".join(words[:index] + words[index + 2 :])
        elif "/" in word:
            parts = word.split("/")
            for gone in range(len(parts)):
                shorter = "/".join(parts[:gone] + parts[gone + 1 :])
                yield " ".join([*words[:index], shorter, *words[index + 1 :]])
        elif words[index - 1] == "flood" and index:
            count, _, tokens = word.partition("x")
            for fewer in (1, int(count) - 1):
                if 1 <= fewer < int(count):
                    yield " ".join([*words[:index], f"{fewer}x{tokens}", *words[index + 1 :]])
            for fewer in (1, int(tokens) // 2):
                if 1 <= fewer < int(tokens):
                    yield " ".join([*words[:index], f"{count}x{fewer}", *words[index + 1 :]])
