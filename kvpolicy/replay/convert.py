"""Any trace -> Mooncake rows: hash ids numbered by first appearance. No text, no tokens: it can be shared."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from typing import IO

from kvpolicy.replay.pages import Pager
from kvpolicy.replay.trace import Trace

__all__ = ["convert"]

_BLOCK_OF_TOKENS = 16


def convert(
    trace: Trace, out: IO[str], block_tokens: int | None = None, progress: Callable[[int, str], None] | None = None
) -> int:
    """Write every request as a row of `mooncake`, with ``block_size``; sessions are interleaved. The number of rows.

    Ids are of prefixes: equal ids mean equal prefixes, of one cache salt and adapter. Memory grows with the trace's
    distinct blocks. Outputs are not kept: the format has no place for them.

    Raises:
        TraceError, TraceUsageError: as reading does.
    """
    size = block_tokens or (_BLOCK_OF_TOKENS if trace.info.block_tokens == 1 else trace.info.block_tokens)
    pager = Pager(trace.info.block_tokens, size)
    ids: dict[Hashable, int] = {}
    count = 0
    for request in trace.requests():
        info = request.info
        prefix: Hashable = (info.cache_salt, info.lora)
        row_ids = []
        for page in pager.pages(request.blocks, request.input_tokens):
            prefix = ids.setdefault((prefix, page), len(ids))
            row_ids.append(prefix)
        row = {
            "timestamp": request.arrival_ms,
            "input_length": request.input_tokens,
            "output_length": request.output_tokens,
            "hash_ids": row_ids,
            "block_size": size,
        }
        out.write(json.dumps(row, separators=(", ", ": ")) + "\n")
        count += 1
        if progress is not None:
            progress(count, "")
    return count
