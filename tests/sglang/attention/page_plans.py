"""SGLang's FlashInfer backend planned by pages: the real backend, updaters and pools, FlashInfer's wrappers in PyTorch.

Every step goes through the backend's own `init_forward_metadata` and `forward_*`, and its output is compared with
attention over the request's tokens, found through `req_to_token` one by one.
"""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import torch
import torch_flashinfer
from activation import activate
from kvpolicy_sglang import attention_pages
from kvpolicy_sglang.attention_pages_hooks import Pages
from kvpolicy_sglang.hooks import HookSet
from sglang.srt.layers.attention import flashinfer_backend as module
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from kvpolicy.runtime.active import ActivePolicy

Q_HEADS, KV_HEADS, DIM, LAYERS = 4, 2, 16, 2
REQUESTS, CONTEXT = 12, 256
PAGES = (2, 16, 64)


def prepare() -> None:
    """The module as on a GPU with FlashInfer, as far as the backend's life needs."""
    torch_flashinfer.put_into(module)
    module.is_in_tc_piecewise_cuda_graph = lambda: False
    module.check_cuda_graph_backend = lambda *_args: False
    module.get_buffer = lambda _name, _make: torch.empty(16, dtype=torch.uint8)
    module.get_parallel = lambda: SimpleNamespace(attn_tp_size=1, attn_dcp_size=1, attn_cp_size=1)
    module.DllmConfig = SimpleNamespace(from_server_args=lambda _args: None)
    features = SimpleNamespace(enable_mis=False)
    deterministic = SimpleNamespace(enable_deterministic_inference=False)
    module.get_exec = lambda: SimpleNamespace(features=features, deterministic=deterministic)
    module.get_platform = lambda: SimpleNamespace(is_sm100=False)
    module.is_sm100_supported = lambda: False
    for name in ("get_cuda_graph_max_batch_size", "_cuda_graph_capture_max_bs"):  # two names of one thing
        setattr(module, name, lambda *args: args[-1])


SERVER_ARGS = SimpleNamespace(
    enable_mis=False, enable_deterministic_inference=False, attention_backend="flashinfer", page_size=None,
    get_attention_backends=lambda: ("flashinfer", "flashinfer"),
)  # fmt: skip


def translator(req_to_token: torch.Tensor, pool: Any, allocator: Any, page_size: int) -> Any:
    """Which later versions ask for indices; None before."""
    try:
        from sglang.srt.mem_cache import kv_index_translator
    except ImportError:
        return None
    kv_index_translator.get_parallel = lambda: SimpleNamespace(attn_dcp_size=1, dcp_enabled=False)
    return kv_index_translator.KVIndexTranslator(
        req_to_token=req_to_token, token_to_kv_pool_allocator=allocator, token_to_kv_pool=pool, page_size=page_size,
        device="cpu",
    )  # fmt: skip


def active() -> ActivePolicy:
    return activate("sglang", None, backend={"attention": "flashinfer", "page_native": True})


