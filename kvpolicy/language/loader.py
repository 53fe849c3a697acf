"""`load_policy`: from an argument to a checked, typed policy. Bad input gives diagnostics, never an exception."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvpolicy.language import shipped_policies
from kvpolicy.language.capabilities import ADAPTED_ENGINES, conflicts
from kvpolicy.language.diagnostics import Diagnostic, PolicyError, has_errors
from kvpolicy.language.dump import dump
from kvpolicy.language.fields import usable_name
from kvpolicy.language.meaning import meaning
from kvpolicy.language.merge import for_engine, load_chain
from kvpolicy.language.models import Policy
from kvpolicy.language.sites import expressions
from kvpolicy.language.source import Problem, Source, decode
from kvpolicy.language.tests_meaning import tests_meaning
from kvpolicy.language.tree import Mapping, parse, to_plain
from kvpolicy.language.validate import MAX_FINDINGS, document, find, validate

__all__ = ["ENGINES", "LoadResult", "digest_of", "load_policy", "load_text", "policy_from_flat"]

ENGINES = ("sglang", "vllm")


@dataclass(slots=True)
class LoadResult:
    """What came of one argument. ``policy``, ``flat`` and ``digest`` are there only when no error was found."""

    file: str
    engine: str | None
    policy: Policy | None = None
    diagnostics: list[Diagnostic] = field(default_factory=list)
    flat: dict[str, Any] = field(default_factory=dict)
    digest: str = ""
    sources: dict[str, Source] = field(default_factory=dict)  # by shown name, for carets
    tree: Mapping | None = None  # effective: after `extends`, and after `engines` when an engine was given

    @property
    def unopenable(self) -> bool:
        """The argument itself does not exist or cannot be opened: bad usage rather than a bad policy."""
        return any(d.code == "KVP101" for d in self.diagnostics)

    def origin(self, path: str | tuple[str | int, ...]) -> tuple[str, int, int] | None:
        """(file, line, column) that a value of ``flat`` comes from, None when no file wrote it."""
        parts = _parts(path) if isinstance(path, str) else path
        if self.tree is None:
            return None
        node, _, exists = find(self.tree, parts)
        return (node.source.name, *node.source.position(node.index)) if exists else None

    def locate(self, path: str | tuple[str | int, ...]) -> tuple[str, int, int]:
        """As :meth:`origin`, but of the nearest enclosing value when ``path`` itself was not written."""
        parts = _parts(path) if isinstance(path, str) else path
        if self.tree is None:
            return self.file, 1, 1
        node, key, exists = find(self.tree, parts)
        at = key if key is not None and not exists else node
        return (at.source.name, *at.source.position(at.index))


def load_policy(argument: str | Path, engine: str | None = None) -> LoadResult:
    """Load, merge and check a policy: a path, the name of a shipped policy, or `builtin:NAME`.

    With ``engine`` its `engines` section is merged in and what its adapter cannot honour is reported.

    Raises:
        ValueError: ``engine`` is not one of ``ENGINES``. Nothing that a file contains raises.
    """
    text = str(argument)
    try:
        shown, path = shipped_policies.locate(text)
        source = shipped_policies.read(shown, path)
    except Problem as problem:
        return _unreadable(text, problem, engine)
    return _load(source, path, engine)


def load_text(raw: bytes, name: str = "<stdin>", engine: str | None = None) -> LoadResult:
    """As :func:`load_policy`, for a policy that is already in memory; relative parents are looked up from here."""
    try:
        source = Source(name, decode(raw))
    except Problem as problem:
        return _unreadable(name, problem, engine)
    return _load(source, None, engine)


def policy_from_flat(flat: dict[str, Any], engine: str | None = None) -> Policy:
    """The policy of a flattened document, as processes carry it; ``engine`` merges in its section where one is left.

    Raises:
        PolicyError: the document is not a valid policy (another version of kvpolicy wrote it, or it was edited).
    """
    data = {key: value for key, value in flat.items() if key != "tests"}
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair: JSON has escapes for it too
        message = f"U+{ord(error.object[error.start]):04X} is half of a surrogate pair, not a character"
        raise PolicyError([Diagnostic("<flattened policy>", 1, 1, "KVP103", "error", message)]) from None
    if engine and data.get("engines"):
        data = to_plain(for_engine(parse(Source("", dump(data)))[0], engine))
    try:
        return Policy.from_document(data)
    except ValidationError as error:
        raise PolicyError(
            Diagnostic("<flattened policy>", 1, 1, "KVP203", "error", f"{'.'.join(map(str, e['loc']))}: {e['msg']}")
            for e in error.errors(include_url=False)
        ) from None


def digest_of(flat: dict[str, Any]) -> str:
    """sha256 (hex) over the canonical JSON of a flattened policy."""
    text = json.dumps(flat, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _load(source: Source, path: Path | None, engine: str | None) -> LoadResult:
    if engine is not None and engine not in ENGINES:
        raise ValueError(f"unknown engine {engine!r}: one of {', '.join(ENGINES)}")
    result = LoadResult(source.name, engine)
    tree, found, sources = load_chain(source, path)
    result.sources = {s.name: s for s in sources}
    if tree is None:
        result.diagnostics = found
        return result
    name = usable_name(path.stem) if path is not None else "policy"
    policy, schema = validate(tree, name)
    found += schema
    found += _beyond_types(tree)
    # The file as one engine reads it; without one, as each would: an error in an override is an error of the file.
    for each in [engine] if engine else ENGINES:
        resolved = for_engine(tree, each)
        if resolved.entries != {name: entry for name, entry in tree.entries.items() if name != "engines"} or engine:
            specific, more = validate(resolved, name)
            found += [*more, *_beyond_types(resolved)]
            policy = specific if engine else policy
        if engine or each in ADAPTED_ENGINES:
            found += conflicts(resolved, each, is_target=engine is not None)
    result.tree = for_engine(tree, engine) if engine else tree
    result.diagnostics = _ordered(found, [s.name for s in sources])
    if policy is not None and not has_errors(found):
        result.policy = policy
        result.flat = {key: value for key, value in document(result.tree, name).items() if key != "tests"}
        result.digest = digest_of(result.flat)
    return result


def _beyond_types(tree: Mapping) -> Iterator[Diagnostic]:
    yield from meaning(tree)
    yield from expressions(tree)
    yield from tests_meaning(tree)


def _unreadable(name: str, problem: Problem, engine: str | None) -> LoadResult:
    result = LoadResult(name, engine)
    result.diagnostics = [Diagnostic(name, *problem.place, problem.code, "error", problem.message, problem.help)]
    return result


def _ordered(found: list[Diagnostic], files: list[str]) -> list[Diagnostic]:
    """Each finding once, by file (the policy before its parents) and place."""
    unique: dict[tuple[Any, ...], Diagnostic] = {}
    for d in found:
        unique.setdefault((d.file, d.line, d.col, d.code, d.message), d)
    rank = {name: index for index, name in enumerate(files)}
    ordered = sorted(unique.values(), key=lambda d: (rank.get(d.file, 99), d.line, d.col, d.code))
    if len(ordered) > MAX_FINDINGS:
        first = ordered[MAX_FINDINGS]
        message = f"more than {MAX_FINDINGS} findings; those from here on are not listed"
        more = Diagnostic(first.file, first.line, first.col, "KVP211", "error", message, "is this the right file?")
        ordered = [*ordered[:MAX_FINDINGS], more]
    return ordered


def _parts(path: str) -> tuple[str | int, ...]:
    """`eviction.rules[0].match` -> ("eviction", "rules", 0, "match")."""
    parts: list[str | int] = []
    for piece in path.replace("[", ".[").split("."):
        if piece.startswith("["):
            parts.append(int(piece.strip("[]")))
        elif piece:
            parts.append(piece)
    return tuple(parts)
