"""What vLLM makes of a policy's requests: dtype, attention backend and block size, with the rules that had a part.

The order is the engine's own: names, model, attention backend, block size. On NVIDIA GPUs a block size that the user
gives is a condition on the backend; on CPUs the backend is fixed. Without speculative decoding, context parallelism,
connectors and multimodal prefix attention.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvpolicy.facts.dtypes import AUTO, canonical
from kvpolicy.facts.engines import Version
from kvpolicy.facts.gpus import Gpu
from kvpolicy.facts.layer_dtypes import LayerDtypes, boundary_layers, layer_dtypes
from kvpolicy.facts.model import ModelFacts
from kvpolicy.facts.resolve import Outcome, Refusal, Settings, Step
from kvpolicy.facts.rules import Default, Deny, Effect, Field, Force, Note, Rule, Value
from kvpolicy.facts.vllm_attention import Candidate, Layer, Unfit, candidate, choose
from kvpolicy.facts.vllm_backends import Backend
from kvpolicy.facts.vllm_blocks import (
    INDEXER_BLOCK,
    common_block,
    hybrid_block,
    layer_bytes_per_token,
    mixed_dtype_block,
)
from kvpolicy.facts.vllm_cpu import SIXTEEN_BITS, cpu_backend, cpu_default_block, keeps_model_dtype, silent_wrong
from kvpolicy.facts.vllm_names import name_refusal

__all__ = ["compute_dtype", "resolve_vllm"]

_SELECTOR = "platforms/cuda.py get_attn_backend_cls"
_INTERFACE = "platforms/interface.py"
_NO_FP16 = ("gemma2", "gemma3", "gemma3_text", "glm4")  # config/model.py _FLOAT16_NOT_SUPPORTED_MODELS
_DEFAULT_BLOCK_TOKENS = 16


def compute_dtype(model: ModelFacts, gpu: Gpu) -> str:
    """``--dtype auto`` (config/model.py _resolve_auto_dtype): the checkpoint's, if the device has it; never float32."""
    have: tuple[str, ...] = ("fp16", "fp32") if "sm70" in gpu.traits else ("bf16", "fp16", "fp32")
    have = tuple(dtype for dtype in have if dtype != "fp16" or model.model_type not in _NO_FP16)
    return model.stated_dtype if model.stated_dtype in have and model.stated_dtype != "fp32" else have[0]


def resolve_vllm(
    request: Settings,
    *,
    version: Version,
    gpu: Gpu,
    model: ModelFacts,
    tp: int = 1,
    layers: tuple[tuple[str, str], ...] = (),
    compute: str | None = None,
) -> Outcome:
    """Total: every request on every known device and model has an outcome.

    ``compute``: the dtype the server computes in, where ``--dtype`` was given. ``layers``: (layer range, dtype) as the
    policy writes them; what vLLM cannot express is in :func:`kvpolicy.facts.layer_dtypes.layer_dtypes`.
    """
    request = replace(request, kv_dtype=canonical(request.kv_dtype))
    walk = _Walk(request, version, gpu, model, tp, compute or compute_dtype(model, gpu))
    walk.names()
    walk.dtype_of_the_model()
    walk.skipped = layer_dtypes(layers, model, walk.compute)
    row = None
    if not walk.refusals:  # a name that the release does not know hides everything after it
        row = walk.on_cpu() if "cpu" in gpu.traits else walk.on_gpu()
    if row is not None:
        walk.sparse_layout(row)
        walk.block(row)
    return walk.outcome(row)


