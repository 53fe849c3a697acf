"""Blocks of a trace -> pages of the replayed cache."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from hashlib import blake2b

from kvpolicy.replay.errors import TraceUsageError

__all__ = ["Pager", "number_of"]


class Pager:
    """Turns a request's blocks into pages of ``page_tokens`` tokens. Pages are equal exactly where the prefixes are.

    At the trace's own block size the blocks are the pages, a partly filled last one included: the trace hashed it, so
    an equal one can be reused, and it takes a whole page of room. At any other size only full pages are kept, as
    engines do. ``is_exact``: the blocks are full ones of real tokens already.

    Raises:
        TraceUsageError: neither size is a multiple of the other.
    """

    def __init__(self, block_tokens: int, page_tokens: int, *, is_exact: bool = False) -> None:
        larger, smaller = max(block_tokens, page_tokens), min(block_tokens, page_tokens)
        if smaller < 1 or larger % smaller:
            raise TraceUsageError(
                f"a page of {page_tokens} tokens does not fit this trace's blocks of {block_tokens}: "
                "one must be a multiple of the other"
            )
        self.block_tokens, self.page_tokens = block_tokens, page_tokens
        self._is_exact = is_exact or block_tokens == 1
        self._merge = page_tokens // block_tokens  # blocks a page, 0 where a block holds several pages
        self._split = block_tokens // page_tokens

    def pages(self, blocks: Sequence[Hashable], tokens: int) -> Sequence[Hashable]:
        """The pages of a sequence of ``tokens`` tokens."""
        if self._merge == 1:
            return blocks
        if self._merge:
            step = self._merge
            full = min(len(blocks), tokens // self.block_tokens) // step * step
            return [tuple(blocks[i : i + step]) for i in range(0, full, step)]
        full = min(len(blocks) * self._split, tokens // self.page_tokens)
        parts = range(self._split)
        whole = -(-full // self._split)
        return [(block, part) for block in blocks[:whole] for part in parts][:full]

    def reusable(self, pages: int, input_tokens: int) -> int:
        """How many pages of a prompt may come from the cache: of real tokens, engines always compute the last one."""
        return min(pages, (input_tokens - 1) // self.page_tokens) if self._is_exact else pages


def number_of(text: str) -> int:
    """64 bits of a text, equal in every run, as Python's own hash of a text is not."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
