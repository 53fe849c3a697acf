"""YAML text -> a tree of located nodes, through PyYAML's `compose`, with every bound checked while it is composed.

The tree is what `extends` merges and what errors point into. It keeps each scalar's place and style, so that an offset
inside an expression can be found again in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from kvpolicy.language.scalars import Value, resolve_plain
from kvpolicy.language.source import Problem, Source

__all__ = ["Entry", "Mapping", "Node", "Scalar", "Sequence", "parse", "to_plain"]

#: The grammar needs seven levels; the parser would take thousands and then hit Python's recursion limit.
MAX_DEPTH = 32
#: Nodes after aliases are expanded: a bound on time (composing costs about 50 us a node) and memory alike.
MAX_NODES = 5_000


@dataclass(slots=True, eq=False)
class Scalar:
    source: Source
    index: int  # of the first character, an anchor before it included
    value: Value  # by the core schema; quoted and block scalars are always strings
    text: str  # the decoded text
    style: str | None  # None plain, ' " quoted, | > block
    end: int = 0


@dataclass(slots=True, eq=False)
class Sequence:
    source: Source
    index: int
    items: list[Node]


@dataclass(slots=True, eq=False)
class Entry:
    key: Scalar
    value: Node


@dataclass(slots=True, eq=False)
class Mapping:
    source: Source
    index: int
    entries: dict[str, Entry]

    def child(self, name: str) -> Node | None:
        entry = self.entries.get(name)
        return entry.value if entry else None


Node = Scalar | Sequence | Mapping


def to_plain(node: Node, *, keep_nulls: bool = False) -> Any:
    """Plain data of a tree. A null in a mapping means "not set" and is dropped, except inside a list (a rule's `match:`
    whose value was forgotten must not become "every unit") and where it has a meaning of its own (``keep_nulls``)."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Sequence):
        return [to_plain(item, keep_nulls=True) for item in node.items]
    pairs = ((name, to_plain(entry.value, keep_nulls=keep_nulls)) for name, entry in node.entries.items())
    return {name: value for name, value in pairs if keep_nulls or value is not None}


def parse(source: Source) -> tuple[Mapping, list[Problem]]:
    """The document's tree, and the problems that do not stop its reading (duplicate keys, 0777).

    Raises:
        Problem: anything after which the rest of the file has no certain meaning.
    """
    try:
        root = _Composer(source.text).get_document()
    except yaml.MarkedYAMLError as error:
        raise _syntax_problem(error, source) from None
    except yaml.reader.ReaderError as error:
        raise Problem(
            "KVP103",
            f"the file contains the control character U+{_codepoint(error):04X}",
            "a policy is plain text; remove the character",
            index=error.position,
        ) from None
    except RecursionError:  # pragma: no cover - MAX_DEPTH comes first; kept because no input may raise
        raise Problem("KVP109", f"the file is nested deeper than {MAX_DEPTH} levels") from None
    if root is None or (isinstance(root, yaml.ScalarNode) and not root.value and root.style is None):
        raise Problem("KVP102", "the file holds no document", "`kvpolicy init FILE` writes a policy to start from")
    builder = _Builder(source)
    tree = builder.build(root, frozenset())
    if not isinstance(tree, Mapping):
        what = "a list" if isinstance(tree, Sequence) else "a single value"
        raise Problem(
            "KVP123",
            f"a policy is a mapping of keys to values; this file is {what}",
            "start with `apiVersion: kvpolicy/v1`",
            index=tree.index,
        )
    return tree, builder.problems


