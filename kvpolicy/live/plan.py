"""What changing one policy into another would do: each changed field, and when the change can take effect.

Pure: two flattened policies in, a :class:`Plan` out. `kvpolicy diff` prints it for files, `plan` for a running server,
and a server makes it again for what it was asked to apply.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvpolicy.language import Policy, digest_of, policy_from_flat
from kvpolicy.language.mutability import MUTABILITY, WISHES, Mutability, mutability

__all__ = ["COSTS", "Change", "Plan", "effective_of", "make_plan", "plan_from_json", "render"]

#: What a change of each class costs, in words.
COSTS: dict[Mutability, str] = {
    "hot": "swapped between two steps; the cache keeps its content",
    "idle": "takes effect once no request is running",
    "restart": "needs a restart, which empties the cache",
}
_ABSENT = object()
_WIDTH = 100  # columns of one printed value


@dataclass(frozen=True, slots=True)
class Change:
    """One field that differs. ``None`` is a value that was not set."""

    path: str  # dotted; a rule by its name: eviction.rules[opted-out].match
    before: Any
    after: Any
    mutability: Mutability
    note: str = ""  # what the class of the field alone does not say

    @property
    def sign(self) -> str:
        """Terraform's: ``+`` set, ``-`` unset, ``~`` changed in place, ``-/+`` only by starting anew."""
        if self.mutability == "restart":
            return "-/+"
        return "+" if self.before is None else "-" if self.after is None else "~"

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "sign": self.sign,
            "before": self.before,
            "after": self.after,
            "class": self.mutability,
            "cost": COSTS[self.mutability],
            **({"note": self.note} if self.note else {}),
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """All changes between two policies, in the order of the document."""

    before_name: str
    after_name: str
    before_digest: str
    after_digest: str
    changes: tuple[Change, ...]

    @property
    def mutability(self) -> Mutability | None:
        """The class of the whole: the one that takes longest to come; ``None``: nothing changes."""
        kinds: tuple[Mutability, ...] = ("restart", "idle", "hot")
        return next((kind for kind in kinds if self.of(kind)), None)

    def of(self, kind: Mutability) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.mutability == kind)

    def to_json(self) -> dict[str, Any]:
        return {
            "before": {"name": self.before_name, "digest": self.before_digest},
            "after": {"name": self.after_name, "digest": self.after_digest},
            "class": self.mutability,
            "changes": [change.to_json() for change in self.changes],
        }


def make_plan(before: dict[str, Any], after: dict[str, Any], effective: Mapping[str, Any] | None = None) -> Plan:
    """The plan from one flattened policy to another (as ``kvpolicy show --format json`` prints them).

    Two ways to write one value are no change. ``effective`` is what a running server uses, by path: where that is what
    the new policy accepts, another wish is hot, since it changes nothing. Raises PolicyError for a document that is no
    valid policy.
    """
    old, new = policy_from_flat(before), policy_from_flat(after)
    found = []
    for path, before_value, after_value in _differences(_named(before), _named(after), ""):
        if _means_the_same(old, new, path):
            continue
        kind, note = _mutability(path), ""
        runs = (effective or {}).get(path)
        if runs is not None and path in WISHES and _is_accepted(runs, old, new, path):
            kind, note = "hot", f"{runs} is in effect and stays"
        found.append(Change(path, before_value, after_value, kind, note))
    return Plan(old.metadata.name, new.metadata.name, digest_of(before), digest_of(after), tuple(found))


def plan_from_json(data: dict[str, Any]) -> Plan:
    """Back from :meth:`Plan.to_json`."""
    changes = tuple(
        Change(each["path"], each["before"], each["after"], each["class"], each.get("note", ""))
        for each in data["changes"]
    )
    before, after = data["before"], data["after"]
    return Plan(before["name"], after["name"], before["digest"], after["digest"], changes)


def render(plan: Plan, *, colour: bool = False) -> str:
    """The plan for people, with a final newline."""
    names = plan.before_name if plan.before_name == plan.after_name else f"{plan.before_name} -> {plan.after_name}"
    lines = [f"policy {names}, digest {plan.before_digest[:16]} -> {plan.after_digest[:16]}"]
    if not plan.changes:
        same = plan.before_digest == plan.after_digest
        return f"{lines[0]}\nNo changes{'.' if same else ': written differently, with the same meaning.'}\n"
    width = max(len(change.path) for change in plan.changes)
    for kind in COSTS:
        changes = plan.of(kind)
        if not changes:
            continue
        lines += ["", f"  {kind}: {COSTS[kind]}"]
        for change in changes:
            note = f" ({change.note})" if change.note else ""
            line = f"  {change.sign:>3} {change.path:<{width}}  {_transition(change)}{note}"
            lines.append(f"\x1b[{_COLOURS[change.sign]}m{line}\x1b[0m" if colour else line)
    counts = ", ".join(f"{len(plan.of(kind))} {kind}" for kind in COSTS)
    return "\n".join([*lines, "", f"Plan: {counts}."]) + "\n"


