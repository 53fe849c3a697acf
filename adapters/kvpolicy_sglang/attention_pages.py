"""FlashInfer's plans by pages, in the backend that SGLang makes.

SGLang plans FlashInfer with one token a page, whatever the page size of its pool is. The pool's slots already lie page
by page, so the same attention can be planned with one index a page: here the two updaters of a backend get another
`call_begin_forward`, and each wrapper is given K and V as `[pages, page tokens, heads, dim]`. Backend, updaters,
wrappers and their static buffers stay SGLang's own.

FlashInfer takes the page size of a plan as an argument, and that of a run from the shape of K and V. A CUDA graph keeps
the second, so a wrapper that was captured is planned by what it was captured with, for good. Other wrappers may be
planned either way at each step: a fault of ours, and a plan that is not a plain one, is served by SGLang's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from kvpolicy.kernels.page_plan import host_plan, most_pages, write_page_plan, write_page_plan_torch
from kvpolicy.runtime.active import ActivePolicy

__all__ = ["DECODE", "PREFILL", "PagePlans", "PagedWrapper", "kernel_agrees", "unknown_arguments"]

#: Arguments of the updaters' `call_begin_forward` in 0.5.16 to 0.5.23: those that are read, then those that a plain
#: plan has no use for.
DECODE = (
    ("wrapper", "req_pool_indices", "paged_kernel_lens", "paged_kernel_lens_sum", "kv_indptr", "kv_start_idx",
     "spec_info", "seq_lens_cpu", "use_sliding_window_kv_pool", "fixed_split_size", "disable_split_kv"),
    ("self", "plan"),
)  # fmt: skip
PREFILL = (
    ("wrapper_ragged", "wrapper_paged", "req_pool_indices", "paged_kernel_lens", "paged_kernel_lens_sum", "seq_lens",
     "prefix_lens", "kv_start_idx", "kv_indptr", "qo_indptr", "use_ragged", "spec_info", "use_sliding_window_kv_pool",
     "fixed_split_size", "multi_item_params", "cross_attention_custom_mask", "custom_kv_indices", "window_left"),
    ("self", "plan", "seq_lens_cpu"),
)  # fmt: skip

# SGLang leaves as many indices behind those of a prefill: its kernels may look past the last page.
_PREFILL_SLACK = 256

Given = Mapping[str, Any]
Write = Callable[..., None]
Plan = Callable[[Any, Given, "PagedWrapper", Write], None]


def unknown_arguments(updater_class: type, known: tuple[tuple[str, ...], tuple[str, ...]]) -> list[str]:
    """Arguments of an updater's `call_begin_forward` that are not as they were read: absent, or new."""
    found = set(inspect.signature(updater_class.call_begin_forward).parameters)  # type: ignore[attr-defined]
    return sorted(found.symmetric_difference(known[0]) - set(known[1]))


def kernel_agrees(req_to_token: torch.Tensor, page_tokens: int) -> bool:
    """Whether the kernel that will serve writes what its twin writes, on this device; it is compiled here."""
    device = req_to_token.device
    table = torch.arange(8 * page_tokens, dtype=torch.int32, device=device).view(2, -1).flip(0).contiguous()
    rows, lens = (torch.tensor(values, device=device) for values in ([1, 0, 1], [3 * page_tokens, 1, page_tokens + 1]))
    written = []
    for write in (write_page_plan, write_page_plan_torch):
        into = [torch.zeros(count, dtype=torch.int32, device=device) for count in (4, 6, 3)]
        write(table, rows, lens, page_tokens, indptr=into[0], indices=into[1], last_page_tokens=into[2])
        written.append(torch.cat(into))
    return torch.equal(*written)


