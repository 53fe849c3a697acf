"""When to evict ahead of need, and how much: the one meaning of `allocator.watermark`, in replay and on the engines.

Stock evicts exactly what an allocation lacks, so in a full pool it walks the cache again at every step. With watermarks
an allocation that would leave less than `low` free evicts once, until it leaves `high`; the steps after it find room.

Two bounds hold. What goes beyond the need comes from units that nothing protects, and only as long as there are any.
And no allocation that stock would serve is refused: a mark is an aim, the need comes first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Watermark"]

_ROUNDING = 1e-9  # 29 % of 100 pages are 29 of them, whatever the product of two floats says


@dataclass(slots=True)
class Watermark:
    """Two marks of one pool, in pages, and what came of them. Integers that are equal on every rank decide."""

    low_pages: int
    high_pages: int
    #: Evictions that went beyond the need, and the pages they freed beyond it.
    batches: int = 0
    ahead_pages: int = 0

    @classmethod
    def of_pool(cls, low: float, high: float, pool_pages: int) -> Watermark:
        """Marks that are shares of a pool, rounded down to whole pages."""
        return cls(math.floor(low * pool_pages + _ROUNDING), math.floor(high * pool_pages + _ROUNDING))

    def demand_pages(self, free_pages: int, need_pages: int, evictable_pages: int) -> int:
        """What to evict before an allocation of `need_pages`; 0 where it leaves `low` free.

        At least what the allocation lacks. More only as far as there is something evictable.
        """
        lacking = max(0, need_pages - free_pages)
        if free_pages - need_pages >= self.low_pages:
            return 0
        return max(lacking, min(need_pages + self.high_pages - free_pages, evictable_pages))

    def note(self, evicted_pages: int, lacking_pages: int) -> None:
        """Count an eviction for an allocation that lacked `lacking_pages`."""
        if evicted_pages > lacking_pages:
            self.batches += 1
            self.ahead_pages += evicted_pages - lacking_pages
