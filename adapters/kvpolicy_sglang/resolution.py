"""Page size, KV dtype, attention backend and (core: engine) eviction: what the policy asks, what the engine decides.

The policy's preferred values go in as if an operator had given them, only where the operator gave none; the engine's
own resolution then has the last word. Three comparisons follow: explicit flags before resolution, the resolved
arguments after it, and the objects the scheduler really built. A difference outside the policy's accept list is a
conflict; `on_conflict` says whether it ends the start.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvpolicy.compiler import Preference
from kvpolicy.facts.dtypes import canonical
from kvpolicy.language import Eviction

from . import probe
from .active import ActivePolicy, Conflict, Setting

__all__ = ["FIELDS", "PATHS", "ask", "compare_built", "compare_resolved", "explicit_by_value"]

logger = logging.getLogger("kvpolicy")

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

#: Where those values stand in a policy.
PATHS = (
    "eviction",
    "cache.page_size",
    "cache.kv_dtype",
    "backend.attention",
    "eviction.policy",
    "eviction.score",
    "eviction.params",
)

# Parameters of the engine's own orders, by our names (which carry their unit).
_ENGINE_PARAMS = {
    "protected_hits": "protected_threshold",
    "threshold_tokens": "threshold",
    "next_prompt_tokens": "next_prompt_estimate",
}

# Dtypes that SGLang reaches only through the model's own dtype: it has no flag for them.
_WITHOUT_FLAG = {"fp16", "fp32"}


class Use(enum.Enum):
    """What is done with the engine's field."""

    SET = "set"  # set where the operator left it, then compared
    WATCH = "watch"  # never set; compared wherever the engine or the operator gave it a value
    EXPLICIT = "explicit"  # never set; compared with an explicit flag alone


@dataclass(frozen=True, slots=True)
class Request:
    """One value a policy asks of the engine."""

    path: str  # in the policy
    field: str  # in ServerArgs
    preference: Preference[Any]
    use: Use = Use.SET
    to_engine: Callable[[Any], Any] = lambda value: value
    to_policy: Callable[[Any], Any] = lambda value: value

    @property
    def flag(self) -> str:
        return FIELDS[self.field]

    def accepts(self, value: Any) -> bool:
        """Whether `value` honours the policy; an `auto` among the accepted values lets the engine choose freely."""
        return self.preference.accepts(value) or "auto" in self.preference.candidates


def requests_of(active: ActivePolicy) -> list[Request]:
    """Everything the policy asks for."""
    compiled, eviction = active.compiled, active.policy.eviction
    found = [
        Request("cache.page_size", "page_size", compiled.cache.page_size),
        Request(
            "cache.kv_dtype",
            "kv_cache_dtype",
            compiled.cache.kv_dtype,
            to_engine=lambda name: "auto" if name in _WITHOUT_FLAG else name,
            to_policy=lambda name: name and canonical(str(name)),
        ),
        Request("backend.attention", "attention_backend", compiled.backend.attention),
        Request("backend.attention", "prefill_attention_backend", compiled.backend.attention, Use.WATCH),
        Request("backend.attention", "decode_attention_backend", compiled.backend.attention, Use.WATCH),
    ]
    if eviction is not None:
        found += _eviction_requests(eviction)
    return [request for request in found if not request.preference.is_auto]


