"""Page size, KV dtype, attention backend and (core: engine) eviction: what the policy asks, what the engine decides.

How they are compared, and what a conflict does, is `kvpolicy.runtime.resolution`; here is what is SGLang's own: its
fields, its words, and who overrode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kvpolicy.compiler import Preference
from kvpolicy.facts.dtypes import canonical
from kvpolicy.facts.encodings import ENCODED
from kvpolicy.language import Eviction
from kvpolicy.runtime import resolution as runtime
from kvpolicy.runtime.active import ActivePolicy
from kvpolicy.runtime.resolution import Request, Use

from . import probe

__all__ = ["FIELDS", "ask", "compare_built", "compare_resolved", "explicit_by_value"]

#: Engine fields whose explicit use matters to a policy, with their flags.
FIELDS = {
    "page_size": "--page-size",
    "kv_cache_dtype": "--kv-cache-dtype",
    "attention_backend": "--attention-backend",
    "prefill_attention_backend": "--prefill-attention-backend",
    "decode_attention_backend": "--decode-attention-backend",
    "radix_eviction_policy": "--radix-eviction-policy",
    "radix_eviction_policy_config": "--radix-eviction-policy-config",
}

# Parameters of the engine's own orders, by our names (which carry their unit).
_ENGINE_PARAMS = {
    "protected_hits": "protected_threshold",
    "threshold_tokens": "threshold",
    "next_prompt_tokens": "next_prompt_estimate",
}

# Dtypes that SGLang has no flag for: those it reaches only through the model's own, and our pool's.
_WITHOUT_FLAG = {"fp16", "fp32", *ENCODED}


def _request(path: str, field: str, preference: Preference[Any], use: Use = Use.SET, **more: Any) -> Request:
    return Request(path, field, FIELDS[field], preference, use, **more)


def requests_of(active: ActivePolicy) -> list[Request]:
    """Everything the policy asks for."""
    compiled, eviction = active.compiled, active.policy.eviction
    found = [
        _request("cache.page_size", "page_size", compiled.cache.page_size),
        _request(
            "cache.kv_dtype",
            "kv_cache_dtype",
            compiled.cache.kv_dtype,
            to_engine=lambda name: "auto" if name in _WITHOUT_FLAG else name,
            to_policy=lambda name: name and canonical(str(name)),
        ),
        _request("backend.attention", "attention_backend", compiled.backend.attention),
        _request("backend.attention", "prefill_attention_backend", compiled.backend.attention, Use.WATCH),
        _request("backend.attention", "decode_attention_backend", compiled.backend.attention, Use.WATCH),
    ]
    if eviction is not None:
        found += _eviction_requests(eviction)
    return [request for request in found if not request.preference.is_auto]


def _eviction_requests(eviction: Eviction) -> Iterator[Request]:
    """With `core: engine` the engine's own order is asked for; with our index only an explicit flag matters."""
    use = Use.SET if eviction.core == "engine" else Use.EXPLICIT
    if order := eviction.policy or eviction.score:
        path = "eviction.policy" if eviction.policy else "eviction.score"
        no_such = "this SGLang has no such order"
        yield _request(path, "radix_eviction_policy", Preference(order), use, impossible=no_such)
    if eviction.policy and eviction.params:
        config = {_ENGINE_PARAMS.get(name, name): value for name, value in eviction.params.items()}
        yield _request("eviction.params", "radix_eviction_policy_config", Preference(config), use)


def explicit_by_value(server_args: Any, defaults: Mapping[str, Any]) -> dict[str, str]:
    """Fields that differ from their default, for records that no command line made: as explicit as can be told."""
    return {
        name: f"ServerArgs({name}={getattr(server_args, name)!r})"
        for name in FIELDS
        if hasattr(server_args, name) and getattr(server_args, name) != defaults.get(name)
    }


def ask(
    active: ActivePolicy, server_args: Any, explicit: Mapping[str, str], possible: Callable[[str, Any], bool]
) -> None:
    """See `kvpolicy.runtime.resolution.ask`; `server_args` is not resolved yet."""
    runtime.ask(active, requests_of(active), server_args, explicit, possible, engine="SGLang", put=_put)


def _put(server_args: Any, name: str, value: Any) -> None:
    if name == "radix_eviction_policy" and hasattr(server_args, "_radix_eviction_policy_explicitly_set"):
        server_args._radix_eviction_policy_explicitly_set = True  # else a model may swap lru for another
    setattr(server_args, name, value)


def compare_resolved(active: ActivePolicy, server_args: Any) -> None:
    """Compare with the engine's resolution, naming the rule that overrode. SystemExit under `on_conflict: error`."""

    def winner(name: str) -> str:
        rule = probe.overrider(server_args, name)
        return f"SGLang's rule `{rule}`" if rule else "SGLang's argument resolution"

    requests = requests_of(active)
    found = {request.field: request.to_policy(probe.resolved(server_args, request.field)) for request in requests}
    runtime.compare(active, requests, found, winner, is_watching=True)


def compare_built(active: ActivePolicy, built: Mapping[str, Any]) -> None:
    """Compare what a scheduler built with what was resolved. SystemExit under `on_conflict: error`.

    `built` is `{field: value in the policy's words}`; a field that could not be read off is absent.
    """
    active.built = dict(built)
    runtime.compare(active, requests_of(active), built, lambda _name: "what the scheduler built")
