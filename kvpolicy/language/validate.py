"""Schema layer: a located tree -> typed `Policy`, or one located diagnostic for each thing wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from kvpolicy.language.diagnostics import Diagnostic
from kvpolicy.language.fields import did_you_mean
from kvpolicy.language.models import API_VERSION, KIND, Policy
from kvpolicy.language.spans import source_index
from kvpolicy.language.tree import Mapping, Node, Scalar, Sequence, to_plain
from kvpolicy.language.units import describe

__all__ = ["MAX_FINDINGS", "dotted", "find", "validate"]

Path = tuple[str | int, ...]
#: More mistakes than this are not listed one by one: the file is something else than a policy.
MAX_FINDINGS = 200


def validate(tree: Mapping, name: str) -> tuple[Policy | None, list[Diagnostic]]:
    """``name`` is the policy's when its metadata gives none."""
    data = document(tree, name)
    found = list(_valueless(tree))
    try:
        policy = Policy.from_document(data)
    except ValidationError as error:
        return None, [*found, *(_locate(details, tree, data) for details in _apart(error)[: MAX_FINDINGS + 1])]
    return (None if found else policy), found


def _valueless(node: Node, path: Path = ()) -> Iterator[Diagnostic]:
    """Keys inside list entries whose value was left out. Elsewhere null drops a section; a rule's empty `match:` would
    silently mean "every unit"."""
    if isinstance(node, Mapping):
        for name, entry in node.entries.items():
            below = (*path, name)
            if isinstance(entry.value, Scalar) and entry.value.value is None and any(isinstance(p, int) for p in path):
                message = f"{dotted(below)} has no value"
                yield entry.key.source.at(entry.key.index, "KVP203", "error", message, "give it one, or remove the key")
            elif name not in ("engines", "tests") or path:
                yield from _valueless(entry.value, below)
    elif isinstance(node, Sequence):
        for index, item in enumerate(node.items):
            yield from _valueless(item, (*path, index))


def _apart(error: ValidationError) -> list[ErrorDetails]:
    """The mistakes, a misspelt required key once: it is unknown, and so the right one is missing too."""
    details = error.errors(include_url=False)
    unknown = [d["loc"] for d in details if d["type"] == "extra_forbidden"]

    def is_misspelt(loc: Path) -> bool:
        return any(u[:-1] == loc[:-1] and did_you_mean(str(u[-1]), [str(loc[-1])]) for u in unknown)

    return [d for d in details if d["type"] != "missing" or not is_misspelt(d["loc"])]


def document(tree: Mapping, name: str) -> dict[str, Any]:
    """Plain data of the tree without `extends`, and with a name."""
    data: dict[str, Any] = to_plain(tree)
    data.pop("extends", None)
    if (engines := tree.child("engines")) is not None and "engines" in data:
        data["engines"] = to_plain(engines, keep_nulls=True)  # there a null drops what is above
    metadata = data.setdefault("metadata", {})
    if isinstance(metadata, dict):
        metadata.setdefault("name", name)
    return data


def find(tree: Mapping, path: Path) -> tuple[Node, Scalar | None, bool]:
    """(deepest node on the path, its key, whether the whole path exists). Branch tags of unions are skipped."""
    node: Node = tree
    key: Scalar | None = None
    for part in path:
        if isinstance(part, str) and part.startswith("("):
            continue
        if isinstance(node, Mapping) and str(part) in node.entries:
            entry = node.entries[str(part)]
            node, key = entry.value, entry.key
        elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
            node, key = node.items[part], None
        elif part != "[key]":
            return node, key, False
    return node, key, True


