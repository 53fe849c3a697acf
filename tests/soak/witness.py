"""Inside every process of a server under soak: each status says whether the indexes' invariants hold, and the fault
named in KVPOLICY_SOAK_FAULT is injected. Loaded by a `sitecustomize`; takes part in nothing that a policy decides.
"""

from __future__ import annotations

import os
from typing import Any

from kvpolicy.eviction.ghosts import Ghosts
from kvpolicy.eviction.rules import RuleBook
from kvpolicy.live.preparation import Both
from kvpolicy.live.swap import LiveSwap
from kvpolicy.live.twins import TwinIndex
from kvpolicy.runtime import status

#: Evictions remembered: so few that a soak of seconds comes to the bound.
GHOSTS = 64

_seats: list[Any] = []
_leaked: list[Any] = []
_block, _make_swap, _handle = status.block, LiveSwap.__init__, LiveSwap.handle


def _init(self: LiveSwap, seat: Any, *args: Any, **kwargs: Any) -> None:
    _make_swap(self, seat, *args, **kwargs)
    _seats.append(seat)


def _resident_units(seat: Any) -> int:
    if hasattr(seat, "_pool"):  # vLLM
        return sum(1 for _ in seat._pool.guard.units.runs.each())
    from kvpolicy_sglang.cache_live import TreePopulation

    return sum(1 for _ in TreePopulation(seat._built.cache, seat._built.guard).units())


def _check(seat: Any) -> None:
    guard = seat._pool.guard if hasattr(seat, "_pool") else seat._built.guard
    serving = getattr(guard, "units", guard).index if guard is not None else None
    indexes = [serving]
    if isinstance(serving, Both):
        indexes = [serving.before, serving.preparation.index]
    for index in indexes:
        if index is not None:
            index.check()
    if isinstance(indexes[0], TwinIndex):
        twins, units = len(indexes[0].twins), _resident_units(seat)
        assert twins == units, f"{twins} twins of {units} units"
        resident = set(indexes[0].twins.values())
        rules = indexes[0].inner._rules
        for budget in filter(None, () if rules is None else rules._budgets):
            assert resident.issuperset(budget.members), "a rule holds a unit that is gone"


def _with_violation(active: Any) -> dict[str, Any]:
    found = _block(active)
    try:
        for seat in _seats:
            _check(seat)
        found["soak"] = {"violation": None}
    except AssertionError as broken:
        found["soak"] = {"violation": str(broken)}
    return found


# -- faults: what each detector must see --


def _memory() -> None:
    def handle(self: LiveSwap, message: dict[str, Any]) -> bool:
        _leaked.append(bytearray(os.urandom(1 << 10)) * (1 << 12))  # 4 MiB
        return _handle(self, message)

    LiveSwap.handle = handle  # type: ignore[method-assign]


def _slots() -> None:
    """Slots that nobody gives back, from the tenth message on."""
    messages = 0

    def handle(self: LiveSwap, message: dict[str, Any]) -> bool:
        nonlocal messages
        messages += 1
        if messages == 10:
            seat: Any = self._seat
            if hasattr(seat, "_pool"):
                _leaked.append(seat._pool.get_new_blocks(1))
            else:
                _leaked.append(seat._allocator.alloc(seat._allocator.page_size))
        return _handle(self, message)

    LiveSwap.handle = handle  # type: ignore[method-assign]


def _ghosts() -> None:
    def keep(self: Ghosts, key: int, ghost: Any) -> None:
        self._ghosts[key] = ghost

    Ghosts._keep = keep  # type: ignore[method-assign]


def _twins() -> None:
    forget = TwinIndex.remove

    def remove(self: TwinIndex, unit: Any) -> None:
        twin = self.twins.get(unit)
        forget(self, unit)
        if twin is not None:
            self.twins[unit] = twin

    TwinIndex.remove = remove  # type: ignore[method-assign]


def _rules() -> None:
    RuleBook.removed = lambda self, handle: None  # type: ignore[method-assign]


FAULTS = {"memory": _memory, "slots": _slots, "ghosts": _ghosts, "twins": _twins, "rules": _rules}


def install() -> None:
    status.block = _with_violation
    LiveSwap.__init__ = _init  # type: ignore[method-assign]
    made = Ghosts.__init__

    def remember_few(self: Ghosts, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **{**kwargs, "capacity": GHOSTS})

    Ghosts.__init__ = remember_few  # type: ignore[method-assign]
    if fault := os.environ.get("KVPOLICY_SOAK_FAULT"):
        FAULTS[fault]()
