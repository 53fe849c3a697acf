"""The JSON Schema (draft-07) of a policy file, made from the models, for editors (yaml-language-server) and CI.

It mirrors what `check` accepts as far as a schema can: keys, types, words, unit patterns, ranges. Meaning across
fields and expressions are the check's.
"""

from __future__ import annotations

import copy
from typing import Any

from kvpolicy.language.models import Policy
from kvpolicy.language.mutability import mutability
from kvpolicy.language.vocabulary import EVICTION_POLICIES

__all__ = ["json_schema"]

_SECTIONS = ("cache", "backend", "allocator", "eviction", "hints")
#: Inside list entries a null is an error; everywhere else it drops the value.
_IN_LISTS = frozenset({"Rule", "Retain"})


def json_schema() -> dict[str, Any]:
    """A self-contained draft-07 schema."""
    schema = Policy.model_json_schema(ref_template="#/definitions/{model}")
    definitions: dict[str, Any] = schema.pop("$defs")
    root = {key: value for key, value in schema.items() if key not in ("title", "description")}
    root["required"] = ["apiVersion", "kind"]  # the file's name stands in for metadata
    for name, definition in definitions.items():
        _relax_nulls(definition, nullable=name not in _IN_LISTS)
    _relax_nulls(root, nullable=True)
    _untitle(definitions)
    _untitle(root)
    properties = root["properties"]
    properties["extends"] = {
        "type": ["string", "null"],
        "description": "builtin:NAME, or a path relative to this file: one parent, local only.",
        "pattern": r"^(?!.*://).+$",
    }
    properties["engines"] = {
        "type": ["object", "null"],
        "description": properties["engines"]["description"],
        "additionalProperties": False,
        "properties": {engine: _overrides(properties) for engine in ("sglang", "vllm")},
    }
    definitions["Metadata"]["required"] = []
    _default_for_prefer(definitions["KvDtype"])
    _eviction(definitions["Eviction"])
    for section in _SECTIONS:
        _say_when(properties[section], definitions[section.capitalize()], section)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "kvpolicy policy (kvpolicy/v1)",
        **root,
        "definitions": definitions,
    }


def _overrides(properties: dict[str, Any]) -> dict[str, Any]:
    sections = {name: copy.deepcopy(properties[name]) for name in _SECTIONS}
    return {"type": ["object", "null"], "additionalProperties": False, "properties": sections}


def _relax_nulls(definition: dict[str, Any], *, nullable: bool) -> None:
    required = definition.get("required", [])
    for name, value in definition.get("properties", {}).items():
        options = value.get("anyOf")
        if options and {"type": "null"} in options:
            options.remove({"type": "null"})
            value.pop("default", None)
        if nullable and name not in required:
            kept = {key: value.pop(key) for key in ("description", "default", "title") if key in value}
            inner = dict(value)
            value.clear()
            value.update(
                {**kept, "anyOf": [*(inner["anyOf"] if list(inner) == ["anyOf"] else [inner]), {"type": "null"}]}
            )
        elif options and len(options) == 1:
            del value["anyOf"]
            value.update(options[0])


def _untitle(node: Any) -> None:
    """pydantic titles every field with its own name; editors would show that instead of the description."""
    if isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        node.pop("discriminator", None)
        for value in node.values():
            _untitle(value)
    elif isinstance(node, list):
        for value in node:
            _untitle(value)


def _default_for_prefer(definition: dict[str, Any]) -> None:
    prefer = definition["properties"]["prefer"]
    definition["properties"]["default"] = {
        **prefer,
        "description": "As `prefer`: the dtype of layers not listed below.",
    }
    definition["not"] = {"required": ["default", "prefer"]}


def _eviction(definition: dict[str, Any]) -> None:
    words = [{"const": name, "description": policy.text} for name, policy in EVICTION_POLICIES.items()]
    definition["properties"]["policy"]["anyOf"] = [*words, {"type": "null"}]
    rule = {"anyOf": [{"required": [action]} for action in ("retain", "admit", "priority")]}
    items = next(option for option in definition["properties"]["rules"]["anyOf"] if option.get("type") == "array")
    items["items"] = {"allOf": [items["items"], rule]}


def _say_when(value: dict[str, Any], definition: dict[str, Any], section: str) -> None:
    for name, field in definition["properties"].items():
        when = {"hot": "Can change while serving", "idle": "Changes once idle", "restart": "Takes effect at start"}
        field["description"] = f"{field.get('description', name)} ({when[mutability(f'{section}.{name}')]}.)"
