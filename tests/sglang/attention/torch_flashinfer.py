"""What SGLang's backend uses of FlashInfer, in PyTorch: the same contracts, and no kernel.

A wrapper attends to what its plan's arguments say, read the way FlashInfer's kernels read them: from the buffers of a
captured wrapper, with the page size of the tensors that it is given. What FlashInfer would read wrongly, or only after
waiting for the device, is an AssertionError here.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Decode", "OnCpu", "Paged", "Ragged", "fast_decode_plan", "merge_state", "put_into"]


class OnCpu:
    """`torch` of the module under test, with CPU tensors where its code says "cuda"."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        return torch.empty(*args, device="cpu", **kwargs)


def lengths(indptr: torch.Tensor, last: torch.Tensor, page_tokens: int) -> torch.Tensor:
    """Tokens of each request as a kernel finds them."""
    pages = indptr.diff()
    return torch.where(pages > 0, (pages - 1) * page_tokens + last, 0)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [n, q heads, dim] against k and v [tokens, kv heads, dim]: output and log2-sum-exp2, as FlashInfer's."""
    if not len(k):
        return torch.zeros_like(q), torch.full(q.shape[:2], -torch.inf)
    group = q.shape[1] // k.shape[1]
    keys, values = (side.double().repeat_interleave(group, 1).transpose(0, 1) for side in (k, v))
    scores = q.double().transpose(0, 1) @ keys.transpose(1, 2) * scale
    if causal:
        ends = torch.arange(len(q))[:, None] + len(k) - len(q)
        scores = scores.masked_fill(torch.arange(len(k)) > ends, -torch.inf)
    lse = scores.logsumexp(-1)
    out = (scores - lse[..., None]).exp() @ values
    return out.transpose(0, 1).to(q.dtype), (lse.T / torch.tensor(2.0).log()).float()


