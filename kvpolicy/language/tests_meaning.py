"""Meaning of the `tests:` section: lengths, and expectations of things that no step brings about."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from kvpolicy.language.diagnostics import Diagnostic, Severity
from kvpolicy.language.fields import WRITTEN, did_you_mean
from kvpolicy.language.hints_meaning import words
from kvpolicy.language.meaning import rules_of, section
from kvpolicy.language.policy_tests import HINTS_RULE, NOBODY, UNPROTECTED, Event, Expectation, PolicyTest, length_of
from kvpolicy.language.tree import Mapping, Node, Sequence, to_plain

__all__ = ["MAX_TEST_TOKENS", "tests_meaning"]

#: Requests' tokens of one test, all steps together: a test is small and runs in well under a second.
MAX_TEST_TOKENS = 4 * 2**20


def tests_meaning(tree: Mapping) -> Iterator[Diagnostic]:
    """What is wrong with tests that are each well-typed; a test with a type error is left to the schema layer."""
    tests = tree.child("tests")
    eviction = section(tree, "eviction")
    rules = [str(to_plain(name)) for rule in (rules_of(eviction) if eviction else ()) if (name := rule.child("name"))]
    hints = section(tree, "hints")
    if hints is not None and "retain" in words(hints.child("allow")):
        rules.append(HINTS_RULE)
    names: dict[str, int] = {}
    for item in tests.items if isinstance(tests, Sequence) else ():
        if not isinstance(item, Mapping):
            continue
        try:
            test = PolicyTest.model_validate(to_plain(item), context=WRITTEN)
        except ValidationError:
            continue
        name = item.entries["name"].value
        if test.name in names:
            yield _at(name, "KVP325", f"the test '{test.name}' is there twice", f"first on line {names[test.name]}")
        names.setdefault(test.name, name.source.position(name.index)[0])
        yield from _Test(item, test, rules).findings()


class _Test:
    def __init__(self, node: Mapping, test: PolicyTest, rules: list[str]) -> None:
        self._node, self._test, self._rules = node, test, rules
        self._lengths: dict[str, int] = {}
        self._paths: set[tuple[str, ...]] = set()  # requested so far, with all their prefixes
        self._tenants: set[str] = set()

    def findings(self) -> Iterator[Diagnostic]:
        steps = self._node.entries["steps"].value
        assert isinstance(steps, Sequence)
        total = 0
        expects = False
        for step, node in zip(self._test.steps, steps.items, strict=True):
            if isinstance(step, Event):
                yield from self._event(step, node)
                tokens = step.flood_tokens or sum(self._lengths.get(name, 0) for name in step.names)
                total += tokens * step.repeat
                expects |= step.hit is not None
            else:
                assert isinstance(step, Expectation)
                expects |= bool(step.model_fields_set)
                yield from self._expectation(step, node)
        at = self._node.entries["name"].value
        if not expects:
            yield _at(
                at, "KVP324", "the test expects nothing, so it cannot fail", "add `hit N` or an expectation", "warning"
            )
        if total > MAX_TEST_TOKENS or self._test.pool > MAX_TEST_TOKENS:
            most = max(total, self._test.pool)
            yield _at(
                at,
                "KVP326",
                f"the test is too large: {most} tokens",
                f"at most {MAX_TEST_TOKENS}; shrink pool and prompts alike",
            )
        if self._test.pool < self._test.page_size:
            yield _at(at, "KVP326", "the pool holds not even one page", f"at least {self._test.page_size} tokens")

    def _event(self, event: Event, node: Node) -> Iterator[Diagnostic]:
        for segment in (*event.path, *((event.output,) if event.output else ())):
            known = self._lengths.get(segment.name, length_of(segment.name, self._test.segments))
            if segment.tokens is None and known is None:
                yield _at(
                    node,
                    "KVP321",
                    f"the segment '{segment.name}' has no length",
                    f"write {segment.name}:64, or declare it: `segments: {{{segment.name}: 64}}`",
                )
            elif segment.tokens is not None and known not in (None, segment.tokens):
                message = f"the segment '{segment.name}' has {known} tokens and {segment.tokens}"
                yield _at(node, "KVP321", message, "one name, one length; give the other one a name of its own")
            self._lengths.setdefault(segment.name, segment.tokens or known or 1)
        names = event.names
        self._paths |= {names[:end] for end in range(1, len(names) + 1)} or {("flood",)}
        self._tenants.add(event.tenant or NOBODY)

    def _expectation(self, step: Expectation, node: Node) -> Iterator[Diagnostic]:
        assert isinstance(node, Mapping)
        for field in ("resident", "evicted", "absent", "unprotected", "next"):
            for index, path in enumerate(getattr(step, field)):
                if path == ("flood",) and field != "next":
                    path = ("flood", "")  # only as a victim has a flood a name
                yield from self._known_path(path, _item(node, field, index))
        for name, rule in step.protected.items():
            key = node.entries["protected"].value
            assert isinstance(key, Mapping)
            entry = key.entries[name]
            yield from self._known_path(tuple(part.partition(":")[0] for part in name.split("/")), entry.key)
            yield from self._known_rule(rule, entry.value, ())
        for field, known, word in (
            ("evicted_tokens", self._rules, UNPROTECTED),
            ("tenant_tokens", self._tenants, NOBODY),
        ):
            table = node.child(field)
            for name, entry in table.entries.items() if isinstance(table, Mapping) else ():
                if field == "evicted_tokens":
                    yield from self._known_rule(name, entry.key, (word,))
                elif name not in known and name != word:
                    guess = did_you_mean(name, sorted(self._tenants)) or "write `tenant=NAME` in a step"
                    yield _at(entry.key, "KVP322", f"no step above has the tenant '{name}'", guess)

    def _known_path(self, path: tuple[str, ...], node: Node) -> Iterator[Diagnostic]:
        if path not in self._paths:
            shown = "/".join(path).rstrip("/")
            guess = did_you_mean(shown, ["/".join(known) for known in sorted(self._paths)])
            yield _at(
                node,
                "KVP322",
                f"no step above requests '{shown}'",
                guess or "an expectation is about what the steps before it did",
            )

    def _known_rule(self, rule: str, node: Node, words: tuple[str, ...]) -> Iterator[Diagnostic]:
        if rule not in (*self._rules, *words):
            guess = did_you_mean(rule, [*self._rules, *words])
            known = ", ".join([*self._rules, *words])
            yield _at(
                node, "KVP323", f"the policy has no rule '{rule}'", guess or (f"it has {known}" if known else None)
            )


def _item(node: Mapping, field: str, index: int) -> Node:
    items = node.entries[field].value
    assert isinstance(items, Sequence)
    return items.items[index]


def _at(node: Node, code: str, message: str, help: str | None, severity: Severity = "error") -> Diagnostic:
    return node.source.at(node.index, code, severity, message, help)
