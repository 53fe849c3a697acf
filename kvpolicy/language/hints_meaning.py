"""Meaning layer of `hints:`: words that have no effect beside the others, and rules that wait for what never comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvpolicy.language.diagnostics import Diagnostic, Severity
from kvpolicy.language.models import MAX_RULES
from kvpolicy.language.tree import Mapping, Node, Scalar, Sequence

__all__ = ["hints_of", "unused_class", "words"]

#: Words of the section, and which hint each one is about.
_ABOUT = {"max_ttl": "retain", "budget": "retain", "weight": "retain", "classes": "class"}
_FIELD = "request.hint_class"


def hints_of(hints: Mapping, eviction: Mapping | None) -> Iterator[Diagnostic]:
    """What the section says in vain."""
    allow = hints.entries.get("allow")
    allowed = words(allow.value) if allow is not None else []
    core = eviction.child("core") if eviction is not None else None
    if allow is not None and allowed and isinstance(core, Scalar) and core.value == "engine":
        message = "`hints.allow` needs kvpolicy's index, and `core: engine` leaves it out"
        yield _at(allow.key, "KVP316", "error", message, "write `core: auto`")
    for word, hint in _ABOUT.items():
        entry = hints.entries.get(word)
        if entry is not None and hint not in allowed:
            message = f"`hints.{word}` has no effect while `{hint}` is not allowed"
            yield _at(entry.key, "KVP330", "warning", message, f"write `allow: [{hint}]`, or remove it")
    if allow is not None and "class" in allowed and not words(hints.child("classes")):
        message = "`class` is allowed, and no class is named: every class hint is refused"
        yield _at(allow.key, "KVP330", "warning", message, "name them: `classes: [agent]`")


def unused_class(hints: Mapping | None, eviction: Mapping) -> Iterator[Diagnostic]:
    """Rules that read `request.hint_class` where no request can have one."""
    if hints is not None and "class" in words(hints.child("allow")):
        return
    rules = eviction.child("rules")
    for rule in rules.items[:MAX_RULES] if isinstance(rules, Sequence) else []:
        match = rule.child("match") if isinstance(rule, Mapping) else None
        if isinstance(match, Scalar) and isinstance(match.value, str) and _FIELD in match.value:
            message = f"`{_FIELD}` is always None: the policy allows no class hints"
            help = "write `hints: {allow: [class], classes: [...]}`"
            yield _at(match, "KVP330", "warning", message, help)


def words(node: Node | None) -> list[Any]:
    """The scalars of a list."""
    return [item.value for item in node.items if isinstance(item, Scalar)] if isinstance(node, Sequence) else []


def _at(node: Node, code: str, severity: Severity, message: str, help: str) -> Diagnostic:
    return node.source.at(node.index, code, severity, message, help)
