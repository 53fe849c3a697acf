"""The vLLM adapter of kvpolicy: the only package of the project that imports vllm.

:mod:`.plugin` is what vLLM loads in every process. Python programs use :func:`LLM` in place of `vllm.LLM`, and
:func:`status` to ask an engine what it runs.
"""

from __future__ import annotations

from typing import Any

__all__ = ["LLM", "StartError", "status"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import llm

        return getattr(llm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