class _Composer(yaml.SafeLoader):
    """PyYAML's composer, refusing tags, depth and sheer number while it reads."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012 - plain scalars are resolved by `scalars`

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._count = 0

    def get_document(self) -> yaml.Node | None:
        """The one document of the stream, None when there is none."""
        self.get_event()  # type: ignore[no-untyped-call]  # StreamStart
        if self.check_event(yaml.StreamEndEvent):
            return None
        root: yaml.Node | None = self.compose_document()
        if not self.check_event(yaml.StreamEndEvent):
            raise Problem(
                "KVP108",
                "the file holds more than one document",
                "one policy a file: remove everything from this `---` on",
                index=self.peek_event().start_mark.index,  # type: ignore[no-untyped-call]
            )
        return root

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise Problem(
                "KVP112",
                f"the tag {_short_tag(tag)} is not allowed",
                "write the bare value; quote it if it must be a string",
                index=event.start_mark.index,
            )
        self._count += 1
        if self._count > MAX_NODES:
            raise _too_many(event.start_mark.index)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Problem("KVP109", f"the file is nested deeper than {MAX_DEPTH} levels", index=event.start_mark.index)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Builder:
    """PyYAML's node graph -> our tree, aliases expanded within the bounds."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self.count = 0

    def build(self, node: yaml.Node, path: frozenset[int], depth: int = 0) -> Node:
        index = node.start_mark.index
        if id(node) in path:
            raise Problem("KVP111", "an alias points to a value that contains it", index=index)
        self.count += 1
        if self.count > MAX_NODES:
            raise _too_many(index)
        if depth > MAX_DEPTH:
            raise Problem("KVP109", f"the file is nested deeper than {MAX_DEPTH} levels", index=index)
        if isinstance(node, yaml.ScalarNode):
            _require_characters(node)
            return self._scalar(node)
        inner = path | {id(node)}
        if isinstance(node, yaml.SequenceNode):
            return Sequence(self.source, index, [self.build(item, inner, depth + 1) for item in node.value])
        entries: dict[str, Entry] = {}
        for key, value in self._pairs(node):
            entry = Entry(key, self.build(value, inner, depth + 1))
            first = entries.setdefault(key.text, entry)
            if first is not entry:
                line, _ = self.source.position(first.key.index)
                self._note(
                    "KVP113", f"the key '{_clip(key.text)}' is given twice", f"first given on line {line}", key.index
                )
        return Mapping(self.source, index, entries)

    def _pairs(self, node: yaml.Node) -> Iterator[tuple[Scalar, yaml.Node]]:
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._note("KVP114", "a key must be a word, not a list or a mapping", None, key.start_mark.index)
                continue
            if key.value == "<<" and key.style is None:
                self._note(
                    "KVP117",
                    "merge keys (<<) are not part of YAML 1.2",
                    "repeat the values, or share them between files with `extends`",
                    key.start_mark.index,
                )
                continue
            _require_characters(key)
            start, end = key.start_mark.index, key.end_mark.index
            yield Scalar(self.source, start, key.value, key.value, key.style, end), value  # a key is its text

    def _scalar(self, node: yaml.ScalarNode) -> Scalar:
        value: Value = node.value
        if node.style is None:
            try:
                value = resolve_plain(node.value)
            except Problem as problem:
                problem.index = node.start_mark.index
                self.problems.append(problem)
        return Scalar(self.source, node.start_mark.index, value, node.value, node.style, node.end_mark.index)

    def _note(self, code: str, message: str, help: str | None, index: int) -> None:
        self.problems.append(Problem(code, message, help, index=index))


def _require_characters(node: yaml.ScalarNode) -> None:
    """Problem for an escape like "\\ud83d": half of a pair, which is no character and cannot be written anywhere."""
    half = next((character for character in node.value if "\ud800" <= character <= "\udfff"), None)
    if half is not None:
        raise Problem(
            "KVP103",
            f"U+{ord(half):04X} is half of a surrogate pair, not a character",
            'write the character itself, or "\\U" and its eight hexadecimal digits',
            index=node.start_mark.index,
        )


def _syntax_problem(error: yaml.MarkedYAMLError, source: Source) -> Problem:
    mark = error.problem_mark or error.context_mark
    index = mark.index if mark is not None else 0
    what = (error.problem or error.context or "invalid YAML").strip()
    line, col = source.position(min(index, len(source.text)))
    before = (source.line(line) or "")[: col - 1]
    found = source.text[index : index + 1]
    if found == "\t" or ("\t" in before and not before.strip()) or "'\\t'" in what:
        return Problem("KVP107", "a tab cannot indent YAML", "use spaces", index=index)
    if "undefined alias" in what:
        return Problem("KVP106", f"YAML: {what}", "an alias (*name) needs an anchor (&name) before it", index=index)
    context = f" {error.context.strip()}" if error.context and error.context != error.problem else ""
    return Problem("KVP106", f"YAML: {what}{context}", _syntax_help(what), index=index)


def _syntax_help(what: str) -> str | None:
    if "mapping values are not allowed" in what:
        return "a ': ' inside a value needs quotes around the value; or the indentation is off"
    if "could not find expected ':'" in what:
        return "a key ends with ': '"
    if "cannot start any token" in what:
        return "quote a value that begins with % @ ` or another special character"
    return None


def _codepoint(error: yaml.reader.ReaderError) -> int:
    found = error.character
    return found if isinstance(found, int) else ord(found[:1] or "\0")


def _too_many(index: int) -> Problem:
    return Problem(
        "KVP110",
        f"the file expands to more than {MAX_NODES:,} values",
        "aliases (*name) multiply; write less",
        index=index,
    )


def _short_tag(tag: str) -> str:
    return _clip(tag.replace("tag:yaml.org,2002:", "!!"))


def _clip(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
