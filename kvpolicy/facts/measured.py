"""Evidence measured on the model itself (`kvpolicy fidelity`): its file, and whether it speaks of what is checked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from kvpolicy.facts.dtypes import AUTO
from kvpolicy.facts.errors import FactsArgumentError
from kvpolicy.facts.layer_dtypes import dtypes_by_layer
from kvpolicy.facts.model import ModelFacts

__all__ = [
    "KIND",
    "VERSION",
    "Level",
    "Measured",
    "ModelShape",
    "differing_layers",
    "load_measured",
    "measured_from",
    "shape_of",
]

KIND, VERSION = "kvpolicy/fidelity", 1
_MAX_BYTES = 16 << 20

Level = Literal["ok", "noticeable", "bad"]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What tells one model from another by its config.json. Fine-tunes share it: ``name`` does not count."""

    name: str
    architecture: str
    layers: int
    num_heads: int
    kv_heads: int
    head_dim: int
    kv_lora_rank: int

    def is_like(self, other: ModelShape) -> bool:
        """Whether all but the name is equal."""
        return {**asdict(self), "name": ""} == {**asdict(other), "name": ""}


def shape_of(model: ModelFacts) -> ModelShape:
    """The shape that evidence for this model carries."""
    layers = model.full_layers + model.swa_layers + model.linear_layers
    return ModelShape(
        model.name, model.architecture, layers, model.num_heads, model.kv_heads, model.head_dim, model.kv_lora_rank
    )


def differing_layers(ranges: Iterable[tuple[str, str]], *, layers: int, compute: str, rest: str) -> dict[str, str]:
    """A policy's (layer range, dtype) pairs layer by layer, without those that are as the ``rest``.

    ``compute``: the model's own dtype, which `auto` means. Keys are layer numbers, ascending; dtypes canonical.
    ValueError for a range that the model has not.
    """
    named = dtypes_by_layer(tuple(ranges), layers)
    found = {layer: compute if dtype == AUTO else dtype for layer, dtype in named.items()}
    return {str(layer): found[layer] for layer in sorted(found) if found[layer] != rest}


@dataclass(frozen=True, slots=True)
class Measured:
    """What `check` needs of one evidence file; the file holds more, for people."""

    source: str
    level: Level
    reasons: tuple[str, ...]
    model: ModelShape
    engine: str
    version: str
    device: str
    kv_dtype: str  # what was stored, canonical
    kv_layers: Mapping[str, str]  # layer -> dtype of layers that differ
    reference: str  # dtype it was compared with
    kl_mean: float  # nats a token, of the worse pass
    top1_agreement: float  # share of tokens, of the worse pass
    perplexity_change: float  # share, of the worse pass
    tokens: int


def load_measured(path: str) -> Measured:
    """Read an evidence file. FactsArgumentError for one that cannot be opened or is none."""
    file = Path(path)
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise FactsArgumentError("evidence", f"'{path}' is too large to be evidence")
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise FactsArgumentError("evidence", f"cannot read evidence '{path}': {reason}") from None
    try:
        return measured_from(json.loads(text), path)
    except (json.JSONDecodeError, RecursionError):
        reason = "not JSON"
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"no '{error.args[0]}'" if isinstance(error, KeyError) else str(error)
    help = "kvpolicy fidelity MODEL --policy FILE -o EVIDENCE.json writes one"
    raise FactsArgumentError("evidence", f"'{path}' is no evidence of kvpolicy fidelity: {reason}", help) from None


def measured_from(data: Mapping[str, Any], source: str) -> Measured:
    """From a file's content. KeyError, TypeError, ValueError or AttributeError where it has another shape."""
    if data["kind"] != KIND:
        raise ValueError(f"its kind is {data['kind']!r}")
    if data["version"] != VERSION:
        raise ValueError(f"version {data['version']!r} is not known here")
    verdict, stored, engine = data["verdict"], data["measured"], data["engine"]
    if verdict["level"] not in get_args(Level):
        raise ValueError(f"its verdict is {verdict['level']!r}")
    passes = [found["all"] for found in data["passes"].values()]
    return Measured(
        source=source,
        level=verdict["level"],
        reasons=tuple(map(str, verdict["reasons"])),
        model=ModelShape(**data["model"]),
        engine=str(engine["name"]),
        version=str(engine["version"]),
        device=str(engine["device"]),
        kv_dtype=str(stored["kv_dtype"]),
        kv_layers={str(layer): str(dtype) for layer, dtype in stored["kv_layers"].items()},
        reference=str(data["reference"]["kv_dtype"]),
        kl_mean=max(float(found["kl_mean_nats"]) for found in passes),
        top1_agreement=min(float(found["top1_agreement"]) for found in passes),
        perplexity_change=max(float(found["perplexity_change"]) for found in passes),
        tokens=max(int(found["tokens"]) for found in passes),
    )
