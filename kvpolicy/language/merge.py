"""`extends` and `engines`: one effective tree out of several, every value keeping the place it was written at.

A mapping merges key by key; anything else, lists and so `eviction.rules` too, replaces what the parent had. A null
drops the parent's value. `metadata` and `tests` belong to one file and are not inherited.
"""

from __future__ import annotations

import os
from pathlib import Path

from kvpolicy.language import shipped_policies
from kvpolicy.language.diagnostics import Diagnostic
from kvpolicy.language.source import MAX_BYTES, Problem, Source
from kvpolicy.language.tree import Entry, Mapping, Scalar, parse

__all__ = ["MAX_PARENTS", "for_engine", "load_chain", "merge"]

#: Parents above one policy: more is a maze, not a library.
MAX_PARENTS = 8
_NOT_INHERITED = ("metadata", "tests", "extends")


def load_chain(source: Source, path: Path | None) -> tuple[Mapping | None, list[Diagnostic], list[Source]]:
    """The tree of ``source`` with its parents merged in, what was found on the way, and every source read.

    ``path`` is the file that ``source`` came from, None for given text. The tree is None when the file itself, or a
    parent, could not be read.
    """
    diagnostics: list[Diagnostic] = []
    sources: list[Source] = []
    trees: list[Mapping] = []
    seen: set[str] = set()
    asked: Scalar | None = None  # the `extends` that leads to the source in hand
    while True:
        sources.append(source)
        if path is not None:
            seen.add(os.path.realpath(path))
        try:
            tree, problems = parse(source)
        except Problem as problem:
            diagnostics.append(_at(source, problem))
            return None, diagnostics, sources
        diagnostics += [_at(source, problem) for problem in problems]
        trees.append(tree)
        entry = tree.entries.get("extends")
        if entry is None or (isinstance(entry.value, Scalar) and entry.value.value is None):
            break
        asked = entry.value if isinstance(entry.value, Scalar) and isinstance(entry.value.value, str) else None
        if asked is None:
            what = "one parent, not several" if not isinstance(entry.value, Scalar) else "a name or a path"
            diagnostics.append(
                source.at(
                    entry.value.index,
                    "KVP122",
                    "error",
                    f"`extends` takes {what}",
                    "give builtin:NAME or a path relative to this file",
                )
            )
            return None, diagnostics, sources
        try:
            source, path = _parent(asked, source, path, seen, sources)
        except Problem as problem:
            diagnostics.append(_at(asked.source, problem, asked.index))
            return None, diagnostics, sources
    effective = trees[-1]
    for child in reversed(trees[:-1]):
        effective = merge(_inheritable(effective), child)
    return effective, diagnostics, sources


def _parent(
    asked: Scalar, child: Source, path: Path | None, seen: set[str], sources: list[Source]
) -> tuple[Source, Path]:
    shown, found = shipped_policies.parent_of(str(asked.value), child, path.parent if path is not None else None)
    if os.path.realpath(found) in seen:
        chain = " -> ".join([*(s.name for s in sources), shown])
        raise Problem("KVP119", f"`extends` runs in a circle: {chain}", "remove one of the steps")
    if len(sources) > MAX_PARENTS:
        raise Problem(
            "KVP120", f"more than {MAX_PARENTS} parents above one policy", "flatten some with `kvpolicy show`"
        )
    try:
        parent = shipped_policies.read(shown, found, is_parent=True)
    except Problem as problem:
        if problem.code == "KVP118":
            raise
        raise Problem(problem.code, f"the parent {shown}: {problem.message}", problem.help) from None
    if sum(len(s.text) for s in sources) + len(parent.text) > MAX_BYTES:
        raise Problem("KVP105", f"the policy and its parents are larger than {MAX_BYTES // 1024} KiB together")
    return parent, found


def merge(parent: Mapping, child: Mapping, path: tuple[str, ...] = ()) -> Mapping:
    """``child`` over ``parent``. Within `eviction`, a score clears the parent's policy and params, and vice versa."""
    entries = dict(parent.entries)
    if path == ("eviction",):
        if "score" in child.entries:
            entries.pop("policy", None)
            entries.pop("params", None)
        if "policy" in child.entries:
            entries.pop("score", None)
            entries.pop("params", None)
    for name, entry in child.entries.items():
        below = entries.get(name)
        if isinstance(entry.value, Scalar) and entry.value.value is None:
            entries.pop(name, None)
        elif below is not None and isinstance(below.value, Mapping) and isinstance(entry.value, Mapping):
            entries[name] = Entry(entry.key, merge(below.value, entry.value, (*path, name)))
        else:
            entries[name] = entry
    return Mapping(child.source, child.index, entries)


def for_engine(tree: Mapping, engine: str) -> Mapping:
    """The tree as one engine reads it: its `engines` section merged over the rest, and `engines` gone."""
    base = Mapping(tree.source, tree.index, {name: entry for name, entry in tree.entries.items() if name != "engines"})
    engines = tree.child("engines")
    override = engines.child(engine) if isinstance(engines, Mapping) else None
    if not isinstance(override, Mapping):
        return base
    merged = merge(base, override)
    return Mapping(tree.source, tree.index, merged.entries)


def _inheritable(tree: Mapping) -> Mapping:
    return Mapping(
        tree.source, tree.index, {name: entry for name, entry in tree.entries.items() if name not in _NOT_INHERITED}
    )


def _at(source: Source, problem: Problem, index: int | None = None) -> Diagnostic:
    return source.at(problem.index if index is None else index, problem.code, "error", problem.message, problem.help)
