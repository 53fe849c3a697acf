"""Runs inside one vLLM (no GPU needed): what its real resolution makes of a deployment.

Reads a JSON list of cases from stdin, writes one JSON line a case. A case is ``{gpu, config, page_size?, kv_dtype?,
attention?, tp?, skip?}`` with vLLM's own names. The engine's own code runs: ``EngineArgs.create_engine_config``, the
platform's attention selector, ``update_block_size_for_backend`` and the worker's ``select_common_block_size``. For GPUs
vLLM's CUDA platform class answers, its device queries overridden; compiled extensions and FlashInfer are importable and
empty. Model layers are not built, so their backends are asked for here as the layers would ask.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import types
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

warnings.simplefilter("ignore")
for _name, _value in {
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "VLLM_PLUGINS": "",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_HAS_FLASHINFER_CUBIN": "1",
}.items():
    os.environ.setdefault(_name, _value)
logging.disable(logging.CRITICAL)

import torch  # noqa: E402
from probing import DEVICES, StandIns, answer, properties, write_model  # noqa: E402

_EMPTY = (
    "vllm._C_stable_libtorch",
    "vllm._moe_C_stable_libtorch",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
    "vllm.third_party.flashmla.flash_mla_interface",
    "vllm._flashmla_C",
    "vllm._flashmla_extension_C",
)


class _Anything(type):
    """A class whose attributes, operators and calls all exist and mean nothing: stands for kernels at import."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _anything()

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else super().__call__()


def _anything() -> Any:
    return _Anything("Anything", (), {"__init__": lambda self, *a, **k: None})


def _lacking(name: str) -> bool:
    """Whether this build lacks an extension of that name: it imports, and holds anything."""
    return name.split(".")[0] in ("flashinfer", "tokenspeed_mla") or name in _EMPTY


