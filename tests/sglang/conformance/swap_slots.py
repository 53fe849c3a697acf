"""The column `slots` of a conformance run: every slot allocator that a test builds hands out from our free list.

In the order of the engine's own class, so that tests which name ids hold, and under the full guard, which must find
nothing but what a test does wrong on purpose.
"""

from __future__ import annotations

from collections import Counter
from typing import Any


class SlotSwap:
    """Lets SGLang's two classes build our subclasses of themselves, and counts."""

    def __init__(self) -> None:
        self.built: Counter[str] = Counter()  # by the engine's class
        self.faults: Counter[str] = Counter()
        self.taken = self.given = 0

    def install(self) -> None:
        from kvpolicy_sglang import allocator

        for stock, ours in allocator._CLASSES.items():
            self._wrap(stock, ours, allocator.ENGINE_ORDER[stock])

    def _wrap(self, stock: Any, ours: Any, order: str) -> None:
        from kvpolicy.allocators.guard import Guard

        swap = self

        class Counting(Guard):
            def given(self, ids: Any) -> Any:
                swap.given += ids.numel()
                return super().given(ids)

            def taken(self, ids: Any, free: Any) -> Any:
                swap.taken += ids.numel()
                return super().taken(ids, free)

        class Swapped(ours):  # type: ignore[misc]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                swap.built[stock.__name__] += 1
                guard = Counting("full", lambda *_: None, swap.faults)
                super().__init__(*args, order=order, guard=guard, **kwargs)

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
            "faults": self.faults,
        }
