"""The SGLang adapter of kvpolicy: the only package of the project that imports sglang.

:mod:`.plugin` is what SGLang loads in every process. Python programs use :func:`Engine` in place of `sglang.Engine`.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Engine", "StartError"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
