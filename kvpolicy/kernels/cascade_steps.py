"""A cascade over an engine's running requests, step after step: tables that stay where they are, as a CUDA graph needs.

What requests share changes when requests come and go: then one small copy goes to the device. What each has of its own
grows by a token a step: lengths and slots are read on the device, so a step costs the host one launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kvpolicy.kernels.cascade_triton import CascadePlan, CascadeShape, Launch, processors, shape_for

try:
    import triton
    import triton.language as tl
except ImportError:  # nothing here can run
    triton = None

__all__ = ["LEVELS", "CascadeTables", "Shared"]

#: Shared stretches that can lie one after the other on a request's path.
LEVELS = 3
_ROWS_BLOCK, _ROWS_PROGRAMS = 1024, 8


class Shared(NamedTuple):
    """Tokens `[start_tokens, start_tokens + tokens)` of a context, which `requests` (two or more) have in common."""

    start_tokens: int
    tokens: int
    requests: Sequence[int]


class CascadeTables:
    """The tables of one batch size.

    `plan` is what :func:`~kvpolicy.kernels.cascade_triton.cascade_attention` takes, with `pages` as its page table at
    page size 1: the slots of request `r` stand at `r * row_tokens`. Both stay the same objects. A batch size has a
    fixed number of tiles; programs of tiles that nobody fills end at once.

    Args:
        requests: of a step; fewer are padded by the engine.
        row_tokens: the longest context.
        pages: int32, at least `requests * row_tokens` long, free for use; None: allocated.

    Raises:
        ValueError: `pages` is shorter.
    """

    def __init__(
        self,
        requests: int,
        q_heads: int,
        kv_heads: int,
        row_tokens: int,
        device: torch.device | str,
        pages: torch.Tensor | None = None,
        shape: CascadeShape | None = None,
    ) -> None:
        device = torch.device(device)
        shape = shape or shape_for(requests, q_heads, kv_heads)
        queries = q_heads // kv_heads
        alone_m = max(16, triton.next_power_of_2(queries))
        shared_m = max(shape.block_m, alone_m)
        self.together = shared_m // queries  # requests of a tile
        whole = triton.cdiv(requests, self.together)
        self.tiles = whole + min(requests // 2, 16)  # room for groups that do not fill theirs
        self.requests, self.row_tokens = requests, row_tokens
        if pages is None:
            pages = torch.zeros(requests * row_tokens, dtype=torch.int32, device=device)
        if pages.numel() < requests * row_tokens:
            raise ValueError(f"{pages.numel()} places for the slots of {requests} requests of {row_tokens} tokens")
        self.pages = pages[: requests * row_tokens]
        splits = _splits(whole, kv_heads, shape.programs_per_sm, row_tokens, shape.block_n, device)
        own_splits = _splits(requests, kv_heads, shape.own_programs_per_sm, row_tokens, shape.own_block_n, device)

        # One tensor: what `group` sends (shared tiles, members, where requests' own tokens begin, where their slots are
        # to be read from), then what each step writes (own tiles), then what never changes.
        self._splits = splits
        self._sent = 5 * self.tiles + (LEVELS + 2) * requests
        fixed = torch.arange(requests, dtype=torch.int32)
        table = torch.cat(
            [
                torch.zeros(self._sent + 2 * requests, dtype=torch.int32),
                fixed,
                torch.ones_like(fixed),
                torch.full_like(fixed, LEVELS * splits),
            ]
        ).to(device)
        self._table = table
        member_at = 5 * self.tiles
        self._own_start, self._read_start = table[member_at + LEVELS * requests : self._sent].view(2, requests).unbind()
        own = table[self._sent :].view(5, requests).unbind()
        self._own_first, self._own_tokens = own[0], own[1]
        # Members of own tiles are the requests themselves: the same column serves as their ids.
        shared_ids, own_ids = table[member_at : member_at + LEVELS * requests], own[2]
        self.plan = CascadePlan(
            requests,
            q_heads,
            kv_heads,
            LEVELS * splits + own_splits,
            (
                Launch(table[:member_at].view(5, self.tiles).unbind(), shared_ids, shared_m, splits, True),
                Launch(own, own_ids, alone_m, own_splits, False),
            ),
            shape,
        )
        self.group(())

    def group(self, groups: Sequence[Shared]) -> list[Shared]:
        """Set what is shared, parents before their children; what was taken.

        A group is left out where its members' paths do not reach its start by groups taken before (their own tokens
        would lie in two pieces), and where the tables are full.
        """
        reached = [0] * self.requests
        read = [-1] * self.requests  # the first token that a leader's slots are needed from
        depth = [0] * self.requests
        members: list[int] = []
        rows: list[tuple[int, int, int, int, int]] = []
        taken = []
        for one in groups:
            first = one.requests[0]
            needed = triton.cdiv(len(one.requests), self.together)
            if (
                len(rows) + needed > self.tiles
                or len(members) + len(one.requests) > LEVELS * self.requests
                or any(reached[request] != one.start_tokens or depth[request] >= LEVELS for request in one.requests)
            ):
                continue
            taken.append(one)
            first_page = first * self.row_tokens + one.start_tokens
            for at in range(0, len(one.requests), self.together):
                count = min(self.together, len(one.requests) - at)
                column = depth[first] * self._splits
                rows.append((first_page, one.tokens, len(members) + at, count, column))
            members.extend(one.requests)
            if read[first] < 0:
                read[first] = one.start_tokens
            for request in one.requests:
                reached[request] = one.start_tokens + one.tokens
                depth[request] += 1
        rows += [(0, 0, 0, 0, 0)] * (self.tiles - len(rows))
        members += [0] * (LEVELS * self.requests - len(members))
        starts = [min(have, own) if have >= 0 else own for have, own in zip(read, reached, strict=True)]
        sent = torch.tensor(
            [*(value for column in zip(*rows, strict=True) for value in column), *members, *reached, *starts]
        )
        sent = sent.to(torch.int32)
        if self._table.is_cuda:
            sent = sent.pin_memory()
        self._table[: self._sent].copy_(sent, non_blocking=True)
        return taken

    def stage(self, req_to_token: torch.Tensor, rows: torch.Tensor, lens: torch.Tensor) -> None:
        """Read this step's lengths and slots, on the device.

        Args:
            req_to_token: int32 `[rows, tokens]`, the slots of each request's tokens.
            rows: int `[requests]`, which row is whose; lens: int `[requests]`, tokens, this step's included.
        """
        _stage_kernel[(self.requests, _ROWS_PROGRAMS)](
            req_to_token, rows, lens, self._own_start, self._read_start, self._own_first, self._own_tokens, self.pages,
            req_to_token.stride(0), self.row_tokens, _ROWS_BLOCK, _ROWS_PROGRAMS,
        )  # fmt: skip


def _splits(tiles: int, kv_heads: int, per_sm: int, longest_tokens: int, block_n: int, device: torch.device) -> int:
    """Into how many stretches a part is cut, so that `tiles` keep the GPU busy: a power of two."""
    wanted = triton.next_power_of_2(triton.cdiv(processors(device) * per_sm, tiles * kv_heads))
    return int(max(1, min(wanted, triton.next_power_of_2(triton.cdiv(longest_tokens, 4 * block_n)), 64)))


if triton is not None:

    @triton.jit(do_not_specialize=["stride_row", "row_tokens"])
    def _stage_kernel(
        req_to_token_ptr: tl.tensor, rows_ptr: tl.tensor, lens_ptr: tl.tensor, own_start_ptr: tl.tensor,
        read_start_ptr: tl.tensor, own_first_ptr: tl.tensor, own_tokens_ptr: tl.tensor, pages_ptr: tl.tensor,
        stride_row: tl.tensor, row_tokens: tl.tensor, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
    ) -> None:  # fmt: skip
        """Some blocks of one request's slots; the first program says what is its own."""
        request, part = tl.program_id(0), tl.program_id(1)
        tokens = tl.minimum(tl.load(lens_ptr + request).to(tl.int32), row_tokens.to(tl.int32))
        own = tl.load(own_start_ptr + request)
        if part == 0:
            tl.store(own_first_ptr + request, request * row_tokens.to(tl.int32) + own)
            tl.store(own_tokens_ptr + request, tl.maximum(tokens - own, 0))
        row = req_to_token_ptr + tl.load(rows_ptr + request).to(tl.int64) * stride_row
        to = pages_ptr + request.to(tl.int64) * row_tokens
        for block in range(tl.load(read_start_ptr + request) + part * BLOCK, tokens, BLOCK * PROGRAMS):
            at = block + tl.arange(0, BLOCK)
            here = at < tokens
            tl.store(to + at, tl.load(row + at, mask=here, other=0), mask=here)
