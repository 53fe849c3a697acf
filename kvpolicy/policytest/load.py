"""From arguments (files, folders, shipped names) to policies that can be tested."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvpolicy.compiler import compile_policy
from kvpolicy.language import LoadResult
from kvpolicy.policytest.coverage import Coverage, observed
from kvpolicy.replay.simulator import Eviction

__all__ = ["files_of", "prepare"]

_MARK = b"KVPolicy"


def files_of(argument: str) -> Iterator[str]:
    """The argument itself, or the policies of a folder: its YAML files that name the kind. Raises OSError."""
    path = Path(argument)
    if not path.is_dir():
        yield argument
        return
    for file in sorted([*path.glob("*.yaml"), *path.glob("*.yml")]):
        if _MARK in file.read_bytes():
            yield str(file)


def prepare(result: LoadResult, engine: str) -> tuple[Eviction, Coverage]:
    """Compile a checked policy as an engine's adapter does, with eyes. Raises ValueError for one with errors."""
    if result.policy is None:
        raise ValueError("a policy with errors cannot be tested; see its diagnostics")
    compiled = compile_policy(result, engine)
    eviction, coverage = observed(result.policy, compiled.eviction)
    watermark = compiled.allocator.watermark
    return Eviction(compiled.name, eviction.make_index, eviction.needs_metadata, watermark), coverage