def _eviction_requests(eviction: Eviction) -> Iterator[Request]:
    """With `core: engine` the engine's own order is asked for; with our index only an explicit flag matters."""
    use = Use.SET if eviction.core == "engine" else Use.EXPLICIT
    if order := eviction.policy or eviction.score:
        path = "eviction.policy" if eviction.policy else "eviction.score"
        yield Request(path, "radix_eviction_policy", Preference(order), use)
    if eviction.policy and eviction.params:
        config = {_ENGINE_PARAMS.get(name, name): value for name, value in eviction.params.items()}
        yield Request("eviction.params", "radix_eviction_policy_config", Preference(config), use)


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
    """Put the policy's values into unresolved `server_args` and settle them against explicit flags.

    `explicit` maps a field to how the operator gave it; `possible(field, value)` says whether this machine can run a
    value, so that an acceptable one is asked for where the preferred one cannot run. SystemExit under
    `on_conflict: error`.
    """
    conflicts: list[Conflict] = []
    for request in requests_of(active):
        prefer, origin = request.preference.prefer, active.origin(request.path)
        if not hasattr(server_args, request.field):
            if request.use is Use.SET:
                conflicts.append(_conflict(request, None, "this SGLang", f"this SGLang has no {request.flag}", origin))
            continue
        if request.field in explicit:
            value = request.to_policy(getattr(server_args, request.field))
            given = explicit[request.field]
            if not request.accepts(value):
                conflicts.append(_conflict(request, value, given, f"{given} was given explicitly", origin))
            setting = Setting(request.path, request.flag, prefer, value, given, origin)
        elif request.use is Use.SET:
            value = request.preference.first_possible(lambda v, field=request.field: possible(field, v))
            if request.field == "radix_eviction_policy":
                if not possible(request.field, value):
                    conflicts.append(_conflict(request, None, "this SGLang", "this SGLang has no such order", origin))
                    continue
                if hasattr(server_args, "_radix_eviction_policy_explicitly_set"):
                    server_args._radix_eviction_policy_explicitly_set = True  # else a model may swap lru for another
            setattr(server_args, request.field, request.to_engine(value))
            decided = "policy" if value == prefer else f"accept list ({prefer} cannot run here)"
            setting = Setting(request.path, request.flag, prefer, value, decided, origin)
        else:
            continue
        active.settings[request.field] = setting
    _raise_or_note(active, conflicts)


def compare_resolved(active: ActivePolicy, server_args: Any) -> None:
    """Compare with the engine's resolution, naming the rule that overrode. SystemExit under `on_conflict: error`."""
    conflicts: list[Conflict] = []
    for request in requests_of(active):
        effective = request.to_policy(probe.resolved(server_args, request.field))
        known = active.settings.get(request.field)
        if known is None:
            if effective is None or request.use is Use.EXPLICIT:
                continue
            prefer, origin = request.preference.prefer, active.origin(request.path)
            known = Setting(request.path, request.flag, prefer, prefer, "policy", origin)
        if effective == request.to_policy(request.to_engine(known.effective)):
            active.settings[request.field] = known
            continue
        rule = probe.overrider(server_args, request.field)
        winner = f"SGLang's rule `{rule}`" if rule else "SGLang's argument resolution"
        active.settings[request.field] = replace(known, effective=effective, decided_by=winner)
        if not request.accepts(effective):
            outcome = f"{winner} makes it {effective} ({request.flag})"
            conflicts.append(_conflict(request, effective, winner, outcome, known.origin))
    _raise_or_note(active, conflicts)


def compare_built(active: ActivePolicy, built: Mapping[str, Any]) -> None:
    """Compare what a scheduler built with what was resolved. SystemExit under `on_conflict: error`.

    `built` is `{field: value in the policy's words}`; a field that could not be read off is absent.
    """
    conflicts: list[Conflict] = []
    for request in requests_of(active):
        effective = built.get(request.field)
        known = active.settings.get(request.field)
        if effective is None or known is None or known.effective == effective:
            continue
        winner = "what the scheduler built"
        active.settings[request.field] = replace(known, effective=effective, decided_by=winner)
        if not request.accepts(effective):
            outcome = f"{winner} makes it {effective} ({request.flag})"
            conflicts.append(_conflict(request, effective, winner, outcome, known.origin))
    _raise_or_note(active, conflicts)


def _conflict(request: Request, effective: Any, winner: str, outcome: str, origin: str) -> Conflict:
    prefer = request.preference.prefer
    also = [str(value) for value in request.preference.candidates if value != prefer]
    accepted = f" (also accepted: {', '.join(also)})" if also else ""
    message = f"{request.path}: the policy asks for {prefer}{accepted} at {origin}, but {outcome}"
    return Conflict(request.path, prefer, effective, winner, origin, message)


def _raise_or_note(active: ActivePolicy, conflicts: Iterable[Conflict]) -> None:
    found = list(conflicts)
    if not found:
        return
    if active.compiled.on_conflict == "error":
        lines = "\n".join(f"  conflict: {conflict.message}" for conflict in found)
        raise SystemExit(
            f"kvpolicy: {active.source}: the policy cannot be honoured:\n{lines}\n"
            "  help: change one side, extend the accept list, or set `cache: {on_conflict: warn}` to let the engine win"
        )
    active.conflicts += found
    for conflict in found:
        logger.warning("kvpolicy: conflict, going on (on_conflict: warn): %s", conflict.message)
