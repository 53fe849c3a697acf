"""Meaning layer: fields that contradict each other. It works on the tree: a type error elsewhere hides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

from pydantic_core import PydanticCustomError

from kvpolicy.language.diagnostics import Diagnostic, Severity
from kvpolicy.language.eviction_words import parameters, policy_word
from kvpolicy.language.fields import parse_layer_range
from kvpolicy.language.hints_meaning import hints_of, unused_class, words
from kvpolicy.language.models import MAX_RULES, Hints
from kvpolicy.language.tree import Entry, Mapping, Node, Scalar, Sequence
from kvpolicy.language.units import UnitError, parse_share
from kvpolicy.language.vocabulary import DTYPE_ALIASES, EVICTION_POLICIES

__all__ = ["meaning", "rules_of", "section"]

_ACTIONS = ("retain", "admit", "priority")
_DEFAULT_MAX_FLOORS = 8
_DEFAULT_HINTS_BUDGET: float = Hints().budget
#: What status and metrics call the victims that no rule protected.
_NO_RULE = "none"


def meaning(tree: Mapping) -> Iterator[Diagnostic]:
    """Everything that the fields of a tree, each well-typed, still get wrong together."""
    if cache := section(tree, "cache"):
        for field in ("page_size", "kv_dtype"):
            yield from _preference(section(cache, field), "default" if field == "kv_dtype" else "prefer")
        if dtype := section(cache, "kv_dtype"):
            yield from _layers(section(dtype, "layers"))
    if backend := section(tree, "backend"):
        yield from _preference(section(backend, "attention"), "prefer")
    if watermark := section(section(tree, "allocator"), "watermark"):
        low, high = watermark.child("low"), watermark.child("high")
        if low and high and (a := _share(low)) is not None and (b := _share(high)) is not None and a > b:
            yield _at(
                low,
                "KVP310",
                "error",
                f"the low watermark {_text(low)} lies above the high one {_text(high)}",
                "swap them",
            )
    hints = section(tree, "hints")
    if hints:
        yield from hints_of(hints, section(tree, "eviction"))
    if eviction := section(tree, "eviction"):
        yield from _order(eviction)
        yield from _rules(eviction)
        yield from _tenants(section(eviction, "tenants"))
        yield from _promises(eviction, hints)
        yield from unused_class(hints, eviction)


def section(tree: Mapping | None, name: str) -> Mapping | None:
    """A mapping child, None when it is absent or something else (the schema layer says so)."""
    child = tree.child(name) if tree else None
    return child if isinstance(child, Mapping) else None


def rules_of(eviction: Mapping) -> list[Mapping]:
    """The rules that are looked at: those beyond the limit are one error of the schema layer."""
    rules = eviction.child("rules")
    items = rules.items[:MAX_RULES] if isinstance(rules, Sequence) else []
    return [rule for rule in items if isinstance(rule, Mapping)]


def _preference(choice: Mapping | None, preferring: str) -> Iterator[Diagnostic]:
    if choice is None:
        return
    preferred = _written(choice, preferring) or _written(choice, "prefer")
    accept = choice.entries.get("accept")
    accepted = accept.value.items if accept and isinstance(accept.value, Sequence) else []
    words = [_canonical(item) for item in accepted]
    if accept and words and preferred is None:
        yield _at(
            accept.key, "KVP313", "error", "`accept` without `prefer` asks for nothing", f"add `prefer: {words[0]}`"
        )
    elif (
        preferred
        and isinstance(preferred.value, Scalar)
        and words
        and (word := _canonical(preferred.value)) not in words
    ):
        if word == "auto":
            return
        listed = ", ".join(map(str, [word, *words[:8]]))
        yield _at(preferred.value, "KVP311", "error", f"{word} is preferred but not in `accept`", f"accept: [{listed}]")


def _layers(layers: Mapping | None) -> Iterator[Diagnostic]:
    """Ranges that overlap. Those counted from different ends meet only in a model of known depth: not compared here."""
    spans: dict[bool, list[tuple[float, float, str, Entry]]] = {False: [], True: []}  # by "counted from the end"
    for name, entry in layers.entries.items() if layers else ():
        try:
            ranges = parse_layer_range(name)
        except PydanticCustomError:  # the schema layer says so
            continue
        for start, stop in ranges:
            first: float = start or 0
            last: float = stop if stop is not None else (0 if first < 0 else inf)
            if first < last and (first < 0) == (last <= 0):
                spans[first < 0].append((first, last, str(_canonical(entry.value)), entry))
    for side in spans.values():
        reach: dict[str, tuple[float, str]] = {}  # dtype -> (furthest layer so far, the range that reaches it)
        for first, last, dtype, entry in sorted(side, key=lambda span: span[:2]):
            for other, (end, name) in reach.items():
                if other != dtype and first < end:
                    message = f"the layers '{entry.key.text}' overlap '{name}', which has {other}"
                    yield _at(entry.key, "KVP319", "error", message, "give each layer one dtype")
                    return
            reach[dtype] = max(reach.get(dtype, (0 - inf, "")), (last, entry.key.text))


def _order(eviction: Mapping) -> Iterator[Diagnostic]:
    policy, score = _written(eviction, "policy"), _written(eviction, "score")
    params = _written(eviction, "params")
    if policy and score:
        later = max(policy, score, key=lambda entry: entry.key.index)
        yield _at(later.key, "KVP301", "error", "`score` and `policy` both say what goes first", "keep one of the two")
    if policy and isinstance(policy.value, Scalar) and isinstance(policy.value.value, str):
        yield from policy_word(policy.value)
        if params and isinstance(params.value, Mapping):
            yield from parameters(str(policy.value.value), params.value)
    elif params and not policy and not (isinstance(params.value, Mapping) and not params.value.entries):
        yield _at(
            params.key,
            "KVP304",
            "error",
            "`params` without `policy`",
            "add the `policy` they belong to, or remove them",
        )
    core = _written(eviction, "core")
    if core and _word(core.value) == "engine":
        yield from _engine_core(eviction, policy)


def _engine_core(eviction: Mapping, policy: Entry | None) -> Iterator[Diagnostic]:
    help = "write `core: auto`"
    for field in ("score", "rules", "tenants"):
        entry = _written(eviction, field)
        if entry and not (isinstance(entry.value, Sequence) and not entry.value.items):
            yield _at(
                entry.key,
                "KVP316",
                "error",
                f"`{field}` needs kvpolicy's index, and `core: engine` leaves it out",
                help,
            )
    known = EVICTION_POLICIES.get(str(_word(policy.value))) if policy else None
    if policy and known and not known.stock:
        message = f"`{_word(policy.value)}` is no built-in order of an engine, and `core: engine` has only those"
        yield _at(policy.value, "KVP316", "error", message, help)


def _rules(eviction: Mapping) -> Iterator[Diagnostic]:
    names: dict[str, int] = {}
    catch_all: str | None = None
    for rule in rules_of(eviction):
        name = rule.child("name")
        label = str(_word(name)) if name and _word(name) is not None else "?"
        if isinstance(name, Scalar) and label != "?":
            if label in names:
                yield _at(
                    name, "KVP306", "error", f"the rule name '{label}' is given twice", f"first on line {names[label]}"
                )
            names.setdefault(label, name.source.position(name.index)[0])
            if label == _NO_RULE:
                message = f"the rule name '{label}' is taken: status and metrics count under it what no rule protects"
                yield _at(name, "KVP208", "error", message, "choose another name")
        at: Node = name or rule
        actions = [action for action in _ACTIONS if action in rule.entries]
        if not actions:
            yield _at(at, "KVP305", "error", f"the rule '{label}' does nothing", "add retain, admit: never or priority")
        if "admit" in actions and len(actions) > 1:
            other = next(a for a in actions if a != "admit")
            message = f"`admit: never` leaves nothing in the cache, so `{other}` has no effect"
            yield _at(
                rule.entries[other].key, "KVP315", "error", message, "split the rule in two, with different matches"
            )
        if catch_all is not None:
            message = f"the rule '{label}' is never reached: '{catch_all}' above it has no match and takes every unit"
            yield _at(at, "KVP312", "warning", message, "move it up, or give the rule above a match")
        if "match" not in rule.entries and actions:
            catch_all = catch_all or label


def _tenants(tenants: Mapping | None) -> Iterator[Diagnostic]:
    if tenants is None:
        return
    cap, floor = _share(tenants.child("cap")), _share(tenants.child("floor"))
    yield from _floor_below_cap(tenants, floor, cap, "")
    named = section(tenants, "named")
    for name, entry in named.entries.items() if named else ():
        if not name:
            message = "a tenant with an empty name: requests without a cache_salt have no name"
            yield _at(entry.key, "KVP208", "error", message, "`floor` and `cap` beside `named` are theirs too")
        if isinstance(entry.value, Mapping):
            own_floor, own_cap = _share(entry.value.child("floor")), _share(entry.value.child("cap"))
            yield from _floor_below_cap(entry.value, own_floor, own_cap, f" of '{name}'")
    limit = _written(tenants, "max_floors")
    if limit and not _written(tenants, "floor") and _word(limit.value) != 0:
        yield _at(
            limit.key,
            "KVP317",
            "warning",
            "`max_floors` has no effect without `floor`",
            "add `floor: 5%`, or remove it",
        )


def _floor_below_cap(at: Mapping, floor: float | None, cap: float | None, whose: str) -> Iterator[Diagnostic]:
    node = at.child("floor")
    if node is not None and floor is not None and cap is not None and floor > cap:
        yield _at(
            node,
            "KVP309",
            "error",
            f"the floor{whose} ({floor * 100:.6g}% of the pool) lies above the cap ({cap * 100:.6g}%)",
        )


def _promises(eviction: Mapping, hints: Mapping | None) -> Iterator[Diagnostic]:
    """max_floors * floor + named floors + budgets, that of hints too, <= 100 %."""
    parts: list[tuple[str, float]] = []
    places: list[Node] = []
    if tenants := section(eviction, "tenants"):
        floor = tenants.child("floor")
        count = _word(tenants.child("max_floors"))
        count = count if isinstance(count, int) and not isinstance(count, bool) else _DEFAULT_MAX_FLOORS
        if floor and (share := _share(floor)):
            parts.append((f"{count} floors of {_text(floor)}", count * share))
            places.append(floor)
        named = section(tenants, "named")
        for name, entry in named.entries.items() if named else ():
            node = entry.value.child("floor") if isinstance(entry.value, Mapping) else None
            if node and (share := _share(node)):
                parts.append((f"{name}'s {_text(node)}", share))
                places.append(node)
    for rule in rules_of(eviction):
        retain = rule.child("retain")
        node = retain.child("budget") if isinstance(retain, Mapping) else None
        if node and (share := _share(node)):
            parts.append((f"{_word(rule.child('name'))}'s budget {_text(node)}", share))
            places.append(node)
    if hints is not None and "retain" in words(hints.child("allow")):
        node = hints.child("budget")
        share = _DEFAULT_HINTS_BUDGET if node is None else _share(node) or 0.0
        parts.append((f"the hints' budget {share * 100:.6g}%", share))
        if node is not None:
            places.append(node)
    total = sum(share for _, share in parts)
    if total > 1 + 1e-9:
        sum_text = " + ".join(text for text, _ in parts)
        help = "floors and budgets together must leave the pool at or below 100%"
        data = {"total": round(total, 6)}
        yield places[-1].source.at(
            places[-1].index, "KVP308", "error", f"{sum_text} = {total * 100:.4g}% of the pool", help, data
        )


def _written(tree: Mapping, name: str) -> Entry | None:
    entry = tree.entries.get(name)
    return None if entry is None or (isinstance(entry.value, Scalar) and entry.value.value is None) else entry


def _word(node: Node | None) -> Any:
    return node.value if isinstance(node, Scalar) else None


def _text(node: Node) -> str:
    return node.text if isinstance(node, Scalar) else "?"


def _canonical(node: Node) -> Any:
    word = _word(node)
    return DTYPE_ALIASES.get(word, word) if isinstance(word, str) else word


def _share(node: Node | None) -> float | None:
    try:
        return parse_share(_word(node)) if node else None
    except UnitError:
        return None


def _at(node: Node, code: str, severity: Severity, message: str, help: str | None = None) -> Diagnostic:
    return node.source.at(node.index, code, severity, message, help)