def dotted(path: Path) -> str:
    """`eviction.rules[0].match`, as a person would write it."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif not part.startswith("(") and part != "[key]":
            text += f".{part}" if text else part
    return text


def _locate(details: ErrorDetails, tree: Mapping, data: dict[str, Any]) -> Diagnostic:
    path: Path = details["loc"]
    if details["type"] == "extra_forbidden":
        _, key, exists = find(tree, path)
        node: Node = key if key is not None and exists else tree
    else:
        node, key, exists = find(tree, path)
        if not exists and path and path[-1] == "prefer":  # written as `default`, or as a bare scalar
            default, _, found = find(tree, (*path[:-1], "default"))
            node = default if found else node
            path = (*path[:-1], "default") if found else path[:-1]
        if details["type"] == "missing" and key is not None:
            node = key
    code, message, help = _translate(details, path, data)
    is_about_key = bool(path) and path[-1] == "[key]"
    if key is not None and (is_about_key or (code in ("KVP203", "KVP209") and isinstance(node, Mapping))):
        node = key
    offset = details.get("ctx", {}).get("offset", 0)
    index = source_index(node, offset) if offset and isinstance(node, Scalar) else node.index
    return node.source.at(index, code, "error", message, help)


def _translate(details: ErrorDetails, path: Path, data: dict[str, Any]) -> tuple[str, str, str | None]:
    kind, value, where = details["type"], details["input"], dotted(path)
    ctx: dict[str, Any] = details.get("ctx") or {}
    if kind == "kvpolicy":
        return ctx["code"], f"{where}: {ctx['message']}", ctx["help"]
    if kind == "extra_forbidden":
        place = dotted(path[:-1])
        known = _known_keys(path[:-1], data)
        guess = did_you_mean(str(path[-1]), known) or (f"known here: {', '.join(known)}" if known else None)
        return "KVP201", f"unknown key '{_clip(str(path[-1]))}'{f' in {place}' if place else ''}", guess
    if kind == "missing":
        place = dotted(path[:-1])
        write = {"apiVersion": f"apiVersion: {API_VERSION}", "kind": f"kind: {KIND}"}.get(str(path[-1]))
        return (
            "KVP202",
            f"the key '{path[-1]}' is missing{f' in {place}' if place else ''}",
            f"write `{write}`" if write else f"add `{path[-1]}:`",
        )
    if kind in ("literal_error", "enum"):
        words = _words(str(ctx.get("expected", "")))
        guess = did_you_mean(value, words) if isinstance(value, str) else None
        if path and path[-1] == "apiVersion":
            return (
                "KVP210",
                f"apiVersion {describe(value)} is not one this version reads",
                f"write `apiVersion: {API_VERSION}`",
            )
        return "KVP204", f"{where}: {describe(value)} is not one of {', '.join(words)}", guess
    if kind in (
        "greater_than",
        "greater_than_equal",
        "less_than",
        "less_than_equal",
        "finite_number",
        "too_long",
        "string_too_long",
    ):
        return "KVP206", f"{where}: {_range(kind, ctx, value)}", None
    return (
        "KVP203",
        f"{where or 'the policy'}: expected {_EXPECTED.get(kind, details['msg'])}, got {describe(value)}",
        _type_help(kind, value, where),
    )


_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
    "union_tag_invalid": "a word or a mapping",
}


def _range(kind: str, ctx: dict[str, Any], value: Any) -> str:
    if kind == "too_long":
        return f"at most {ctx.get('max_length')} entries, got {ctx.get('actual_length')}"
    if kind == "string_too_long":
        return f"at most {ctx.get('max_length')} characters"
    if kind == "finite_number":
        return "must be a finite number"
    sign = {
        "greater_than": "greater than",
        "greater_than_equal": "at least",
        "less_than": "less than",
        "less_than_equal": "at most",
    }
    bound = next((ctx[key] for key in ("gt", "ge", "lt", "le") if key in ctx), None)
    if not isinstance(bound, int | float):
        return f"out of range: {value}"
    return f"must be {sign[kind]} {bound if isinstance(bound, int) else f'{bound:g}'}, got {value}"


def _type_help(kind: str, value: Any, where: str) -> str | None:
    if kind == "string_type" and where.endswith(".match"):
        return "leave `match` out for every unit" if value is True else "write a condition, as in `hits >= 3`"
    if (
        kind in ("int_type", "float_type")
        and isinstance(value, str)
        and value.replace("_", "").replace(".", "", 1).lstrip("+-").isdigit()
    ):
        return f"write {value.replace('_', '')} without quotes or underscores"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f'quote it: "{str(value).lower() if isinstance(value, bool) else value}"'
    if kind == "bool_type" and isinstance(value, str) and value.lower() in ("on", "off", "yes", "no"):
        return f"write {'true' if value.lower() in ('on', 'yes') else 'false'}"
    if kind == "tuple_type":
        return "write it in brackets: [...]" if not isinstance(value, dict) else None
    return None


def _known_keys(path: Path, data: Any) -> list[str]:
    """The keys the grammar has at a place."""
    from kvpolicy.language.shape import keys_at

    return keys_at(path)


def _words(expected: str) -> list[str]:
    """pydantic's "'a', 'b' or 'c'" -> [a, b, c]."""
    return [word.strip().strip("'") for word in expected.replace(" or ", ", ").split(",") if word.strip()]


def _clip(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
