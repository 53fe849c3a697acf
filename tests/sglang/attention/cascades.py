"""SGLang's FlashInfer backend whose decode steps read shared prefixes once: the real backend, updaters, pools and hook
registry, FlashInfer's wrappers in PyTorch, our kernels in Triton's interpreter, a runner that captures nothing.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch
from activation import activate
from kvpolicy_sglang.attention_cascade import CascadeWrapper
from kvpolicy_sglang.attention_cascade_hooks import VARIANT, Cascade, install
from kvpolicy_sglang.hooks import HookSet
from page_plans import CONTEXT, REQUESTS, SERVER_ARGS, Bench, capture_buffers, module, prepare
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.runner.decode_cuda_graph_runner import DecodeCudaGraphRunner

SIZES = (2, 4, 8)
SHARED, DEEPER = 100, 70


class Node:
    """A tree's node, as SGLang's RadixCache hands them out."""

    def __init__(self, parent: Node | None = None, tokens: int = 0) -> None:
        self.parent, self.key, self.children = parent, range(tokens), {}


class Sharing(Bench):
    """Rows 0 to 5 share 100 tokens, 0 to 2 of them 70 more; the others share nothing."""

    def __init__(self, seed: int, cascade: Any, active: Any = None) -> None:
        super().__init__(1, seed)
        self.req_to_token[1:6, :SHARED] = self.req_to_token[0, :SHARED]
        self.req_to_token[1:3, SHARED : SHARED + DEEPER] = self.req_to_token[0, SHARED : SHARED + DEEPER]
        root = Node()
        common = Node(root, SHARED)
        deeper = Node(common, DEEPER)
        self.nodes = [deeper] * 3 + [common] * 3 + [Node(root, 20) for _ in range(REQUESTS - 6)]
        self.active = active or activate("sglang", None, backend={"attention": "flashinfer", "cascade": cascade})
        self.runner.attn_backend = self.backend
        # The runner's side: sizes, and what of a captured shape the hooks look at.
        self.graphs = SimpleNamespace(
            capture_bs=list(SIZES), captured_req_width=1, model_runner=self.runner, attn_backend=self.backend,
            record_nolora_graph=False,
        )  # fmt: skip
        self.captured: dict[tuple[int, Any], list[Any]] = {}  # the wrappers that a graph would hold

    def step(self, rows: list[int], own: int = 5, size: int = 0) -> tuple[list[Any], SimpleNamespace]:
        """Requests of these rows with some tokens after what they share; padded to `size` as SGLang pads."""
        held = [SHARED + DEEPER if row < 3 else SHARED if row < 6 else 20 for row in rows]
        batch = self.batch(ForwardMode.DECODE, [tokens + own + i for i, tokens in enumerate(held)], [1] * len(rows))
        padding = max(0, size - len(rows))
        batch.req_pool_indices = torch.tensor(rows + [0] * padding)
        batch.seq_lens = torch.cat([batch.seq_lens, torch.ones(padding, dtype=torch.int64)])
        batch.seq_lens_cpu, batch.batch_size = batch.seq_lens, len(rows) + padding
        batch.new = [1] * batch.batch_size
        batch.out_cache_loc = batch.positions = torch.zeros(batch.batch_size, dtype=torch.int64)
        for i, (row, tokens) in enumerate(zip(batch.req_pool_indices, batch.seq_lens, strict=True)):
            batch.out_cache_loc[i] = self.req_to_token[row, tokens - 1]
        reqs = [
            SimpleNamespace(last_node=self.nodes[row], origin_input_ids=range(held[i] + own), output_ids=[0])
            for i, row in enumerate(rows)
        ]
        return reqs, batch


def capture(bench: Sharing, cascade: Cascade) -> None:
    """As SGLang's runner does: plan, then run the model, which calls the backend's wrappers."""

    def one_shape(_runner: Any, size: int, _forward: Any, _stream: Any, label: Any) -> None:
        _, batch = bench.step(list(range(6, 6 + min(size, 6))), size=size)
        bench.backend.init_forward_metadata_out_graph(batch, in_capture=True)
        if label is None:  # SGLang sets the metadata itself at capture
            bench.backend.forward_metadata = module.DecodeMetadata(bench.backend.decode_cuda_graph_metadata[size])
        bench.captured[size, label] = bench.backend.forward_metadata.decode_wrappers
        assert bench.forward(batch) < 1e-5

    capture_buffers(bench.backend)
    # As SGLang's: as long as contexts may be, while the table of slots is some tokens wider.
    bench.backend.cuda_graph_kv_indices = [torch.zeros(SIZES[-1] * (CONTEXT - 4), dtype=torch.int32)]
    for size in SIZES:
        cascade.capture(one_shape, bench.graphs, size, None, None, None)


def replay(bench: Sharing, cascade: Cascade, rows: list[int], own: int = 5) -> tuple[Any, float]:
    """(which graph was meant, how far its attention is from float64 over single tokens)."""
    size = next(size for size in SIZES if size >= len(rows))
    reqs, view = bench.step(rows, own, size)
    live = SimpleNamespace(**{**vars(view), "batch_size": len(rows)})
    found: list[Any] = []

    def load_batch(_runner: Any, _live: Any) -> None:
        bench.backend.init_forward_metadata_out_graph(view)
        found.append(DecodeCudaGraphRunner._resolve_lora_variant(bench.graphs, live))

    worker = SimpleNamespace(model_runner=bench.runner)
    cascade.forward(lambda *_: cascade.load(load_batch, bench.graphs, live), worker, SimpleNamespace(reqs=reqs))
    bench.backend.forward_metadata = module.DecodeMetadata(bench.captured[size, found[0]])
    return found[0], bench.forward(view)


def eager(bench: Sharing, cascade: Cascade, rows: list[int]) -> tuple[bool, float]:
    reqs, batch = bench.step(rows)
    plan = lambda *_: bench.backend.init_forward_metadata(batch)  # noqa: E731
    cascade.forward(plan, SimpleNamespace(model_runner=bench.runner), SimpleNamespace(reqs=reqs))
    is_cascade = isinstance(bench.backend.forward_metadata.decode_wrappers[0], CascadeWrapper)
    return is_cascade, bench.forward(batch)


def main() -> None:
    prepare()
    words = SimpleNamespace(min_shared_tokens=64, min_batch=3)
    active = activate("sglang", None, backend={"attention": "flashinfer", "cascade": vars(words)})
    active.is_off = False
    hooks = HookSet()
    bench = Sharing(3, vars(words), active)
    cache = SimpleNamespace()  # a RadixCache's requests hold nodes
    cascade = install(active, hooks, SERVER_ARGS, lambda: cache)
    assert cascade is not None
    told: dict[str, Any] = {"hooks": len(hooks.targets)}
    capture(bench, cascade)
    told["captured"] = sorted([size, label] for size, label in bench.captured if label is not None)
    steps = {
        "shared": replay(bench, cascade, [4, 0, 7, 3, 1, 2, 5]),
        "longer": replay(bench, cascade, [4, 0, 7, 3, 1, 2, 5], own=60),
        "fewer": replay(bench, cascade, [5, 3, 4]),
        "two": replay(bench, cascade, [3, 4]),
        "alone": replay(bench, cascade, [6, 7, 8, 9]),
        "again": replay(bench, cascade, [0, 1, 2, 6]),
    }
    told["variants"] = {name: variant for name, (variant, _) in steps.items()}
    told["worst"] = max(error for _, error in steps.values())
    told["eager"] = [eager(bench, cascade, rows) for rows in ([2, 6, 0, 3, 1], [6, 7, 8])]
    told["state"] = {name: getattr(cascade.state, name) for name in ("core", "cascade_steps", "flat_steps", "groups")}
    # Without the leader's tokens the shared part would be another: the check sees it.
    wrapper = bench.captured[8, VARIANT][0]
    replay(bench, cascade, [4, 0, 7, 3, 1, 2, 5])
    _, view = bench.step([4, 0, 7, 3, 1, 2, 5], size=8)
    wrapper.tables.pages.zero_()
    bench.backend.forward_metadata = module.DecodeMetadata([wrapper])
    told["corrupted"] = bench.forward(view)

    active.is_off = True
    told["off"] = replay(bench, cascade, [0, 1, 2, 6])[0]
    active.is_off = False
    told["fallbacks before"] = dict(active.fallbacks)
    cascade._steps.stage = None  # type: ignore[union-attr, assignment, method-assign]  # raises when it is called
    variant, error = replay(bench, cascade, [0, 1, 2, 6])
    told["fault"] = [variant, error, dict(active.fallbacks), cascade.state.core]
    told["after the fault"] = replay(bench, cascade, [0, 1, 2, 6])[0]
    print("TOLD " + json.dumps(told))


if __name__ == "__main__":
    main()
