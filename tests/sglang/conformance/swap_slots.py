"""The column `slots` of a conformance run: every slot allocator that a test builds hands out from our free list.

In the order of the engine's own class, so that tests which name ids hold, and without a guard: some tests free a page
twice to see SGLang's debug checks fail, and the guard would have repaired it before.
"""

from __future__ import annotations

from collections import Counter
from typing import Any


class SlotSwap:
    """Lets SGLang's two classes build our subclasses of themselves, and counts."""

    def __init__(self) -> None:
        self.built: Counter[str] = Counter()  # by the engine's class
        self.taken = self.given = 0

    def install(self) -> None:
        from kvpolicy_sglang import allocator

        for stock, ours in allocator._CLASSES.items():
            self._wrap(stock, ours, allocator.ENGINE_ORDER[stock])

    def _wrap(self, stock: Any, ours: Any, order: str) -> None:
        swap = self

        class Swapped(ours):  # type: ignore[misc]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                swap.built[stock.__name__] += 1
                super().__init__(*args, order=order, **kwargs)

            def _checked(self, units: Any) -> Any:
                swap.taken += units.numel()
                return super()._checked(units)

            def _release(self, units: Any) -> None:
                swap.given += units.numel()
                super()._release(units)

        def build(cls: type, *args: Any, **kwargs: Any) -> Any:
            # Python then calls `__init__` of what this returns, which is a subclass of `cls`.
            return object.__new__(Swapped if cls is stock else cls)

        stock.__new__ = build

    def figures(self) -> dict[str, Any]:
        return {
            "built": self.built,
            "attached": self.built,
            "left to the engine": {},
            "units handed out": self.taken,
            "units given back": self.given,
        }
