"""When a changed field can take effect on a running server: the one table that check, schema, diff, plan and reload
read.

hot: swapped at a step boundary. idle: once no request is running. restart: decides tensors and captured graphs, so
only at start. A field is looked up by its longest prefix here.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["MUTABILITY", "WISHES", "Mutability", "mutability"]

Mutability = Literal["hot", "idle", "restart"]

MUTABILITY: dict[str, Mutability] = {
    "apiVersion": "restart",
    "kind": "restart",
    "metadata": "hot",
    "cache": "restart",
    "cache.on_conflict": "restart",
    "backend": "restart",
    "allocator.order": "hot",
    "allocator.watermark": "hot",
    "allocator.guard": "hot",
    "eviction": "hot",
    "eviction.core": "restart",
    "hints": "hot",
    "engines": "restart",
    "tests": "hot",
}

#: Restart fields that name a choice and what else would do: a server may run what two policies accept.
WISHES = ("cache.page_size", "cache.kv_dtype", "backend.attention")


def mutability(field: str) -> Mutability:
    """The class of a dotted field. Raises KeyError for a field outside the grammar's sections."""
    parts = field.split(".")
    for length in range(len(parts), 0, -1):
        found = MUTABILITY.get(".".join(parts[:length]))
        if found is not None:
            return found
    if field == "allocator":
        return "hot"
    raise KeyError(f"no mutability is known for {field!r}")
