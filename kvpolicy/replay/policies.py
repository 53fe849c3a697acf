"""`--policy` arguments -> what a simulator runs: the same compiled objects that an adapter installs."""

from __future__ import annotations

import json
from dataclasses import replace

from kvpolicy.compiler import compile_policy
from kvpolicy.language import LoadResult, load_policy, load_text
from kvpolicy.language.fields import did_you_mean
from kvpolicy.language.vocabulary import EVICTION_POLICIES
from kvpolicy.replay.simulator import Eviction

__all__ = ["from_result", "load"]


def load(argument: str, engine: str | None = None) -> LoadResult:
    """A file, the name of a shipped policy, or the bare name of a built-in algorithm (``lru``, ``gdsf``).

    A file or shipped policy of that name wins. Problems are in the result's diagnostics.
    """
    result = load_policy(argument, engine)
    if not result.unopenable or not argument.replace("_", "").replace("-", "").isalnum():
        return result
    document = {
        "apiVersion": "kvpolicy/v1",
        "kind": "KVPolicy",
        "metadata": {"name": argument.replace("_", "-")},
        "eviction": {"policy": argument},
    }
    bare = load_text(json.dumps(document).encode(), f"algorithm:{argument}", engine)
    if bare.policy is not None:
        return bare
    help = did_you_mean(argument, EVICTION_POLICIES) or f"algorithms: {', '.join(EVICTION_POLICIES)}"
    result.diagnostics = [replace(d, help=f"{d.help}; {help}") if d.code == "KVP101" else d for d in result.diagnostics]
    return result


def from_result(result: LoadResult, name: str) -> Eviction:
    """Compile a checked policy for replay under the name that reports show. Raises ValueError for one with errors."""
    compiled = compile_policy(result, "sglang")
    return Eviction(
        name,
        compiled.eviction.make_index,
        compiled.eviction.needs_metadata,
        compiled.allocator.watermark,
    )
