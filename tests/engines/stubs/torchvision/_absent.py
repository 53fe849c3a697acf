"""What every module of this stand-in answers for a name that it does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def absent(module: str) -> Callable[[str], Any]:
    """A module-level `__getattr__`: any public name exists, as a class that cannot be made or called."""

    def lookup(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
            raise NotImplementedError(f"{module}.{name} needs torchvision; this stand-in serves text models only")

        return type(name, (), {"__init__": refuse})

    return lookup
