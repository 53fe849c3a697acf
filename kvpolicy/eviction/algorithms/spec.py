"""What an eviction algorithm is to the rest of the layer, and how the registry describes its parameters as data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kvpolicy.eviction.base import Handle, KeyChange, Order, PolicyClock

__all__ = ["Algorithm", "AlgorithmSpec", "Param"]


class Algorithm(ABC):
    """One eviction order over the units of one pool. The index makes one per pool, and one Order per partition.

    The hooks are called for every resident unit, evictable or not, and only where ``needs_metadata`` is true; a unit's
    own state lives in ``handle.kvp.state`` from ``inserted`` to ``removed``, wherever the unit goes in between.
    """

    #: How keys move while a unit is evictable.
    change: ClassVar[KeyChange]
    #: Whether the order reads ``handle.kvp`` (and the hooks below must be called).
    needs_metadata: ClassVar[bool] = False

    def __init__(self, clock: PolicyClock) -> None:
        self.clock = clock

    @abstractmethod
    def make_order(self) -> Order[Handle]:
        """An empty order over one partition."""

    def inserted(self, handle: Handle) -> None:
        """A unit became resident; ``handle.kvp`` is set."""

    def touched(self, handle: Handle) -> None:
        """A later request reached the unit's end; ``handle.kvp`` already counts it."""

    def split(self, upper: Handle, lower: Handle) -> None:
        """``upper.kvp`` is the copied metadata of the new ancestor half; both sizes are already right."""

    def evicted(self, handle: Handle) -> None:
        """The engine freed a victim this algorithm proposed; ``removed`` follows."""

    def removed(self, handle: Handle) -> None:
        """The unit is resident no more."""

    def clear(self) -> None:
        """Forget all units and all that was learned."""


@dataclass(frozen=True)
class Param:
    """One parameter of an algorithm: its YAML name, type and closed range."""

    name: str
    type: type[int] | type[float] | type[str]
    default: Any
    doc: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()

    def validate(self, value: Any) -> Any:
        """The value in the parameter's type. Raises ValueError that says what was expected."""
        if self.type is str:
            if not isinstance(value, str) or (self.choices and value not in self.choices):
                raise ValueError(f"{self.name}: expected {_one_of(self.choices)}, got {value!r}")
            return value
        wanted = "a whole number" if self.type is int else "a number"
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{self.name}: expected {wanted}, got {value!r}")
        if self.type is int and not isinstance(value, int):
            raise ValueError(f"{self.name}: expected {wanted}, got {value!r}")
        low, high = self.minimum, self.maximum
        if value != value or (low is not None and value < low) or (high is not None and value > high):
            span = f"between {low:g} and {high:g}" if low is not None and high is not None else f"of at least {low:g}"
            raise ValueError(f"{self.name}: expected {wanted} {span}, got {value!r}")
        return self.type(value)


@dataclass(frozen=True)
class AlgorithmSpec:
    """One registered algorithm. ``build(clock, **params)`` makes it."""

    name: str
    summary: str
    source: str
    build: Callable[..., Algorithm]
    params: tuple[Param, ...] = ()

    def validate_params(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters, defaults filled in. Raises ValueError naming the unknown or unusable one."""
        known = {param.name: param for param in self.params}
        for name in given:
            if name not in known:
                has = ", ".join(known) if known else "none"
                raise ValueError(f"{self.name} has no parameter {name!r}; it has: {has}")
        return {name: param.validate(given[name]) if name in given else param.default for name, param in known.items()}


def _one_of(choices: tuple[str, ...]) -> str:
    return "one of " + ", ".join(choices)
