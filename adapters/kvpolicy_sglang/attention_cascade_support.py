"""Where SGLang's decode steps can read shared prefixes once, as a table.

The arguments decide most of it, so the launcher asks first; the scheduler asks again with the backend that it built.
`docs/sglang.md` prints the table, and a test compares the two.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvpolicy.facts.encodings import ENCODED
from kvpolicy.runtime.support import Feature, Verdict, decide

from .attention_pages_support import BackendStart

__all__ = ["FEATURES", "SECTION", "supported"]

SECTION = "backend.cascade"


class _Start(BackendStart):
    """Arguments after resolution and, in a scheduler, the attention backend of its decode steps."""

    @property
    def decode_backend(self) -> str | None:
        return self.arg("decode_attention_backend") or self.arg("attention_backend")

    @property
    def is_plain(self) -> bool:
        """Whether one wrapper serves all layers; True in the launcher, which has no backend yet."""
        return self.backend is None or int(getattr(self.backend, "num_wrappers", 1)) == 1


def _is_other_class(start: _Start) -> bool:
    return start.backend is not None and type(start.backend).__name__ != "FlashInferAttnBackend"


def _is_translated(start: _Start) -> bool:
    return bool(getattr(getattr(start.backend, "kv_index_translator", None), "reads_are_translated", False))


#: Tried in order; the first that is in use and not `supported` decides.
FEATURES: tuple[Feature[_Start], ...] = (
    Feature(
        "another attention backend",
        "--attention-backend",
        "stock",
        "the cascade stands beside FlashInfer's decode kernels: write `backend: {attention: flashinfer}`",
        lambda start: start.decode_backend != "flashinfer",
    ),
    Feature(
        "latent attention, sliding windows and cross attention",
        "an MLA, sliding-window or encoder-decoder model",
        "stock",
        "layers then do not all read the same tokens, or not K and V",
        lambda start: not start.is_plain or _is_other_class(start),
    ),
    Feature(
        "int8 and int4 KV",
        "cache.kv_dtype",
        "stock",
        "the cascade's kernel reads bf16, fp16 and fp8 alone",
        lambda start: start.arg("kv_cache_dtype") in ENCODED,
    ),
    Feature(
        "4-bit KV",
        "--kv-cache-dtype",
        "stock",
        "FlashInfer then reads a dequantized copy of what a request holds",
        lambda start: str(start.arg("kv_cache_dtype")).startswith(("mxfp8", "nvfp4", "fp4")),
    ),
    Feature(
        "speculative decoding and diffusion language models",
        "--speculative-algorithm, --dllm-algorithm",
        "stock",
        "a step then decodes several tokens of a request",
        lambda start: start.has("speculative_algorithm", "dllm_algorithm"),
    ),
    Feature(
        "LoRA",
        "--enable-lora",
        "stock",
        "SGLang already captures each batch size in variants of its own for it",
        lambda start: start.has("enable_lora", "lora_paths"),
    ),
    Feature(
        "deterministic inference",
        "--enable-deterministic-inference",
        "stock",
        "an output may then not depend on what else is in the batch, and what is shared does",
        lambda start: start.has("enable_deterministic_inference"),
    ),
    Feature(
        "two-batch overlap and PD multiplexing",
        "--enable-two-batch-overlap, --enable-pdmux",
        "stock",
        "one step then has several attention backends",
        lambda start: start.has("enable_two_batch_overlap", "enable_pdmux"),
    ),
    Feature(
        "data-parallel attention and decode context parallelism",
        "--enable-dp-attention, --dcp-size",
        "stock",
        "ranks then pad each other's batches, or hold a part of each context",
        lambda start: start.has("enable_dp_attention") or int(start.arg("dcp_size") or 1) > 1,
    ),
    Feature(
        "HiSparse",
        "--enable-hisparse",
        "stock",
        "a step reads a choice of tokens",
        lambda start: start.has("enable_hisparse"),
    ),
    Feature(
        "a pool behind virtual slots",
        "--enable-unified-memory",
        "stock",
        "slots are then translated before they are read",
        _is_translated,
    ),
    Feature(
        "prefix cache off",
        "--disable-radix-cache",
        "stock",
        "nothing says which requests share a prefix",
        lambda start: start.has("disable_radix_cache"),
    ),
    Feature(
        "CUDA graphs, overlap scheduling and chunked prefill",
        "--cuda-graph-max-bs, --disable-overlap-schedule, --chunked-prefill-size",
        "supported",
        "each batch size is captured with and without a cascade",
        lambda start: True,
    ),
    Feature(
        "tensor and pipeline parallelism",
        "--tp-size, --pp-size",
        "supported",
        "each rank decides by the same tree and batch",
        lambda start: True,
    ),
)


def supported(server_args: Any, backend: Any = None) -> Verdict:
    """What these arguments, and the backend where there is one already, mean for the policy's cascade."""
    verdict = decide(FEATURES, _Start(server_args, backend), SECTION)
    return replace(verdict, instead="every request's prefix is read for itself")