def _attribute(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _anything()


@functools.lru_cache(maxsize=1)
def _become(gpu: str) -> None:
    """The platform is chosen once in a process: cases on CPUs and on GPUs go to two processes."""
    import vllm.platforms

    if gpu.startswith("cpu"):  # inspected here, models are known to the other devices' processes through vLLM's cache
        import vllm.model_executor.models.registry as registry

        registry._run_in_subprocess = lambda inspect: inspect()
        # Whatever the CPU is that runs this; one with AMX has bf16 in AVX-512 too.
        has_amx = gpu == "cpu-amx"
        torch.cpu._is_amx_tile_supported = torch.cpu._is_avx512_bf16_supported = lambda: has_amx
        return
    sys.meta_path.append(StandIns(_lacking, _attribute))  # type: ignore[arg-type]
    torch.version.cuda = "13.0"
    device = properties(gpu)
    torch.cuda.get_device_properties = lambda *a, **k: device
    torch.cuda.is_available = lambda: True
    import vllm.platforms.cuda as cuda
    from vllm.platforms.interface import DeviceCapability

    class Device(cuda.NonNvmlCudaPlatform):  # type: ignore[name-defined,misc]
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return DeviceCapability(*DEVICES[gpu][0])

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return gpu

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return DEVICES[gpu][1] << 20

        @classmethod
        def is_fully_connected(cls, device_ids: Any) -> bool:
            return True

    vllm.platforms._current_platform = Device()
    import vllm.triton_utils
    import vllm.utils.flashinfer as flashinfer
    import vllm.v1.attention.ops.flashmla as flashmla
    import vllm.vllm_flash_attn.flash_attn_interface as interface

    if (
        not vllm.triton_utils.HAS_TRITON
    ):  # its placeholder has no configurations, and a kernel list is filtered at import
        vllm.triton_utils.triton.Config = lambda meta, **k: types.SimpleNamespace(kwargs=meta, **k)
    import vllm._custom_ops as ops

    for name in vars(ops):
        if "support" in name:
            setattr(ops, name, lambda *a, **k: False)
    interface.FA2_AVAILABLE = interface.FA3_AVAILABLE = interface.FA4_AVAILABLE = True
    for module in (flashinfer,):
        module.has_nvidia_artifactory = lambda: True
        module.has_flashinfer = lambda: True
    flashmla._is_flashmla_available = lambda: (True, None)
    empty = torch.empty
    with mock.patch.object(torch, "empty", lambda *a, **k: empty(*a, **{**k, "device": "meta"})):
        import vllm.v1.attention.backends.mla.cutlass_mla  # reserves a workspace on the device at import
    torch.cuda.is_available = lambda: False


def _resolve(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    model = write_model(case["config"], folder)
    given = {"block_size": case.get("page_size"), "attention_backend": (case.get("attention") or "").upper() or None}
    if case.get("kv_dtype"):
        given["kv_cache_dtype"] = case["kv_dtype"]
    if case.get("skip"):
        given["kv_cache_dtype_skip_layers"] = case["skip"]
    config = EngineArgs(
        model=str(model),
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        max_model_len=4096,
        **given,
    ).create_engine_config()
    # Set afterwards: with more ranks than one the engine looks for fused kernels that this build lacks.
    config.parallel_config.tensor_parallel_size = case.get("tp", 1)
    with set_current_vllm_config(config):
        backends = [backend for _, backend in _layers(config)]
    with mock.patch.object(type(current_platform), "_find_non_ssm_backends", return_value=backends):
        current_platform.update_block_size_for_backend(config)
    cache = config.cache_config
    from vllm.v1.worker.utils import select_common_block_size

    with set_current_vllm_config(config):
        kernel = select_common_block_size(cache.block_size, backends)
    return {
        "page_size": cache.block_size,
        "kernel_page": kernel,
        "kv_dtype": cache.cache_dtype,
        "model_dtype": str(config.model_config.dtype).removeprefix("torch."),
        "attention": _enum_name(backends[0]),
        "prefix_cache": cache.enable_prefix_caching,
        "skip": list(cache.kv_cache_dtype_skip_layers),
        "token_bytes": _token_bytes(config, backends[0]),
    }


def _layers(config: Any) -> list[tuple[str, Any]]:
    """(KV dtype, backend class) of each kind of attention layer, the main one first."""
    from vllm.v1.attention.selector import get_attn_backend

    model, cache = config.model_config, config.cache_config
    text = model.hf_text_config
    sinks = model.architecture.startswith("GptOss")
    sparse = hasattr(text, "index_topk")
    window = bool(getattr(text, "sliding_window", None)) and getattr(text, "use_sliding_window", True) is not False
    found: list[tuple[str, Any]] = []
    for dtype in [cache.cache_dtype, *(["auto"] if cache.kv_cache_dtype_skip_layers else [])]:
        for sliding in [False, True] if window else [False]:
            backend = get_attn_backend(
                model.get_head_size(),
                model.dtype,
                dtype,
                use_mla=model.use_mla,
                has_sink=sinks,
                use_sparse=sparse,
                num_heads=model.get_num_attention_heads(config.parallel_config) if model.use_mla else None,
                has_sliding_window=sliding and not model.use_mla,
            )
            if all(backend is not known for _, known in found):
                found.append((dtype, backend))
    if sparse:
        from vllm.v1.attention.backends.mla.indexer import DeepseekV32IndexerBackend

        found.append(("indexer", DeepseekV32IndexerBackend))
    return found


def _enum_name(backend: Any) -> str:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    path = f"{backend.__module__}.{backend.__qualname__}"
    return next((member.name.lower() for member in AttentionBackendEnum if member.value == path), path)


def _token_bytes(config: Any, backend: Any) -> int | None:
    """Bytes of one token in one layer that stores the run's dtype, as the engine's own spec says."""
    from vllm.config import set_current_vllm_config
    from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, get_kv_quant_mode

    model, name = config.model_config, config.cache_config.cache_dtype
    if name.endswith("_ds_mla"):
        return None  # the layer itself states the bytes of these
    dtype = model.dtype if name == "auto" else STR_DTYPE_TO_TORCH_DTYPE[name]
    kind = MLAAttentionSpec if model.use_mla else FullAttentionSpec
    with contextlib.suppress(NotImplementedError), set_current_vllm_config(config):
        spec = kind(
            block_size=1,
            num_kv_heads=model.get_num_kv_heads(config.parallel_config),
            head_size=model.get_head_size(),
            dtype=dtype,
            kv_quant_mode=get_kv_quant_mode(name),
            **({"cache_dtype_str": name} if model.use_mla else {}),
        )
        return int(backend.customize_spec(spec).page_size_bytes)
    return None


if __name__ == "__main__":
    answer(_become, _resolve)
