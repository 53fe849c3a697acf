"""Accelerators as data: what the engine's rules ask of them (vendor, compute capability) and their memory.

Memory is what the driver reports in MiB (``nvidia-smi`` / ``amd-smi`` totals), not the marketing size; SGLang reads the
same figure (``utils/common.py get_device_memory_capacity``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvpolicy.facts.errors import FactsArgumentError, did_you_mean

__all__ = ["GPUS", "Gpu", "device_traits", "parse_gpu", "parse_memory_bytes"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device kind. Rules match on ``traits``: vendor, ``smNN`` by major version, ``blackwell``, ``amx``."""

    name: str
    label: str
    traits: frozenset[str]
    memory_mib: int | None  # None: host memory, unknown here


def device_traits(kind: str, *, capability_major: int | None = None, amx: bool = False) -> frozenset[str]:
    """Traits of a device that was probed: ``kind`` is cuda, hip, xpu or cpu; ``capability_major`` of CUDA devices."""
    traits = {kind} | ({"amx"} if amx else set())
    if kind == "cuda" and capability_major is not None:
        traits |= {f"sm{capability_major}0"} | ({"blackwell"} if capability_major >= 10 else set())
    return frozenset(traits)


def _cuda(name: str, label: str, major: int, memory_mib: int) -> Gpu:
    return Gpu(name, label, device_traits("cuda", capability_major=major), memory_mib)


def _hip(name: str, label: str, arch: str, memory_mib: int) -> Gpu:
    return Gpu(name, label, frozenset({"hip", arch}), memory_mib)


GPUS: dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _cuda("h100", "NVIDIA H100 80GB", 9, 81559),
        _cuda("h200", "NVIDIA H200", 9, 143771),
        _cuda("h20", "NVIDIA H20", 9, 97871),
        _cuda("h800", "NVIDIA H800", 9, 81559),
        _cuda("gh200", "NVIDIA GH200 96GB", 9, 97871),
        _cuda("b200", "NVIDIA B200", 10, 183359),
        _cuda("gb200", "NVIDIA GB200", 10, 189471),
        _cuda("b300", "NVIDIA B300", 10, 275040),
        _cuda("gb300", "NVIDIA GB300", 10, 284208),
        _cuda("rtx5090", "NVIDIA RTX 5090", 12, 32607),
        _cuda("rtxpro6000", "NVIDIA RTX PRO 6000 Blackwell", 12, 97887),
        _cuda("a100", "NVIDIA A100 80GB", 8, 81920),
        _cuda("a100-40gb", "NVIDIA A100 40GB", 8, 40960),
        _cuda("a10", "NVIDIA A10", 8, 23028),
        _cuda("l40s", "NVIDIA L40S", 8, 46068),
        _cuda("l40", "NVIDIA L40", 8, 46068),
        _cuda("l4", "NVIDIA L4", 8, 23034),
        _cuda("rtx4090", "NVIDIA RTX 4090", 8, 24564),
        _cuda("t4", "NVIDIA T4", 7, 15360),
        _cuda("v100", "NVIDIA V100 32GB", 7, 32768),
        _hip("mi300x", "AMD MI300X", "gfx942", 196592),
        _hip("mi325x", "AMD MI325X", "gfx942", 262128),
        _hip("mi355x", "AMD MI355X", "gfx950", 294896),
        Gpu("xpu", "Intel GPU", frozenset({"xpu"}), None),
        Gpu("cpu", "CPU without Intel AMX", frozenset({"cpu"}), None),
        Gpu("cpu-amx", "CPU with Intel AMX", frozenset({"cpu", "amx"}), None),
    )
}

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_MEMORY = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]i?)?B?$", re.IGNORECASE)


def parse_gpu(text: str) -> Gpu:
    """Find a device by name; case, spaces and the words ``nvidia``/``amd`` do not matter.

    Raises :class:`FactsArgumentError` with a did-you-mean for an unknown one.
    """
    key = re.sub(r"^(nvidia|amd|geforce)|[\s_]", "", text.strip().lower())
    if key in GPUS:
        return GPUS[key]
    raise FactsArgumentError("gpu", f"unknown GPU '{text}'", did_you_mean(key, GPUS))


def parse_memory_bytes(text: str) -> int:
    """``60GiB`` -> bytes; GB is 10^9 and GiB 2^30. Raises :class:`FactsArgumentError` otherwise, for zero too."""
    match = _MEMORY.match(text.strip())
    if match is None:
        raise FactsArgumentError("memory", f"cannot read memory '{text}'", "write it as 60GiB, 64GB or bytes")
    unit = (match["unit"] or "").lower()
    size_bytes = int(float(match["number"]) * (_BINARY_UNITS.get(unit) or _UNITS[unit]))
    if size_bytes <= 0:
        raise FactsArgumentError("memory", f"memory '{text}' leaves no room for a KV pool", "write it as 60GiB")
    return size_bytes