def merge_state(
    v_a: torch.Tensor, s_a: torch.Tensor, v_b: torch.Tensor, s_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    lse = torch.logaddexp2(s_a, s_b)
    return v_a * torch.exp2(s_a - lse)[..., None] + v_b * torch.exp2(s_b - lse)[..., None], lse


class _Wrapper:
    """A paged wrapper; `plans` keeps what it was planned with, as (page size, kv indptr, indices, last page tokens)."""

    def __init__(self, workspace: Any, layout: str, *, use_cuda_graph: bool = False, **buffers: Any) -> None:
        assert layout == "NHD"
        self.is_cuda_graph_enabled = use_cuda_graph
        self.plans: list[tuple[int, list[int], list[int], list[int]]] = []
        self._page_tokens = 0

        def buffer(name: str) -> Any:
            return next((value for key, value in buffers.items() if key in (f"{name}_buf", f"{name}_buffer")), None)

        self._paged_kv_indptr_buf = buffer("paged_kv_indptr")
        self._paged_kv_indices_buf = buffer("paged_kv_indices")
        self._paged_kv_last_page_len_buf = buffer("paged_kv_last_page_len")
        self._qo_indptr_buf = buffer("qo_indptr")

    def _keep(self, indptr: torch.Tensor, indices: torch.Tensor, last: torch.Tensor, page_tokens: int) -> None:
        assert indptr.dtype == indices.dtype == last.dtype == torch.int32
        assert len(indptr) == len(last) + 1
        self._page_tokens = page_tokens
        if not self.is_cuda_graph_enabled:
            self._paged_kv_indptr_buf, self._paged_kv_indices_buf = indptr, indices
            self._paged_kv_last_page_len_buf = last
        else:
            assert len(last) == len(self._paged_kv_last_page_len_buf), "the batch of a captured wrapper is fixed"
            assert len(indices) <= len(self._paged_kv_indices_buf)
            self._paged_kv_indptr_buf.copy_(indptr)
            self._paged_kv_last_page_len_buf.copy_(last)
            self._paged_kv_indices_buf[: len(indices)].copy_(indices)
        self.note()

    def note(self) -> None:
        indptr = self._paged_kv_indptr_buf.tolist()
        indices = self._paged_kv_indices_buf[: indptr[-1]].tolist()
        self.plans.append((self._page_tokens, indptr, indices, self._paged_kv_last_page_len_buf.tolist()))

    def held(self, kv: tuple[torch.Tensor, torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """K and V of each request, as a kernel that is given `kv` reads them."""
        k, v = (side if side.dim() == 4 else side[:, None] for side in kv)
        page_tokens = k.shape[1]
        assert page_tokens == self._page_tokens, "planned with another page size than that of K and V"
        indptr, last = self._paged_kv_indptr_buf, self._paged_kv_last_page_len_buf
        lens = lengths(indptr, last, page_tokens).tolist()
        found = []
        for request, length in enumerate(lens):
            pages = self._paged_kv_indices_buf[int(indptr[request]) : int(indptr[request + 1])].long()
            found.append((k[pages].flatten(0, 1)[:length], v[pages].flatten(0, 1)[:length]))
        return found


class Decode(_Wrapper):
    def begin_forward(
        self, indptr: Any, indices: Any, last: Any, qo: int, kv: int, dim: int, page_tokens: int, **options: Any
    ) -> None:
        assert "global_override_indptr_cpu" not in options
        self._keep(indptr, indices, last, page_tokens)

    def forward(self, q: torch.Tensor, kv: Any, sm_scale: float = 1.0, **_options: Any) -> torch.Tensor:
        rows = self.held(kv)
        return torch.cat([attend(q[i : i + 1], *row, sm_scale, False)[0] for i, row in enumerate(rows)])

    def forward_return_lse(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def fast_decode_plan(
    wrapper: Decode, indptr: Any, indices: Any, last: Any, qo: int, kv: int, dim: int, page_tokens: int,
    *, global_override_indptr_cpu: torch.Tensor | None = None, **_options: Any,
) -> None:  # fmt: skip
    """Writes no buffer. Lengths come from what is given; what is not on the host already is waited for."""
    assert wrapper.is_cuda_graph_enabled
    wrapper._page_tokens = page_tokens
    host_indptr = indptr if global_override_indptr_cpu is None else global_override_indptr_cpu
    if global_override_indptr_cpu is not None and page_tokens > 1:
        assert last.data_ptr() != wrapper._paged_kv_last_page_len_buf.data_ptr(), "it would wait for the device"
    host = lengths(host_indptr, last, page_tokens) if page_tokens > 1 else host_indptr.diff()
    device = lengths(wrapper._paged_kv_indptr_buf, wrapper._paged_kv_last_page_len_buf, page_tokens)
    assert torch.equal(host.int(), device.int()), "planned for other lengths than those that are read"
    wrapper.note()


class Paged(_Wrapper):
    def begin_forward(
        self, qo_indptr: Any, indptr: Any, indices: Any, last: Any, qo: int, kv: int, dim: int, page_tokens: int,
        **_options: Any,
    ) -> None:  # fmt: skip
        self._keep(indptr, indices, last, page_tokens)
        if self._qo_indptr_buf is None or not self.is_cuda_graph_enabled:
            self._qo_indptr_buf = qo_indptr
        else:
            self._qo_indptr_buf.copy_(qo_indptr)

    def forward_return_lse(
        self, q: torch.Tensor, kv: Any, causal: bool = True, sm_scale: float = 1.0, **_options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        starts = self._qo_indptr_buf.tolist()
        rows = [attend(q[starts[i] : starts[i + 1]], *row, sm_scale, causal) for i, row in enumerate(self.held(kv))]
        return torch.cat([out for out, _ in rows]), torch.cat([lse for _, lse in rows])

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.forward_return_lse(*args, **kwargs)[0]


class Ragged:
    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self._qo_indptr: Any = None

    def begin_forward(self, qo_indptr: Any, kv_indptr: Any, qo: int, kv: int, dim: int, **_options: Any) -> None:
        self._qo_indptr = qo_indptr.clone()

    def forward_return_lse(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = True, sm_scale: float = 1.0,
        **_options: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        starts = self._qo_indptr.tolist()
        cuts = [slice(starts[i], starts[i + 1]) for i in range(len(starts) - 1)]
        rows = [attend(q[cut], k[cut], v[cut], sm_scale, causal) for cut in cuts]
        return torch.cat([out for out, _ in rows]), torch.cat([lse for _, lse in rows])

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.forward_return_lse(*args, **kwargs)[0]


def put_into(module: Any) -> None:
    """In the place of FlashInfer's, in SGLang's `flashinfer_backend`."""
    module.BatchDecodeWithPagedKVCacheWrapper = Decode
    module.BatchPrefillWithPagedKVCacheWrapper = Paged
    module.BatchPrefillWithRaggedKVCacheWrapper = Ragged
    module.fast_decode_plan = fast_decode_plan
    module._safe_merge_state = merge_state
    module.torch = OnCpu()
