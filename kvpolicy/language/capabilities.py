"""What each engine's adapter cannot honour yet: the one table, and the conflicts that follow from it.

A field that works leaves the table in the commit that makes it work. `harmless` holds the values that ask for
nothing, and so are honoured by doing nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvpolicy.language.diagnostics import Diagnostic, Severity
from kvpolicy.language.fields import did_you_mean
from kvpolicy.language.tree import Mapping, Node, Scalar, Sequence, to_plain
from kvpolicy.language.validate import find
from kvpolicy.language.vocabulary import ATTENTION_BACKENDS, DTYPE_ALIASES, KV_DTYPES

__all__ = ["ADAPTED_ENGINES", "MISSING", "Gap", "conflicts"]


@dataclass(frozen=True, slots=True)
class Gap:
    """A field (dotted) that the adapter of ``engine`` does nothing with."""

    engine: str
    field: str
    why: str
    harmless: tuple[Any, ...] = ()


MISSING: tuple[Gap, ...] = (
    Gap("vllm", "backend.page_native", "vLLM's kernels read pages on every backend", harmless=(True,)),
    Gap(
        "vllm",
        "backend.cascade",
        "vLLM decides by thresholds of its own, where it has a cascade at all",
        harmless=("auto", "off"),
    ),
    Gap("vllm", "allocator.order", "vLLM hands out blocks in the order in which it evicts them"),
    Gap("vllm", "allocator.watermark", "vLLM has no marks: the adapter evicts a few blocks ahead by itself"),
    Gap("vllm", "allocator.guard", "the adapter adds no guard to vLLM's block pool", harmless=("off",)),
)

#: Engines whose conflicts matter to a `check` that names no engine.
ADAPTED_ENGINES = ("sglang", "vllm")


def conflicts(tree: Mapping, engine: str, *, is_target: bool) -> Iterator[Diagnostic]:
    """Conflicts of an engine-resolved tree with ``engine``. Warnings only, unless it is known to be the target."""
    mode = _word(find_value(tree, "cache.on_conflict"))
    severity: Severity = "error" if is_target and mode != "warn" else "warning"
    for gap in MISSING:
        if gap.engine == engine:
            yield from _gap(tree, gap, severity)
    if engine == "vllm":
        yield from _order_of_vllm(tree, severity)
    yield from _unknown(tree, engine, severity, "cache.kv_dtype", "KV dtype", KV_DTYPES, "default")
    yield from _unknown(tree, engine, severity, "backend.attention", "attention backend", ATTENTION_BACKENDS, "prefer")


def find_value(tree: Mapping, field: str) -> Node | None:
    """The node at a dotted path, None when it is not written (or null)."""
    node, _, exists = find(tree, tuple(field.split(".")))
    return None if not exists or (isinstance(node, Scalar) and node.value is None) else node


def _gap(tree: Mapping, gap: Gap, severity: Severity) -> Iterator[Diagnostic]:
    node, key, _ = find(tree, tuple(gap.field.split(".")))
    value = find_value(tree, gap.field)
    if value is None or to_plain(value) in gap.harmless:
        return
    at = key or node
    drop = "null"
    for part in reversed(gap.field.split(".")):
        drop = f"{{{part}: {drop}}}"
    yield at.source.at(
        at.index,
        "KVP601",
        severity,
        f"`{gap.field}` is not honoured on {gap.engine} yet: {gap.why}",
        f"remove it, or drop it for this engine: `engines: {{{gap.engine}: {drop}}}`",
        {"engine": gap.engine, "field": gap.field},
    )


def _order_of_vllm(tree: Mapping, severity: Severity) -> Iterator[Diagnostic]:
    """With `core: engine` the engine's own order serves, and vLLM has one."""
    policy = find_value(tree, "eviction.policy")
    if _word(find_value(tree, "eviction.core")) != "engine" or policy is None or _word(policy) == "lru":
        return
    yield policy.source.at(
        policy.index,
        "KVP601",
        severity,
        f"`policy: {_word(policy)}` with `core: engine` is not honoured on vllm: its own order is lru",
        "write `core: auto`, or drop it for this engine: `engines: {vllm: {eviction: {core: auto}}}`",
        {"engine": "vllm", "field": "eviction.policy"},
    )


def _unknown(
    tree: Mapping,
    engine: str,
    severity: Severity,
    field: str,
    what: str,
    known: dict[str, tuple[str, ...]],
    preferring: str,
) -> Iterator[Diagnostic]:
    """A conflict when the engine knows none of the acceptable words; a fallback inside `accept` is none."""
    node = find_value(tree, field)
    words: list[Scalar] = []
    if isinstance(node, Mapping):
        for key in (preferring, "prefer", "accept"):
            child = node.child(key)
            words += [w for w in (child.items if isinstance(child, Sequence) else [child]) if isinstance(w, Scalar)]
    elif isinstance(node, Scalar):
        words = [node]
    names = [DTYPE_ALIASES.get(str(word.value), str(word.value)) for word in words]
    if not words or any(name == "auto" or name not in known or engine in known[name] for name in names):
        return
    there = [name for name, engines in known.items() if engine in engines and name != "auto"]
    yield words[0].source.at(
        words[0].index,
        "KVP602",
        severity,
        f"{engine} has no {what} '{names[0]}'",
        did_you_mean(names[0], there) or f"it has {', '.join(there[:8])}, ...",
        {"engine": engine, "field": field},
    )


def _word(node: Node | None) -> Any:
    return node.value if isinstance(node, Scalar) else None
