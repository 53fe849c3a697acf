"""Runs inside one SGLang (no GPU needed): what its real resolution and pool sizing make of a deployment.

Reads a JSON list of cases from stdin, writes one JSON line a case. A case is ``{gpu, config, page_size?, kv_dtype?,
attention?, tp?, cell_dtype?}``. SGLang probes the machine through a few torch and driver calls; they are answered for
the device named, so that every branch below them is SGLang's own.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)

import torch  # noqa: E402
from probing import DEVICES, StandIns, answer, properties, write_model  # noqa: E402

FIELDS = (
    "page_size",
    "kv_cache_dtype",
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "chunked_prefill_size",
    "mem_fraction_static",
)


def _unusable(*args: object, **kwargs: object) -> Any:
    """What FlashInfer consists of: present for SGLang's checks, and nothing else."""
    raise RuntimeError("not on this machine")


class _Open:
    """An object whose unnamed attributes are a falsy default, for SGLang's wide context objects."""

    def __init__(self, **named: Any) -> None:
        self.__dict__.update(named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def main() -> None:
    flashinfer = StandIns(lambda name: name.split(".")[0] == "flashinfer", lambda name: _unusable)
    sys.meta_path.append(flashinfer)  # type: ignore[arg-type]
    answer(_become, _resolve, _prepare)


def _prepare(cases: list[dict[str, Any]], folder: Path) -> None:
    # The first resolution imports what the others need; it must happen on the machine as it is.
    import sglang.srt.server_args

    _become("cpu")
    with contextlib.suppress(Exception):
        _resolve({"gpu": "cpu", "config": cases[0]["config"]}, folder)
    if any(case.get("cell_dtype") for case in cases):
        import sglang.srt.mem_cache.kv_cache_configurator  # noqa: F401


@functools.lru_cache(maxsize=1)  # the device of the last case stays: clearing SGLang's caches takes a while
def _become(gpu: str) -> None:
    import sglang.srt.utils.common as common

    if gpu == "cpu":
        torch.cuda.is_available = lambda: False
        torch.version.cuda = torch.version.hip = None
    else:
        capability, mib = DEVICES[gpu]
        device = properties(gpu)
        torch.cuda.is_available = lambda: True
        torch.cuda.device_count = lambda: 8
        torch.cuda.get_device_capability = lambda *a, **k: capability
        torch.cuda.get_device_name = lambda *a, **k: gpu
        torch.cuda.get_device_properties = lambda *a, **k: device
        amd = gpu.startswith("mi")
        torch.version.cuda, torch.version.hip = (None, "6.4") if amd else ("13.0", None)
        common.get_nvgpu_memory_capacity = common.get_amdgpu_memory_capacity = lambda *a, **k: mib
    for name, module in list(sys.modules.items()):
        if name.startswith("sglang."):
            for value in list(vars(module).values()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()


def _resolve(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    from sglang.srt.arg_groups.overrides import resolved_view
    from sglang.srt.server_args import ServerArgs

    model = write_model(case["config"], folder)
    asked = {"page_size": "page_size", "kv_dtype": "kv_cache_dtype", "attention": "attention_backend"}
    given = {flag: case[key] for key, flag in asked.items() if case.get(key) is not None}
    args = ServerArgs(
        model_path=str(model),
        device="cpu" if case["gpu"] == "cpu" else "cuda",
        tp_size=case.get("tp", 1),
        **given,
    )
    if hasattr(args, "resolve_once"):
        args.resolve_once()
    view = resolved_view(args)
    answer = {name: getattr(view, name) for name in FIELDS}
    if case.get("cell_dtype"):
        answer["cell_size"] = _cell_size(args, view, case)
    return answer


def _cell_size(args: Any, view: Any, case: dict[str, Any]) -> float:
    """SGLang's own pool configurator over its own ModelConfig; what surrounds them at run time is stood in for."""
    from sglang.srt.model_executor import pool_configurator

    try:
        from sglang.srt.arg_groups.overrides import model_config_of

        model_config = model_config_of(args)
    except ImportError:
        model_config = args.get_model_config()
    tp = case.get("tp", 1)
    names = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2", "mxfp8": "float8_e4m3fn"}
    dtype_name = case["cell_dtype"]
    dtype = getattr(torch, names.get(dtype_name, {"bf16": "bfloat16", "fp16": "float16"}.get(dtype_name, "")), None)
    dtype = dtype or torch.float4_e2m1fn_x2
    prefill = view.prefill_attention_backend or view.attention_backend
    decode = view.decode_attention_backend or view.attention_backend
    contexts = {
        "get_parallel": _Open(attn_tp_size=tp, attn_dcp_size=1),
        "get_memory": _Open(enable_hisparse=False, enable_unified_memory=False, disable_radix_cache=False),
        "get_schedule": _Open(swa_full_tokens_ratio=_swa_ratio(view), chunked_prefill_size=8192),
        "get_exec": _Open(
            kernel=_Open(dsa_prefill_backend=view.dsa_prefill_backend, dsa_decode_backend=view.dsa_decode_backend)
        ),
        "get_disagg": _Open(disaggregation_mode="null"),
        "get_model": _Open(qsa_indexer_dtype=None),
        "get_spec": _Open(),
    }
    no = lambda: False  # noqa: E731
    layers = range(model_config.num_attention_layers)
    mambaish = _mambaish(model_config)
    kvc = _Open(
        model_config=model_config,
        kv_cache_dtype=dtype,
        kv_cache_dtype_str=dtype_name,
        use_mla_backend=model_config.attention_arch.name == "MLA",
        server_args=_Open(
            enable_hisparse=False,
            kv_cache_dtype=dtype_name,
            prefill_attention_backend=prefill,
            decode_attention_backend=decode,
            attention_backend=view.attention_backend,
            dsa_prefill_backend=view.dsa_prefill_backend,
            dsa_decode_backend=view.dsa_decode_backend,
            swa_full_tokens_ratio=_swa_ratio(view),
            max_total_tokens=None,
            disaggregation_mode="null",
            enable_dsa_cache_layer_split=False,
        ),
        mambaish_config=mambaish,
        layer_info=_Open(
            start_layer=0,
            end_layer=len(layers),
            num_effective_layers=len(layers),
            full_attention_layer_ids=getattr(model_config, "full_attention_layer_ids", None),
            swa_attention_layer_ids=getattr(model_config, "swa_attention_layer_ids", None),
        ),
        spec_algorithm=_Open(is_eagle=no, is_standalone=no, is_dflash_family=no, is_dflash=no, is_none=lambda: True),
        is_draft_worker=False,
        is_hybrid_swa=bool(model_config.is_hybrid_swa) and not view.disable_hybrid_swa_memory,
        sliding_window_size=model_config.sliding_window_size,
        page_size=view.page_size,
        device="cpu",
        pp_size=1,
        attn_dp_size=1,
        ps=_Open(attn_tp_size=tp, attn_dcp_size=1, attn_dp_size=1, pp_size=1, attn_cp_size=1),
        fused_entry_bytes=lambda *a, **k: None,
    )
    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            for function in contexts.keys() & vars(module).keys() if name.startswith("sglang.srt.") else ():
                stack.enter_context(mock.patch.object(module, function, lambda found=contexts[function]: found))
        if hasattr(pool_configurator, "compute_page_shard_scratch_bytes"):
            name = "compute_page_shard_scratch_bytes"
            stack.enter_context(mock.patch.object(pool_configurator, name, return_value=0))
        return pool_configurator.create_memory_pool_configurator(kvc)._cell_size


def _swa_ratio(view: Any) -> float:
    return view.swa_full_tokens_ratio if view.swa_full_tokens_ratio is not None else 0.8


def _mambaish(model_config: Any) -> Any:
    try:
        from sglang.srt.configs.hybrid_arch import mambaish_config
    except ImportError:
        return None
    return mambaish_config(model_config)


if __name__ == "__main__":
    main()