@dataclass(slots=True)
class _Walk:
    """State of one resolution."""

    request: Settings
    version: Version
    gpu: Gpu
    model: ModelFacts
    tp: int
    compute: str
    kv_dtype: str = AUTO
    kv_dtype_why: str = "auto follows the model's dtype"
    skipped: LayerDtypes = field(default_factory=LayerDtypes)
    page: int = _DEFAULT_BLOCK_TOKENS
    prefix_cache: bool = True
    steps: list[Step] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kv_dtype = self.request.kv_dtype
        self.page = self.request.page_size or _DEFAULT_BLOCK_TOKENS

    # -- dtype

    def names(self) -> None:
        for name, value in (("kv_dtype", self.request.kv_dtype), ("attention", self.request.attention)):
            found = name_refusal(name, value, self.version)
            if found is not None:
                self.refuse(*found, value)

    def dtype_of_the_model(self) -> None:
        model = self.model
        if self.kv_dtype == AUTO and model.vllm_kv_quant:
            self.kv_dtype, self.kv_dtype_why = model.vllm_kv_quant, "the checkpoint asks for it"
        glm = model.architecture.startswith("GlmMoeDsa") and "sm100" in self.gpu.traits
        if self.kv_dtype == AUTO and glm and self.version >= (0, 31, 0):
            self.step(
                "kv_dtype", Default("fp8_e4m3"), "glm-dsa-dtype", "GLM sparse attention on SM100 defaults to fp8_e4m3",
                "model_executor/models/config.py GlmMoeDsaForCausalLM", AUTO, "fp8_e4m3",
            )  # fmt: skip
            self.kv_dtype = "fp8_e4m3"
        if model.architecture.startswith("DeepseekV32") and self.kv_dtype == "bf16":
            self.kv_dtype = AUTO  # that model's word for "not fp8" (models/config.py DeepseekV32ForCausalLM)
        if self.kv_dtype in SIXTEEN_BITS and self.kv_dtype != self.compute:
            self.other_sixteen_bits()
        if model.is_mla and self.kv_dtype in ("nvfp4", "nvfp4_4over6"):
            self.refuse("kv_dtype", "mla-nvfp4", "MLA has no plain NVFP4 KV", "config/vllm.py", self.kv_dtype)
        if self.kv_dtype.endswith("_ds_mla") and not model.is_dsa:
            reason = f"{self.kv_dtype} is a layout of sparse MLA"
            self.refuse("kv_dtype", "sparse-mla-layout", reason, "v1/attention/backends/mla", self.kv_dtype)

    def other_sixteen_bits(self) -> None:
        source = "config/vllm.py _reject_mismatched_float_kv_cache"
        if self.version >= (0, 33, 0):
            reason = f"a 16-bit KV dtype other than the model's ({self.compute}) is refused since vLLM 0.33"
            self.refuse("kv_dtype", "other-sixteen-bits", reason, source, self.kv_dtype)
        elif "cpu" not in self.gpu.traits:
            reason = (
                f"vLLM 0.33 refuses a 16-bit KV dtype other than the model's ({self.compute}); this release takes it"
            )
            self.note("kv_dtype", "other-sixteen-bits", reason, source)

    # -- attention backend

    def layer(self, kv_dtype: str) -> Layer:
        model = self.model
        heads, kv_heads = max(1, model.num_heads // self.tp), max(1, model.kv_heads // self.tp)
        return Layer(
            head_size=model.kv_lora_rank + model.qk_rope_head_dim if model.is_mla else model.head_dim,
            heads=heads,
            compute=self.compute,
            kv_dtype=kv_dtype,
            grouped_query=heads // kv_heads > 1 and heads % kv_heads == 0,
            mla=model.is_mla,
            sparse=model.is_dsa,
            sinks="sinks" in model.traits,
            window=model.window_layers > 0 and not model.is_mla,
            softcap=model.softcap,
            r1_shape=(model.qk_rope_head_dim, model.v_head_dim) == (64, 128),
        )

    def on_cpu(self) -> Backend | None:
        found = cpu_backend(self.model, self.gpu, self.version)
        asked = self.request.attention
        if isinstance(found, str):
            self.refuse("attention", "cpu-attention", found, "platforms/cpu.py get_attn_backend_cls", asked)
            return None
        source = "platforms/cpu.py get_attn_backend_cls"
        if asked not in (None, found.name):
            reason = f"the CPU platform runs {found.name} whatever is asked for"
            self.step("attention", Force(found.name), "cpu-attention", reason, source, asked, found.name)
        elif asked is None:
            self.step(
                "attention", Default(found.name), "cpu-attention", "the CPU platform has one backend", source, None,
                found.name,
            )  # fmt: skip
        wrong = silent_wrong(self.kv_dtype, found, compute=self.compute, version=self.version)
        if wrong is not None:
            name, reason, where = wrong
            self.refuse("kv_dtype", name, reason, where, self.kv_dtype)
        elif keeps_model_dtype(self.kv_dtype, compute=self.compute) and self.kv_dtype != self.compute:
            self.step(
                "kv_dtype", Force(self.compute), "cpu-sixteen-bits",
                "CPUs store the model's own dtype under any 16-bit name", "v1/attention/backends/cpu_attn.py",
                self.kv_dtype, self.compute,
            )  # fmt: skip
            self.kv_dtype = self.compute
        elif self.kv_dtype.startswith("fp8_e") and "amx" not in self.gpu.traits:
            needs = "fp8 KV on a CPU needs AVX-512 or AMX and heads that are a multiple of 32"
            self.note("kv_dtype", "cpu-fp8-host", needs, "v1/attention/backends/cpu_attn.py _get_attn_isa")
        if found.name == "cpu_mla":
            self.prefix_cache = False
            self.note(
                "page_size", "cpu-mla-prefix", "vLLM turns prefix caching off for MLA on this CPU: nothing is kept",
                "platforms/cpu.py check_and_update_config",
            )  # fmt: skip
        return found

    def on_gpu(self) -> Backend | None:
        """The layer that stores the policy's dtype decides; others must not contradict a backend asked for by name."""
        layer = self.layer(self.kv_dtype)
        asked, block = self.request.attention, self.request.page_size
        if asked is not None:
            return self._named(asked, layer, block)
        chosen, tried = choose(layer, version=self.version, gpu=self.gpu, block=block)
        if chosen is None:
            self._none_fits(layer, tried, block)
            return None
        passed_over = [found for found in tried if found.unfit is not None and found.unfit.field == "page_size"]
        reason = f"first of vLLM's list for {self.gpu.label} that fits"
        if tried:
            reason = "; ".join(found.unfit.reason for found in tried if found.unfit) + f": {chosen.name} is next"
        name = "block-size-filter" if passed_over else "attention-default"
        self.step("attention", Default(chosen.name), name, reason, _SELECTOR, None, chosen.name)
        return chosen.row

    def _named(self, asked: str, layer: Layer, block: int | None) -> Backend | None:
        found = candidate(asked, layer, version=self.version, gpu=self.gpu, block=block)
        if found.unfit is None and self.boundary():
            plain = candidate(asked, self.layer(AUTO), version=self.version, gpu=self.gpu, block=block)
            if not plain.fits:
                reason = f"{asked} cannot serve the layers that keep {self.compute}; leave the backend to vLLM"
                found = Candidate(asked, found.row, Unfit("attention", reason))
        if found.unfit is None:
            if found.row is not None and found.row.needs:
                self.note("attention", "needs-package", f"{asked} needs {found.row.needs}", found.row.source)
            return found.row
        blame = found.unfit.field
        value: Value | None = {"page_size": block, "kv_dtype": self.kv_dtype}.get(blame, asked)
        self.refuse(blame, "backend-fit", found.unfit.reason, _SELECTOR, value)
        return None

    def _none_fits(self, layer: Layer, tried: tuple[Candidate, ...], block: int | None) -> None:
        blame: Field = "attention"
        retries: tuple[tuple[Field, Layer, int | None], ...] = (
            ("page_size", layer, None),
            ("kv_dtype", replace(layer, kv_dtype=AUTO), block),
        )
        for name, other, size in retries:
            if choose(other, version=self.version, gpu=self.gpu, block=size)[0] is not None:
                blame = name
                break
        told = [
            f.unfit.reason for f in tried if f.unfit is not None and (blame == "attention" or f.unfit.field == blame)
        ]
        value = {"page_size": block, "kv_dtype": self.kv_dtype}.get(blame)
        self.refuse(blame, "no-backend", "no attention backend fits: " + "; ".join(told), _SELECTOR, value)

    def sparse_layout(self, row: Backend) -> None:
        """Some sparse backends have one packed fp8 layout only."""
        source = "model_executor/layers/attention/mla_attention.py _canonicalize_sparse_mla_kv_cache_dtype"
        if row.name == "flashinfer_mla_sparse_sm120" and self.kv_dtype == AUTO:
            reason = "the sparse backend of SM120 stores fp8_ds_mla whatever the model's dtype"
            self.step("kv_dtype", Force("fp8_ds_mla"), "sparse-layout", reason, source, AUTO, "fp8_ds_mla")
            self.kv_dtype = "fp8_ds_mla"
        elif row.name in ("flashmla_sparse", "flashinfer_mla_sparse_sm120") and self.kv_dtype == "fp8_e4m3":
            reason = "fp8 of sparse MLA is stored as fp8_ds_mla: 656 bytes a token and layer"
            self.note("kv_dtype", "sparse-layout", reason, source, warn=False)

    # -- block size

    def boundary(self) -> tuple[str, ...]:
        """Layers that keep the model's dtype: those the policy names, and those a packed dtype leaves out itself."""
        if self.kv_dtype in (AUTO, self.compute):
            return ()
        return tuple(sorted({*self.skipped.skip, *boundary_layers(self.model, self.kv_dtype)}))

    def block(self, row: Backend) -> None:
        asked, cpu = self.request.page_size, "cpu" in self.gpu.traits
        if cpu:
            self._cpu_block(row)
        elif asked is None:
            rows = [row]
            if self.model.is_dsa and "cuda" in self.gpu.traits:
                rows.append(replace(row, blocks=(INDEXER_BLOCK,), multiples=False, prefers=0))
            preferred = common_block(rows if self.version >= (0, 31, 0) else rows[:1], _DEFAULT_BLOCK_TOKENS)
            reason = (
                f"{row.name} takes vLLM's default" if preferred == _DEFAULT_BLOCK_TOKENS else f"{row.name} prefers it"
            )
            self.pages(preferred, "block-default", reason, f"{_INTERFACE} _preferred_block_size_for_backends")
        self._hybrid(row)
        if self.boundary() and not cpu:
            self._mixed_dtypes(row)
        self._kernel_fits(row)

    def _cpu_block(self, row: Backend) -> None:
        asked = self.request.page_size
        forced = cpu_default_block(self.model, row, asked)
        if forced is not None:
            size, reason = forced
            self.pages(size, "cpu-block", reason, "platforms/cpu.py check_and_update_config")

    def _kernel_fits(self, row: Backend) -> None:
        """The worker's check; on GPUs the selector has made it already."""
        if not row.takes_block(self.page):
            reason = f"{row.name} reads blocks of a multiple of {row.blocks[0]}"
            self.refuse("page_size", "kernel-block", reason, "v1/worker/utils.py select_common_block_size", self.page)

    def _hybrid(self, row: Backend) -> None:
        state = self.model.linear_state
        token_bytes = layer_bytes_per_token(self.model, self.stored(), tp=self.tp)
        if state is None or token_bytes is None:
            if self.model.linear_layers and state is None:
                reason = "this hybrid's state is not known here: vLLM may enlarge the block to match it"
                self.note("page_size", "hybrid-unknown", reason, f"{_INTERFACE} _align_hybrid_block_size")
            return
        state_bytes = state.size_bytes(self.compute, tp=self.tp)
        size = hybrid_block(self.page, row, state_bytes, token_bytes, mla=self.model.is_mla)
        reason = (
            f"a hybrid's attention block must hold as many bytes as a linear layer's state ({state_bytes:,} bytes, "
            f"{token_bytes:,} a token)"
        )
        self.pages(size, "hybrid-block", reason, f"{_INTERFACE} _align_hybrid_block_size")

    def _mixed_dtypes(self, row: Backend) -> None:
        packed = layer_bytes_per_token(self.model, self.kv_dtype, tp=self.tp)
        plain = layer_bytes_per_token(self.model, self.compute, tp=self.tp)
        if packed is None or plain is None or self.model.is_mla:
            return
        size = mixed_dtype_block(self.page, row, packed, plain)
        reason = f"blocks of {self.kv_dtype} must hold as many bytes as those of the layers kept in {self.compute}"
        self.pages(size, "mixed-dtype-block", reason, f"{_INTERFACE} _align_heterogeneous_kv_block_size")

    # -- results

    def stored(self) -> str:
        return self.compute if self.kv_dtype == AUTO else self.kv_dtype

    def pages(self, size: int, name: str, reason: str, source: str) -> None:
        before = self.page if self.steps_of("page_size") or self.request.page_size else None
        if size != before:
            self.step("page_size", Force(size), name, reason, source, before, size)
        self.page = size

    def steps_of(self, of: Field) -> list[Step]:
        return [step for step in self.steps if step.rule.field == of and not isinstance(step.rule.effect, Note)]

    def step(
        self,
        of: Field,
        effect: Effect,
        name: str,
        reason: str,
        source: str,
        before: Value | None,
        after: Value | None,
    ) -> None:
        rule = Rule(name=name, field=of, effect=effect, reason=reason, source=source)
        self.steps.append(Step(rule, before, after))

    def note(self, of: Field, name: str, reason: str, source: str, *, warn: bool = True) -> None:
        self.step(of, Note(warn), name, reason, source, None, None)

    def refuse(self, of: Field, name: str, reason: str, source: str, value: Value | None) -> None:
        self.refusals.append(Refusal(Rule(name=name, field=of, effect=Deny(), reason=reason, source=source), value))

    def kernel_page(self, row: Backend | None) -> int | None:
        if row is None or not row.takes_block(self.page):
            return None
        kernel = row.kernel_block(self.page)
        has_indexer = self.model.is_dsa and "cuda" in self.gpu.traits
        return min(kernel, INDEXER_BLOCK) if has_indexer else kernel

    def outcome(self, row: Backend | None) -> Outcome:
        attention = row.name if row is not None else self.request.attention or ""
        by_rule = any(step.rule.field == "kv_dtype" for step in self.steps)
        asked = self.request.kv_dtype != AUTO
        return Outcome(
            requested=self.request,
            page_size=self.page,
            kv_dtype=self.stored(),
            attention=attention,
            prefill_attention=attention,
            decode_attention=attention,
            steps=tuple(self.steps),
            refusals=tuple(self.refusals),
            kv_dtype_why="" if asked or by_rule else self.kv_dtype_why,
            kernel_page=self.kernel_page(row),
            skip_layers=self.boundary(),
            prefix_cache=self.prefix_cache,
        )