_COLOURS = {"+": "32", "-": "31", "~": "33", "-/+": "31"}


def _transition(change: Change) -> str:
    if change.before is None:
        return _shown(change.after)
    if change.after is None:
        return f"{_shown(change.before)} -> not set"
    return f"{_shown(change.before)} -> {_shown(change.after)}"


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."


def _named(flat: dict[str, Any]) -> dict[str, Any]:
    """The document without its tests, and with its rules by name: order apart, a rule is what it is called."""
    plain = {key: value for key, value in flat.items() if key != "tests" and value is not None}
    eviction = plain.get("eviction")
    if isinstance(eviction, dict) and isinstance(rules := eviction.get("rules"), list):
        plain["eviction"] = {
            **eviction,
            "rules": {rule["name"]: {k: v for k, v in rule.items() if k != "name"} for rule in rules},
            "rules order": [rule["name"] for rule in rules],
        }
    return plain


def _differences(before: Any, after: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """``(path, before, after)`` of every smallest field that differs; ``None`` where it is not set."""
    if isinstance(before, dict) and isinstance(after, dict) and (not path or _is_open(path)):
        for name in [*after, *(name for name in before if name not in after)]:
            if name == "rules order":
                yield from _reordered(before.get(name), after.get(name), path)
                continue
            below = f"{path}[{name}]" if path == "eviction.rules" else f"{path}.{name}" if path else name
            yield from _differences(before.get(name, _ABSENT), after.get(name, _ABSENT), below)
    elif before is _ABSENT or after is _ABSENT:
        # A section that comes or goes is told field by field: its fields may be of different classes.
        found = after if before is _ABSENT else before
        if isinstance(found, dict) and _is_open(path) and not path.startswith("eviction.rules["):
            yield from _differences({} if before is _ABSENT else before, {} if after is _ABSENT else after, path)
        else:
            yield path, None if before is _ABSENT else before, None if after is _ABSENT else after
    elif before != after:
        yield path, before, after


def _reordered(before: list[str] | None, after: list[str] | None, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Rules that both have, in another order: the first match wins, so it matters."""
    if before and after:
        stay = [name for name in before if name in after]
        moved = [name for name in after if name in before]
        if stay != moved:
            yield f"{path}.rules", stay, moved


def _is_open(path: str) -> bool:
    """Whether a mapping at this path is looked into. What one class covers as a whole is one value: a page size."""
    head = path.split(".")[0]
    if head == "engines":
        return path.count(".") < 2
    return path in ("metadata", "cache", "backend", "allocator", "eviction", "hints") or path.startswith(
        ("eviction.rules", "eviction.tenants", "eviction.params")
    )


def _mutability(path: str) -> Mutability:
    """An engine's override is of the class of what it overrides."""
    if path.startswith("engines."):
        _, _, path = path.split(".", 2) if path.count(".") > 1 else ("", "", "engines")
    return mutability(path.split("[")[0]) if path.split(".")[0] in _SECTIONS else "restart"


def effective_of(block: Mapping[str, Any]) -> dict[str, Any]:
    """What a server uses, by path: out of its status block."""
    return {path: setting["effective"] for path, setting in block.get("settings", {}).items()}


def _is_accepted(runs: Any, old: Policy, new: Policy, path: str) -> bool:
    """Whether the new policy would start without a conflict on what runs, and asks for nothing else there."""
    section, name = path.split(".")
    before, after = (getattr(getattr(policy, section), name, None) for policy in (old, new))
    if getattr(before, "layers", ()) != getattr(after, "layers", ()):
        return False
    if after is None or after.prefer is None:
        return True  # it is the engine's choice
    return runs == after.prefer or runs in after.accept or "auto" in (after.prefer, *after.accept)


_SECTIONS = {field.split(".")[0] for field in MUTABILITY}


def _means_the_same(old: Policy, new: Policy, path: str) -> bool:
    """Whether the checked policies agree there: `16` and `{prefer: 16}`, or a default written out, are one value."""
    if "[" in path or path.split(".")[0] in ("engines", "apiVersion", "kind"):
        return False
    found: list[Any] = []
    for policy in (old, new):
        value: Any = policy
        for part in path.split("."):
            value = value.get(part, _ABSENT) if isinstance(value, dict) else getattr(value, part, _ABSENT)
        found.append(value)
    before, after = found
    if before is _ABSENT and after is _ABSENT:
        return False
    return bool(_or_default(before, after, path) == _or_default(after, before, path))


def _or_default(value: Any, other: Any, path: str) -> Any:
    """An absent section's field is what an empty section would say."""
    if value is not _ABSENT:
        return value
    return _ABSENT if other is _ABSENT else _DEFAULTS.get(path, _ABSENT)


#: What the fields that have a default mean where their whole section is absent.
_DEFAULTS: dict[str, Any] = {"cache.on_conflict": "error", "eviction.core": "auto"}
