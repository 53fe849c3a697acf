"""A policy's per-layer KV dtypes: by layer, and in vLLM's one option for them, ``--kv-cache-dtype-skip-layers``.

A skipped layer keeps the model's dtype (``model_executor/layers/attention/attention.py``); no layer can have a third
dtype, and without a quantized dtype for the rest there is nothing to skip.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvpolicy.facts.dtypes import AUTO, canonical
from kvpolicy.facts.model import ModelFacts
from kvpolicy.language.fields import parse_layer_range

__all__ = ["LayerDtypes", "boundary_layers", "dtypes_by_layer", "layer_dtypes"]

_BOUNDARY_LAYERS = 2  # at each end: quantization/turboquant/config.py get_boundary_skip_layers


@dataclass(frozen=True, slots=True)
class LayerDtypes:
    """``skip``: layer indices for the option, ascending. ``unexpressed``: (range, dtype) pairs vLLM has no word for."""

    skip: tuple[str, ...] = ()
    unexpressed: tuple[tuple[str, str], ...] = ()


def dtypes_by_layer(layers: tuple[tuple[str, str], ...], count: int) -> dict[int, str]:
    """``{layer index: canonical dtype}`` of the layers that the policy names, in a model of ``count`` layers.

    ValueError for a range without a layer there.
    """
    every, found = range(count), {}
    for text, dtype in layers:
        named = [layer for start, stop in parse_layer_range(text) for layer in every[start:stop]]
        if not named:
            raise ValueError(f"layers {text}: the model has {count} layers, 0 to {count - 1}")
        found.update(dict.fromkeys(named, canonical(dtype)))
    return found


def layer_dtypes(layers: tuple[tuple[str, str], ...], model: ModelFacts, compute: str) -> LayerDtypes:
    """Translate ``(layer range, dtype)`` pairs for a model that computes in ``compute`` (canonical name)."""
    every = range(model.full_layers + model.swa_layers + model.linear_layers)
    skip: set[int] = set()
    unexpressed = []
    for text, dtype in layers:
        if canonical(dtype) not in (AUTO, compute):
            unexpressed.append((text, dtype))
            continue
        for start, stop in parse_layer_range(text):
            skip.update(every[start:stop])
    return LayerDtypes(tuple(map(str, sorted(skip))), tuple(unexpressed))


def boundary_layers(model: ModelFacts, kv_dtype: str) -> tuple[str, ...]:
    """Layers that TurboQuant and UltraQuant leave in the model's dtype by themselves; none in hybrids."""
    if not kv_dtype.startswith(("turboquant_", "ultraquant_")) or model.linear_layers:
        return ()
    count = model.full_layers + model.swa_layers
    edge = min(_BOUNDARY_LAYERS, count // 2)
    return tuple(map(str, sorted({*range(edge), *range(count - edge, count)})))