class PagedWrapper:
    """What one FlashInfer wrapper was last planned with, and hence how it is given K and V."""

    def __init__(self, wrapper: Any) -> None:
        self.wrapper = wrapper
        self.page_tokens = 0  # 0: not planned yet
        self.is_captured = bool(wrapper.is_cuda_graph_enabled)
        self._last_page_tokens: torch.Tensor | None = None
        self._forward, self._forward_return_lse = wrapper.forward, wrapper.forward_return_lse
        wrapper.forward, wrapper.forward_return_lse = self.forward, self.forward_return_lse
        wrapper.kvpolicy_pages = self

    @classmethod
    def of(cls, wrapper: Any) -> PagedWrapper:
        """The one of `wrapper`, made at its first plan."""
        return getattr(wrapper, "kvpolicy_pages", None) or cls(wrapper)

    def last_page_tokens(self, batch: int, device: torch.device) -> torch.Tensor:
        """Where a plan writes them: where a captured kernel reads them, if there is one.

        SGLang's buffer is one for all wrappers and full of ones, which its own plans count on: a captured wrapper that
        is planned by pages gets one of its own.
        """
        if not self.is_captured:
            return torch.empty(batch, dtype=torch.int32, device=device)
        if self._last_page_tokens is None:
            self._stock = self.wrapper._paged_kv_last_page_len_buf
            self._last_page_tokens = torch.ones_like(self._stock)
            self.wrapper._paged_kv_last_page_len_buf = self._last_page_tokens
        return self._last_page_tokens[:batch]

    def yield_to_engine(self) -> None:
        """The next plan is SGLang's own."""
        self.page_tokens = 1
        if self._last_page_tokens is not None:
            self.wrapper._paged_kv_last_page_len_buf = self._stock
            self._last_page_tokens = None

    def forward(self, q: torch.Tensor, kv: Any, *args: Any, **kwargs: Any) -> Any:
        return self._forward(q, self._paged(kv), *args, **kwargs)

    def forward_return_lse(self, q: torch.Tensor, kv: Any, *args: Any, **kwargs: Any) -> Any:
        return self._forward_return_lse(q, self._paged(kv), *args, **kwargs)

    def _paged(self, kv: Any) -> Any:
        """K and V of [slots, heads, dim] as [pages, page tokens, heads, dim], the same memory."""
        if self.page_tokens <= 1 or kv[0].dim() != 3:
            return kv
        return tuple(side.view(-1, self.page_tokens, *side.shape[1:]) for side in kv)


