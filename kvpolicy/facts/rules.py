"""What a rule about an engine looks like: when it applies, what it does to a start-up setting, and who says so.

A table of rules (``sglang_rules.py``) is data in the engine's own order; ``resolve.py`` walks it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvpolicy.facts.engines import Version

__all__ = ["Allow", "Default", "Deny", "Effect", "Field", "Force", "Multiple", "Note", "Rule", "Snap", "Value"]

Field = Literal["page_size", "kv_dtype", "attention", "prefill_attention", "decode_attention"]
Value = int | str


@dataclass(frozen=True, slots=True)
class Default:
    """Used where nothing was asked for."""

    value: Value


@dataclass(frozen=True, slots=True)
class Force:
    """Used whatever was asked for; the engine logs a line and starts."""

    value: Value


@dataclass(frozen=True, slots=True)
class Snap:
    """Kept if it is one of ``keep``, otherwise replaced by ``to``; the engine logs a line and starts."""

    keep: tuple[Value, ...]
    to: Value


@dataclass(frozen=True, slots=True)
class Allow:
    """Anything else than ``values`` stops the engine at start."""

    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Deny:
    """Any of ``values`` stops the engine at start; empty means whatever the value."""

    values: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Multiple:
    """A number that does not divide ``of`` stops the engine; ``chunk`` is the default prefill chunk of the device."""

    of: int | Literal["chunk"]


@dataclass(frozen=True, slots=True)
class Note:
    """Changes nothing; the reason is worth knowing. A warning where the engine needs something from the operator."""

    warn: bool = False


Effect = Default | Force | Snap | Allow | Deny | Multiple | Note


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row. Every condition given must hold; within a condition any listed name is enough."""

    name: str
    field: Field
    effect: Effect
    reason: str
    source: str  # file below sglang/srt and the function in it
    since: Version = (0, 0, 0)
    until: Version = (999, 0, 0)  # inclusive
    gpu: tuple[str, ...] = ()
    not_gpu: tuple[str, ...] = ()
    model: tuple[str, ...] = ()  # traits of the model; an architecture may end in * as a prefix
    not_model: tuple[str, ...] = ()
    attention: tuple[str, ...] = ()  # current backend, of either phase
    attention_unset: bool = False  # nothing has chosen a backend so far
    kv_dtype: tuple[str, ...] = ()
    page_over_one: bool = False
    engine_allocator: bool = False  # not where the policy decides who hands out slots; its reader looks
    engine_plan: bool = False  # not where the policy has attention planned by pages; likewise
