"""What the models say about a place in a policy: which keys it has."""

from __future__ import annotations

import typing
from functools import cache
from typing import Any

from pydantic import BaseModel

from kvpolicy.language.models import Policy

__all__ = ["keys_at", "models_in"]

#: Written keys that a model knows under another name, or widens.
_EXTRA = {"Policy": ["extends"], "KvDtype": ["default"]}


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Every model inside a type, through unions, Annotated, tuples and dict values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    found: list[type[BaseModel]] = []
    for inner in typing.get_args(annotation):
        if inner is not Ellipsis and not isinstance(inner, str):
            found += models_in(inner)
    return found


@cache
def keys_at(path: tuple[str | int, ...]) -> list[str]:
    """The keys a mapping at ``path`` may have; empty where the grammar leaves them open."""
    models: list[type[BaseModel]] = [Policy]
    for part in path:
        if isinstance(part, int) or part.startswith("("):
            continue
        below: list[type[BaseModel]] = []
        for model in models:
            for name, field in model.model_fields.items():
                if part in (name, field.alias):
                    below += models_in(field.annotation)
        models = below or models  # a tenant's own name: its model is already at hand
    keys: list[str] = []
    for model in models:
        keys += [field.alias or name for name, field in model.model_fields.items()]
        keys += _EXTRA.get(model.__name__, [])
    return keys