class PagePlans:
    """The plans of one backend (`FlashInferAttnBackend`) by pages of its pool."""

    def __init__(self, active: ActivePolicy, backend: Any, fast_decode_plan: Any) -> None:
        self.active, self.page_tokens = active, int(backend.page_size)
        self.req_to_token: torch.Tensor = backend.req_to_token_pool.req_to_token
        self.fast_decode_plan = fast_decode_plan  # what SGLang replaces a captured wrapper's `begin_forward` by
        self.plans = 0  # planned by pages
        self._take_over(backend.indices_updater_decode, "wrapper", self._plan_decode)
        if (prefill := getattr(backend, "indices_updater_prefill", None)) is not None:
            self._take_over(prefill, "wrapper_paged", self._plan_prefill)

    def _take_over(self, updater: Any, wrapper_name: str, plan: Plan) -> None:
        original = updater.call_begin_forward
        signature = inspect.signature(original)

        def call_begin_forward(*args: Any, **kwargs: Any) -> None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            paged = PagedWrapper.of(given[wrapper_name])
            if paged.is_captured and paged.page_tokens > 1:
                self._plan_captured(lambda write: plan(updater, given, paged, write))
                return
            if not (paged.is_captured and paged.page_tokens) and _is_plain(given):
                try:
                    plan(updater, given, paged, write_page_plan)
                    paged.page_tokens = self.page_tokens
                    self.plans += 1
                    return
                except Exception:
                    self.active.note_fallback(
                        "attention_pages", "planning attention by pages raised: planned by tokens"
                    )
            paged.yield_to_engine()
            original(*args, **kwargs)

        updater.call_begin_forward = call_begin_forward

    def _plan_captured(self, plan: Callable[[Write], None]) -> None:
        """For a kernel that was captured with pages: no other plan fits it, so a fault is answered by the twin."""
        try:
            plan(write_page_plan)
        except Exception:
            self.active.note_fallback(
                "attention_pages", "planning a captured kernel raised: its pages are found without Triton"
            )
            plan(write_page_plan_torch)
        self.plans += 1

    def _write(self, write: Write, given: Given, batch: int, indices: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Write the pages of the batch; what is returned is their `indptr`."""
        indptr: torch.Tensor = given["kv_indptr"][: batch + 1]
        lens = given["paged_kernel_lens"]
        rows = given["req_pool_indices"][:batch]
        write(self.req_to_token, rows, lens, self.page_tokens, indptr=indptr, indices=indices, last_page_tokens=last)
        return indptr

    def _plan_decode(self, updater: Any, given: Given, paged: PagedWrapper, write: Write) -> None:
        wrapper, lens = paged.wrapper, given["paged_kernel_lens"]
        batch = len(lens)
        if paged.is_captured:
            indices = wrapper._paged_kv_indices_buf
        else:
            entries = most_pages(int(given["paged_kernel_lens_sum"]), batch, self.page_tokens)
            indices = torch.empty(entries, dtype=torch.int32, device=lens.device)
        last = paged.last_page_tokens(batch, lens.device)
        indptr = self._write(write, given, batch, indices, last)
        options: dict[str, Any] = {}
        if getattr(wrapper.begin_forward, "func", None) is self.fast_decode_plan:
            # It copies to the host what it is not given there, and writes nothing to the device.
            options["global_override_indptr_cpu"] = None
            if (lens_cpu := given["seq_lens_cpu"]) is not None:
                options["global_override_indptr_cpu"], last = host_plan(lens_cpu[:batch], self.page_tokens)
        wrapper.begin_forward(
            indptr,
            indices,
            last,
            updater.num_qo_heads,
            updater.num_kv_heads,
            updater.head_dim,
            self.page_tokens,
            data_type=updater.data_type,
            q_data_type=updater.q_data_type,
            non_blocking=True,
            fixed_split_size=None,
            disable_split_kv=bool(given["disable_split_kv"]),
            **options,
        )

    def _plan_prefill(self, updater: Any, given: Given, paged: PagedWrapper, write: Write) -> None:
        """The new tokens of each request, against what `paged_kernel_lens` says: all of it, or its prefix alone where
        the new tokens are attended to by the ragged wrapper."""
        lens, seq_lens = given["paged_kernel_lens"], given["seq_lens"]
        batch = len(seq_lens)
        entries = most_pages(int(given["paged_kernel_lens_sum"]), batch, self.page_tokens) + _PREFILL_SLACK
        indices = torch.empty(entries, dtype=torch.int32, device=lens.device)
        last = paged.last_page_tokens(batch, lens.device)
        indptr = self._write(write, given, batch, indices, last)
        qo_indptr = given["qo_indptr"][: batch + 1]
        torch.cumsum(seq_lens - given["prefix_lens"], 0, dtype=qo_indptr.dtype, out=qo_indptr[1:])
        heads = (updater.num_qo_heads, updater.num_kv_heads, updater.head_dim)
        if given["use_ragged"]:
            given["wrapper_ragged"].begin_forward(qo_indptr, qo_indptr, *heads, q_data_type=updater.q_data_type)
        paged.wrapper.begin_forward(
            qo_indptr,
            indptr,
            indices,
            last,
            *heads,
            self.page_tokens,
            q_data_type=updater.q_data_type,
            kv_data_type=updater.data_type,
            non_blocking=True,
        )


def _is_plain(given: Given) -> bool:
    """Whether a plan is over whole requests, from their first token on, with no mask of its own."""
    items = given.get("multi_item_params")
    return (
        given["kv_start_idx"] is None
        and not given["use_sliding_window_kv_pool"]
        and given["fixed_split_size"] is None  # counted in pages
        and given.get("custom_kv_indices") is None
        and given.get("cross_attention_custom_mask") is None
        and given.get("window_left", -1) < 0
        and (items is None or not items.is_enabled())
        and given["spec_info"] is None
    )