class Bench:
    """A backend over a pool of random K and V, in which every request holds shuffled pages."""

    def __init__(self, page: int, seed: int, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(seed)
        self.page, self.rng, self.dtype = page, random.Random(seed), dtype
        size = REQUESTS * CONTEXT
        self.pool = MHATokenToKVPool(
            size, page_size=page, dtype=dtype, head_num=KV_HEADS, head_dim=DIM, device="cpu", layer_num=LAYERS,
            start_layer=0, end_layer=LAYERS, enable_memory_saver=False, enable_alt_stream=False,
        )  # fmt: skip
        for buffer in (*self.pool.k_buffer, *self.pool.v_buffer):
            noise = torch.randn(buffer.shape).to(dtype)
            buffer.copy_(noise.view(buffer.dtype) if buffer.dtype != dtype else noise)
        pages = (torch.randperm(size // page) + 1).view(REQUESTS, -1)  # page 0 is nobody's
        slots = (pages[:, :, None] * page + torch.arange(page)).flatten(1)
        self.req_to_token = slots.to(torch.int32).contiguous()
        allocator = SimpleNamespace(get_kvcache=lambda: self.pool)
        config = SimpleNamespace(
            num_attention_heads=Q_HEADS, get_num_kv_heads=lambda *_sizes: KV_HEADS, context_len=CONTEXT,
            get_max_num_attention_heads=lambda: Q_HEADS, is_multimodal=False, is_encoder_decoder=False, head_dim=DIM,
            v_head_dim=DIM, hf_config=SimpleNamespace(architectures=["LlamaForCausalLM"]),
        )  # fmt: skip
        self.runner = SimpleNamespace(
            req_to_token_pool=SimpleNamespace(req_to_token=self.req_to_token, size=REQUESTS), server_args=SERVER_ARGS,
            token_to_kv_pool=self.pool, model_config=config, page_size=page, kv_cache_dtype=dtype, dtype=torch.float32,
            device="cpu", sliding_window_size=None, is_draft_worker=False, token_to_kv_pool_allocator=allocator,
            prefill_attention_backend_str="flashinfer", decode_attention_backend_str="flashinfer",
            kv_index_translator=translator(self.req_to_token, self.pool, allocator, page),
        )  # fmt: skip
        self.active, self.pages = active(), Pages(active(), HookSet())
        self.pages.active = self.active
        self.pages._server_args = SERVER_ARGS
        self.backend = module.FlashInferAttnBackend(self.runner)

    def seat(self) -> None:
        """What the hook after the backend's construction does."""
        self.pages._built(None, self.backend, self.runner)
        assert self.pages.seats == [self.backend.kvpolicy_pages]

    def lengths(self, count: int, most: int = CONTEXT - 40) -> list[int]:
        edges = [1, self.page, self.page + 1, 2 * self.page - 1]
        return [self.rng.choice((self.rng.randrange(1, most), min(most, self.rng.choice(edges)))) for _ in range(count)]

    def batch(self, mode: ForwardMode, prefix: list[int], new: list[int]) -> SimpleNamespace:
        rows = torch.tensor(self.rng.sample(range(REQUESTS), len(prefix)))
        prefix_lens = torch.tensor(prefix)
        seq_lens = prefix_lens + torch.tensor(new)
        slots = [self.req_to_token[row, a : a + b] for row, a, b in zip(rows, prefix, new, strict=True)]
        out = torch.cat(slots).long()
        return SimpleNamespace(
            forward_mode=mode, batch_size=len(prefix), req_pool_indices=rows, seq_lens=seq_lens, seq_lens_cpu=seq_lens,
            seq_lens_sum=int(seq_lens.sum()), encoder_lens=None, spec_info=None, out_cache_loc=out,
            extend_prefix_lens=prefix_lens, extend_prefix_lens_cpu=prefix, extend_seq_lens_cpu=new, positions=out,
            cross_attention_custom_mask=None, kv_loc_plan=None, out_cache_loc_is_physical=False,
            new=new,
        )  # fmt: skip

    def forward(self, batch: SimpleNamespace, layer_id: int = 1) -> float:
        """One layer's attention after the step was planned: how far it is from float64 over single tokens."""
        count = sum(batch.new)
        q = torch.randn(count, Q_HEADS * DIM)
        k, v = (torch.randn(count, KV_HEADS, DIM) for _ in range(2))
        layer = SimpleNamespace(
            layer_id=layer_id, is_cross_attention=False, logit_cap=0.0, tp_q_head_num=Q_HEADS, tp_k_head_num=KV_HEADS,
            tp_v_head_num=KV_HEADS, head_dim=DIM, scaling=DIM**-0.5, sliding_window_size=-1, k_scale=None, v_scale=None,
            k_scale_float=None, v_scale_float=None, attn_type=AttentionType.DECODER,
        )  # fmt: skip
        run = self.backend.forward_decode if batch.forward_mode.is_decode() else self.backend.forward_extend
        out = run(q, k, v, layer, batch).view(count, Q_HEADS, DIM).double()
        keys, values = (side.double() for side in self.pool.get_kv_buffer(layer_id))
        wanted, start = [], 0
        for row, seq, new in zip(batch.req_pool_indices, batch.seq_lens.tolist(), batch.new, strict=True):
            slots = self.req_to_token[row, :seq].long()
            held = [keys[slots], values[slots]]
            if batch.forward_mode.is_extend() and self.backend.forward_metadata.use_ragged:  # new tokens: as given
                held = [torch.cat([side[: seq - new], given[start : start + new].double()])
                        for side, given in zip(held, (k, v), strict=True)]  # fmt: skip
            mine = q[start : start + new].view(new, Q_HEADS, DIM)
            wanted.append(torch_flashinfer.attend(mine.double(), *held, DIM**-0.5, causal=True)[0])
            start += new
        wanted_all = torch.cat(wanted)
        return float((out - wanted_all).norm() / wanted_all.norm())

    def assert_plan(self, wrapper: Any, batch: SimpleNamespace, lens: list[int], page: int) -> None:
        """The wrapper's last plan names the pages of those tokens, one by one."""
        planned, indptr, indices, last = wrapper.plans[-1]
        assert planned == page
        counts = [-(-length // page) for length in lens]
        assert indptr == [sum(counts[:i]) for i in range(len(counts) + 1)]
        wanted = [
            int(self.req_to_token[row, position]) // page
            for row, length in zip(batch.req_pool_indices, lens, strict=True)
            for position in range(0, length, page)
        ]
        assert indices == wanted
        assert last == [(length - 1) % page + 1 if length else 1 for length in lens]


def eager(bench: Bench, page: int) -> float:
    """Decode, prefills with and without a prefix, ragged and paged; `page` is that of the plans."""
    worst = 0.0
    decode = bench.batch(ForwardMode.DECODE, [n - 1 for n in bench.lengths(7)], [1] * 7)
    bench.backend.init_forward_metadata(decode)
    bench.assert_plan(bench.backend.decode_wrappers[0], decode, decode.seq_lens.tolist(), page)
    worst = max(worst, bench.forward(decode))
    for use_paged in (False, True):
        bench.backend.use_paged = use_paged
        for prefix in ([0] * 5, [bench.rng.choice((0, n)) for n in bench.lengths(5)]):
            extend = bench.batch(ForwardMode.EXTEND, prefix, bench.lengths(5, 40))
            bench.backend.init_forward_metadata(extend)
            lens = extend.seq_lens.tolist() if use_paged else prefix
            bench.assert_plan(bench.backend.prefill_wrappers_paged[0], extend, lens, page)
            worst = max(worst, bench.forward(extend))
    bench.backend.use_paged = False
    return worst


def capture_buffers(backend: Any) -> None:
    """What `init_cuda_graph_state` makes, on the CPU."""
    backend.cuda_graph_kv_indices = [torch.zeros(REQUESTS * CONTEXT, dtype=torch.int32)]
    backend.cuda_graph_qo_indptr = [x.clone() for x in backend.kv_indptr]


def captured(bench: Bench, page: int) -> float:
    """Captured decode wrappers of two batch sizes, replayed in turn with other lengths each time."""
    backend, worst = bench.backend, 0.0
    capture_buffers(backend)
    for size in (3, 8):
        batch = bench.batch(ForwardMode.DECODE, [0] * size, [1] * size)
        backend.init_forward_metadata_out_graph(batch, in_capture=True)
        bench.assert_plan(backend.decode_cuda_graph_metadata[size][0], batch, [1] * size, page)
        worst = max(worst, bench.forward(batch))
    for number in range(8):
        size = (3, 8)[number % 2]
        batch = bench.batch(ForwardMode.DECODE, [n - 1 for n in bench.lengths(size)], [1] * size)
        if number > 5:
            batch.seq_lens_cpu = None  # then lengths are read back from the device
        backend.init_forward_metadata_out_graph(batch)
        wrapper = backend.decode_cuda_graph_metadata[size][0]
        assert wrapper.begin_forward.func is torch_flashinfer.fast_decode_plan
        bench.assert_plan(wrapper, batch, batch.seq_lens.tolist(), page)
        backend.forward_metadata = module.DecodeMetadata(backend.decode_cuda_graph_metadata[size])
        worst = max(worst, bench.forward(batch))
    return worst


def captured_prefill(bench: Bench, page: int) -> float:
    """A whole prefill in a graph: one wrapper for all, zero-length requests in the free places."""
    backend, worst = bench.backend, 0.0
    backend._full_cg_prefill_workspace_bytes = lambda *_args, **_kwargs: 16
    for in_capture in (True, False, False):
        prefix = [bench.rng.choice((0, n)) for n in bench.lengths(3)] + [0]
        batch = bench.batch(ForwardMode.EXTEND, prefix, [*bench.lengths(3, 40), 0])
        backend.init_forward_metadata_out_graph(batch, in_capture=in_capture)
        bench.assert_plan(backend.full_cg_prefill_wrappers[0], batch, batch.seq_lens.tolist(), page)
        worst = max(worst, bench.forward(batch))
    return worst


def faults() -> dict[str, Any]:
    """A plan of ours that raises: SGLang's serves, unless a captured kernel reads pages, where the twin does."""
    bench = Bench(16, 5)
    bench.seat()
    write = attention_pages.write_page_plan

    def broken(*_args: Any, **_kwargs: Any) -> None:
        raise RuntimeError("a fault of ours")

    attention_pages.write_page_plan = broken
    try:
        worst = eager(bench, 1)
        told = {"eager": worst, "fallbacks": dict(bench.active.fallbacks)}
        bench.active.fallbacks.clear()
        told["captured by tokens"] = captured(bench, 1)  # also after the fault is over: a kernel keeps its page size
        told["captured fallbacks"] = dict(bench.active.fallbacks)
        attention_pages.write_page_plan = write
        bench.active.fallbacks.clear()
        batch = bench.batch(ForwardMode.DECODE, [40, 50, 3], [1] * 3)
        bench.backend.init_forward_metadata_out_graph(batch)
        bench.assert_plan(bench.backend.decode_cuda_graph_metadata[3][0], batch, batch.seq_lens.tolist(), 1)
        told["after"] = eager(bench, 16)
        other = Bench(16, 6)
        other.seat()
        captured(other, 16)
        attention_pages.write_page_plan = broken
        batch = other.batch(ForwardMode.DECODE, [40, 50, 3], [1] * 3)
        other.backend.init_forward_metadata_out_graph(batch)
        other.assert_plan(other.backend.decode_cuda_graph_metadata[3][0], batch, batch.seq_lens.tolist(), 16)
        told["captured by pages"] = dict(other.active.fallbacks)
    finally:
        attention_pages.write_page_plan = write
    return told


def hooked() -> dict[str, Any]:
    """Through SGLang's own registry: with 16 tokens a page, then with a pool that cannot be read by pages."""
    SERVER_ARGS.page_size = 16
    pages = Pages(active(), HookSet())
    pages.install(SERVER_ARGS)
    bench = Bench(16, 7)
    told: dict[str, Any] = {"seats": len(pages.seats), "error": eager(bench, 16)}
    scheduler = SimpleNamespace(
        token_to_kv_pool_allocator=SimpleNamespace(page_size=16),
        tp_worker=SimpleNamespace(model_runner=SimpleNamespace(attn_backend=bench.backend)),
    )
    pages.require_built(scheduler)
    told["effective"] = pages.active.settings["backend.page_native"].effective
    pages.seats.clear()
    try:
        pages.require_built(scheduler)
    except SystemExit as refusal:
        told["no seat"] = str(refusal)
    bench.runner.token_to_kv_pool.use_hnd = True
    try:
        module.FlashInferAttnBackend(bench.runner)
    except SystemExit as refusal:
        told["another pool"] = str(refusal)
    return told


def main() -> None:
    prepare()
    worst = {"stock": 0.0, "pages": 0.0}
    for name, page in (("stock", 16), *(("pages", page) for page in PAGES)):
        bench, planned = Bench(page, seed=page), 1
        if name == "pages":
            bench.seat()
            planned = page
        steps = (eager, captured, captured_prefill, eager)
        worst[name] = max(worst[name], *(step(bench, planned) for step in steps))
        assert not bench.active.fallbacks
    fp8 = Bench(16, 1, torch.float8_e4m3fn)
    fp8.seat()
    print("TOLD " + json.dumps({"worst": worst, "fp8": captured(fp8, 16), "faults": faults(), "hooked": hooked()}))


if __name__ == "__main__":
    main()
