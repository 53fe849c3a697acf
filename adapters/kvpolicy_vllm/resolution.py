"""Block size, KV dtype (single layers included), attention backend, cascade: what the policy asks, what vLLM decides.

How they are compared, and what a conflict does, is `kvpolicy.runtime.resolution`; here is what is vLLM's own: its
fields and its words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from kvpolicy.compiler import Preference
from kvpolicy.facts.dtypes import canonical
from kvpolicy.facts.vllm_backends import engine_dtype_name
from kvpolicy.facts.vllm_cascade import CASCADE_BACKENDS
from kvpolicy.language.fields import parse_layer_range
from kvpolicy.runtime import resolution as runtime
from kvpolicy.runtime.active import ActivePolicy, Setting
from kvpolicy.runtime.resolution import Request

from . import machine, probe

__all__ = ["FIELDS", "ask", "compare_built", "compare_resolved", "explicit_by_value", "inherit", "skip_layers"]

#: Engine fields whose explicit use matters to a policy, with their flags.
FIELDS = {
    "block_size": "--block-size",
    "kv_cache_dtype": "--kv-cache-dtype",
    "attention_backend": "--attention-backend",
    "kv_cache_dtype_skip_layers": "--kv-cache-dtype-skip-layers",
    "disable_cascade_attn": "--disable-cascade-attn",
}

_IMPOSSIBLE = "this vLLM cannot run it here"


def requests_of(active: ActivePolicy) -> list[Request]:
    """Everything the policy asks for, the layers apart: which they are is known with the model only."""
    compiled = active.compiled
    attention = compiled.backend.attention.prefer
    found = [
        Request(
            "cache.page_size", "block_size", FIELDS["block_size"], compiled.cache.page_size, impossible=_IMPOSSIBLE
        ),
        Request(
            "cache.kv_dtype",
            "kv_cache_dtype",
            FIELDS["kv_cache_dtype"],
            compiled.cache.kv_dtype,
            to_engine=lambda name: "auto" if machine.keeps_model_dtype(name) else engine_dtype_name(name, attention),
            to_policy=lambda name: name and canonical(str(name)),
            impossible=_IMPOSSIBLE,
        ),
        Request(
            "backend.attention",
            "attention_backend",
            FIELDS["attention_backend"],
            compiled.backend.attention,
            to_engine=_backend,
            to_policy=lambda backend: backend and str(getattr(backend, "name", backend)).lower(),
            impossible=_IMPOSSIBLE,
        ),
    ]
    return [request for request in found if not request.preference.is_auto] + _cascade(compiled.backend.cascade)


def _cascade(word: Any) -> list[Request]:
    """`auto` lets vLLM use its cascade where it thinks it pays, `off` keeps it from that; a vLLM without one is off."""
    if word not in ("auto", "off") or (word == "off" and not probe.has_cascade()):
        return []
    return [
        Request(
            "backend.cascade",
            "disable_cascade_attn",
            FIELDS["disable_cascade_attn"],
            Preference(word),
            to_engine=lambda name: name == "off",
            to_policy=lambda disabled: "off" if disabled else "auto",
            impossible="it has no cascade attention any more",
            is_auto_free=False,
        )
    ]


def _backend(name: str) -> Any:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    return None if name == "auto" else AttentionBackendEnum[name.upper()]


def explicit_by_value(engine_args: Any) -> dict[str, str]:
    """Fields that differ from their default, for records that no command line made: as explicit as can be told."""
    defaults = {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(engine_args)
        if field.name in FIELDS
    }
    return {
        name: f"EngineArgs({name}={getattr(engine_args, name)!r})"
        for name, default in defaults.items()
        if getattr(engine_args, name) != default
    }


def ask(active: ActivePolicy, engine_args: Any, explicit: Mapping[str, str]) -> None:
    """See `kvpolicy.runtime.resolution.ask`; `engine_args` has made no configuration yet."""
    runtime.ask(active, requests_of(active), engine_args, explicit, machine.possible, engine="vLLM")


def inherit(active: ActivePolicy, engine_args: Any) -> None:
    """Repeat in an API server what its launcher asked for. The launcher has compared it all."""
    explicit = explicit_by_value(engine_args)
    for request in requests_of(active):
        known = active.settings.get(request.field)
        if known is None or request.field in explicit or known.decided_by.startswith("--"):
            continue
        value = request.preference.first_possible(partial(machine.possible, request.field))
        setattr(engine_args, request.field, request.to_engine(value))


def skip_layers(active: ActivePolicy, vllm_config: Any, explicit: Mapping[str, str]) -> None:
    """Put the policy's single layers into the configuration: vLLM can leave layers in the model's dtype, and no other.

    SystemExit where it has no word for what the policy asks, or an explicit flag says otherwise, under
    `on_conflict: error`.
    """
    ranges = active.compiled.cache.layer_dtypes
    if not ranges:
        return
    path, field, origin = "cache.kv_dtype.layers", "kv_cache_dtype_skip_layers", active.origin("cache.kv_dtype.layers")
    model, cache = vllm_config.model_config, vllm_config.cache_config
    count, own = model.get_total_num_hidden_layers(), canonical(str(model.dtype))
    request = Request(path, field, FIELDS[field], Preference(dict(ranges)))
    wanted: set[int] = set()
    for text, dtype in ranges:
        if dtype not in ("auto", own):
            why = f"vLLM can leave single layers in the model's dtype ({own}), and in no other"
            runtime.raise_or_note(active, [runtime.conflict(request, own, "this vLLM", why, origin)])
            return
        for start, stop in parse_layer_range(text):
            wanted.update(range(count)[start:stop])
    asked = sorted(map(str, wanted), key=int)
    if given := explicit.get(field):
        found = list(cache.kv_cache_dtype_skip_layers)
        if sorted(found) != sorted(asked):
            why = f"{given} was given explicitly"
            runtime.raise_or_note(active, [runtime.conflict(request, found, given, why, origin)])
        active.settings[field] = Setting(path, FIELDS[field], asked, found, given, origin)
        return
    # What the engine skips by itself (boundary layers of some formats) stays skipped. Sorted as vLLM sorts it.
    cache.kv_cache_dtype_skip_layers = sorted({*cache.kv_cache_dtype_skip_layers, *asked})
    active.settings[field] = Setting(path, FIELDS[field], asked, asked, "policy", origin)


def compare_resolved(active: ActivePolicy, vllm_config: Any) -> None:
    """Compare with the configuration that vLLM made of its arguments. SystemExit under `on_conflict: error`."""
    cache, attention = vllm_config.cache_config, getattr(vllm_config, "attention_config", None)
    found: dict[str, Any] = {"block_size": cache.block_size, "kv_cache_dtype": _stored(cache.cache_dtype, vllm_config)}
    if (backend := getattr(attention, "backend", None)) is not None:
        found["attention_backend"] = str(backend.name).lower()
    if "disable_cascade_attn" in active.settings:
        is_off = vllm_config.model_config.disable_cascade_attn or not probe.has_cascade()
        found["disable_cascade_attn"] = "off" if is_off else "auto"
    runtime.compare(active, requests_of(active), found, lambda _: "vLLM's argument resolution", is_watching=True)


def compare_built(active: ActivePolicy, built: Mapping[str, Any]) -> None:
    """Compare what an engine built with what was resolved. SystemExit under `on_conflict: error`.

    `built` is `{field: value in the policy's words}`; a field that could not be read off is absent.
    """
    active.built = dict(built)
    backends = set(str(built.get("attention_backend", "")).split(", "))
    if "attention_backend" in built and backends.isdisjoint(CASCADE_BACKENDS):
        built = {**built, "disable_cascade_attn": "off"}  # whatever its configuration says
    runtime.compare(active, requests_of(active), built, lambda _: "what the engine built")


def _stored(dtype: str, vllm_config: Any) -> str:
    """The canonical name of what a cache of this dtype really stores: `auto` is the model's own."""
    return canonical(str(vllm_config.model_config.dtype if dtype == "auto" else dtype))
