"""Wrapping a function or method of vLLM in place, once a process, with the check that it took and stayed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["replace", "verify", "wrap"]


class _Hook(NamedTuple):
    owner: Any
    name: str
    original: Any  # as found in the owner, descriptor included


_hooks: list[_Hook] = []


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace `owner.name` by `around(original, ...)`. A class method's `around` is called with `(original, cls, ...)`,
    where `original` takes the class too. See :func:`replace`."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: around(original, *args, **kwargs)

    replace(owner, name, make)


def replace(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace `owner.name` by `make(original)`, one call less than :func:`wrap`; a second time does nothing.

    `owner` is a module or a class; static and class methods stay what they are. SystemExit if there is no such name.
    """
    if any(hook.owner is owner and hook.name == name for hook in _hooks):
        return
    try:
        found = inspect.getattr_static(owner, name)
    except AttributeError:
        raise SystemExit(
            f"kvpolicy: this vLLM has no place for the policy: {_title(owner)}.{name} is missing"
        ) from None
    kind = type(found) if isinstance(found, (staticmethod, classmethod)) else None
    original = found.__func__ if kind else found
    wrapper = functools.wraps(original)(make(original))
    setattr(owner, name, kind(wrapper) if kind else wrapper)
    _hooks.append(_Hook(owner, name, found))


def verify() -> None:
    """SystemExit naming every hook that somebody has undone since."""
    undone = [
        f"{_title(hook.owner)}.{hook.name}"
        for hook in _hooks
        if inspect.getattr_static(hook.owner, hook.name, None) in (hook.original, None)
    ]
    if undone:
        raise SystemExit(f"kvpolicy: another plugin has removed these hooks of the policy: {', '.join(undone)}")


def _title(owner: Any) -> str:
    return owner.__name__ if inspect.ismodule(owner) else f"{owner.__module__}.{owner.__qualname__}"
