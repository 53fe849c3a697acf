"""The grammar as types: what a checked policy is made of, frozen, with units already turned into numbers.

One pydantic model a section. `None` means "not set: the engine's default". Shorthand (`page_size: 16`, `triton`) is
widened before validation, so a consumer sees one shape. The models are also the source of the JSON Schema.
"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from kvpolicy.language.eviction_words import resolved_params
from kvpolicy.language.fields import (
    ATTENTION,
    KV_DTYPE,
    PAGE_SIZE,
    WRITTEN,
    AttentionName,
    DtypeName,
    DurationMs,
    LayerMap,
    List,
    Name,
    PageTokens,
    Share,
    Tokens,
    issue,
)
from kvpolicy.language.policy_tests import PolicyTest
from kvpolicy.language.section import Section
from kvpolicy.language.units import UnitError

__all__ = [
    "Allocator",
    "Backend",
    "Cache",
    "Cascade",
    "Choice",
    "Eviction",
    "Hints",
    "KvDtype",
    "Metadata",
    "PageSize",
    "Policy",
    "Retain",
    "Rule",
    "Tenant",
    "Tenants",
    "Watermark",
]

API_VERSION = "kvpolicy/v1"
KIND = "KVPolicy"
#: Rules run at every insertion and touch, top to bottom: a bound on that cost.
MAX_RULES = 64
MAX_TESTS = 200


class Metadata(Section):
    """What people and dashboards call the policy."""

    name: Name = Field(description="Shown at start, in the status and as a metric label. Not inherited by `extends`.")
    description: str | None = Field(None, max_length=500, description="One line for people.")


class _Preferring(Section):
    """`{prefer, accept}`: the first choice, and what else is no conflict."""

    @model_validator(mode="after")
    def _accept_the_preferred(self) -> _Preferring:
        # Leaving `accept` out means: only the preferred value.
        prefer, accept = getattr(self, "prefer", None), getattr(self, "accept", ())
        if not accept and prefer is not None:
            object.__setattr__(self, "accept", (prefer,))
        return self


class PageSize(_Preferring):
    """Page size in tokens."""

    prefer: PageTokens | None = Field(None, description="The size to ask the engine for, in tokens.")
    accept: List[PageTokens] = Field((), description="Sizes the engine may settle on without a conflict.")


class KvDtype(_Preferring):
    """KV dtype of the cache, and of single layers."""

    prefer: DtypeName | None = Field(None, description="The dtype to ask for.")
    accept: List[DtypeName] = Field((), description="Dtypes the engine may settle on without a conflict.")
    layers: LayerMap = Field((), description='Other dtypes for layer ranges: {"0-1": bf16, "-2:": bf16}.')

    @model_validator(mode="before")
    @classmethod
    def _default_is_prefer(cls, value: Any) -> Any:
        if isinstance(value, dict) and "default" in value:
            if "prefer" in value:
                raise issue("KVP318", "`default` and `prefer` are two words for one thing", "keep one of the two")
            return {("prefer" if key == "default" else key): item for key, item in value.items()}
        return value

    @field_validator("prefer")
    @classmethod
    def _auto_is_unset(cls, value: str | None) -> str | None:
        return None if value == "auto" else value


class Choice(_Preferring):
    """A named choice of the engine."""

    prefer: AttentionName | None = Field(None, description="The backend to ask for.")
    accept: List[AttentionName] = Field((), description="Backends the engine may settle on without a conflict.")


class Cache(Section):
    """How the KV cache is laid out."""

    page_size: Annotated[PageSize | None, PAGE_SIZE] = Field(
        None, description="Tokens a page: a power of two, `auto`, or {prefer, accept}. A hit is counted in whole pages."
    )
    kv_dtype: Annotated[KvDtype | None, KV_DTYPE] = Field(
        None,
        description="Element type of cached keys and values: a name, `auto`, {prefer, accept} or {default, layers}.",
    )
    on_conflict: Literal["error", "warn"] = Field(
        "error",
        description="When a flag or the engine itself contradicts the policy, in any section: do not start, or warn.",
    )


class Cascade(Section):
    """When to read a shared prefix once for a whole batch."""

    min_shared_tokens: Tokens = Field(description="Shortest shared prefix worth a pass of its own, in tokens.")
    min_batch: int = Field(ge=2, le=65536, description="Fewest requests that must share it.")


def _cascade_tag(value: Any) -> str:
    return "(cascade)" if isinstance(value, dict | Cascade) else "(mode)"


class Backend(Section):
    """Which attention backend reads the cache."""

    attention: Annotated[Choice | None, ATTENTION] = Field(
        None, description="Attention backend: a name, `auto`, or {prefer, accept}."
    )
    page_native: bool | None = Field(None, description="Plan with real pages (FlashInfer) instead of single tokens.")
    cascade: (
        Annotated[
            Annotated[Literal["off", "auto"], Tag("(mode)")] | Annotated[Cascade, Tag("(cascade)")],
            Discriminator(_cascade_tag),
        ]
        | None
    ) = Field(None, description="Cascade attention over shared prefixes: off, auto, or thresholds.")


class Watermark(Section):
    """Free below `low`: evict in one batch up to `high`. Shares of the pool."""

    low: Share
    high: Share


class Allocator(Section):
    """How slots are handed out."""

    order: Literal["fifo", "lifo", "address", "runs"] | None = Field(
        None, description="Which free slot is handed out first."
    )
    watermark: Watermark | None = Field(None, description="Free below `low`: evict in one batch up to `high`.")
    guard: Literal["off", "sampled", "full"] | None = Field(
        None, description="Check slots for double use while serving."
    )


class Retain(Section):
    """Protects matching units: they go after every unprotected one, lower weights first."""

    weight: float = Field(
        gt=0, le=1e6, allow_inf_nan=False, description="Protected units go by ascending weight, then score."
    )
    ttl_ms: DurationMs | None = Field(
        None, alias="ttl", description="Protection ends this long after the last matching touch."
    )
    budget: Share | None = Field(None, description="At most this share of the pool's tokens is protected by the rule.")


class Rule(Section):
    """What to do with units (or requests) that match. The first matching rule wins."""

    name: Name = Field(description="Unique in the policy; a metric label.")
    match: str | None = Field(None, description="A boolean expression over the unit's fields. Left out: every unit.")
    retain: Retain | None = Field(None, description="Protect the unit.")
    admit: Literal["never"] | None = Field(None, description="never: the request leaves nothing in the cache.")
    priority: int | None = Field(
        None, ge=-(2**31), le=2**31 - 1, description="Priority of the unit, instead of its requests'."
    )


class Tenant(Section):
    """Floor and cap of one named tenant."""

    floor: Share | None = Field(
        None, description="Not evicted below this share of the pool while others exceed their own floor."
    )
    cap: Share | None = Field(
        None, description="Above this share, under pressure, the tenant loses its own units first."
    )


class Tenants(Section):
    """Shares of the pool by `cache_salt`."""

    by: Literal["cache_salt"] = Field("cache_salt", description="What tells tenants apart.")
    floor: Share | None = Field(None, description="Floor of each of the `max_floors` tenants with most hit tokens.")
    cap: Share | None = Field(None, description="Cap of each tenant that is not named.")
    max_floors: int = Field(8, ge=0, le=10_000, description="How many unnamed tenants hold a floor at a time.")
    named: dict[str, Tenant] = Field(
        default_factory=dict, description="Tenants with shares of their own only, by cache_salt."
    )


class Eviction(Section):
    """What is kept and what goes first."""

    core: Literal["auto", "engine", "kvpolicy"] = Field(
        "auto", description="Whose tree core: auto, the engine's own (its built-in policies only), or kvpolicy's index."
    )
    score: str | None = Field(
        None, description="A number for each unit; the smallest goes first. Not together with `policy`."
    )
    policy: str | None = Field(None, description="A built-in order, like lru or gdsf. Not together with `score`.")
    params: dict[str, Any] = Field(default_factory=dict, description="Parameters of `policy`.")
    rules: List[Rule] = Field(
        (), max_length=MAX_RULES, description="Retain, admit and priority, top to bottom, first match wins."
    )
    tenants: Tenants | None = Field(None, description="Floors and caps by cache_salt.")

    @model_validator(mode="after")
    def _complete_params(self) -> Eviction:
        # Consumers get canonical numbers with the defaults filled in. Names and values that do not fit are reported,
        # with their places, by the meaning layer.
        with contextlib.suppress(KeyError, UnitError):
            object.__setattr__(self, "params", resolved_params(self.policy or "", self.params))
        return self


class Hints(Section):
    """What a request may ask for itself."""

    allow: List[Literal["retain", "demote", "expire", "class"]] = Field(
        (), description="Hints that are honoured; the others are refused. None unless named here."
    )
    max_priority: int | None = Field(None, ge=0, le=2**31 - 1, description="Higher priorities are clamped to this.")
    max_ttl_ms: DurationMs = Field(
        3_600_000, alias="max_ttl", description="Longer ttls of retain hints are clamped to this."
    )
    budget: Share = Field(0.1, description="At most this share of the pool's tokens is protected by retain hints.")
    weight: float = Field(
        1.0,
        gt=0,
        le=1e6,
        allow_inf_nan=False,
        description="Where units that hints retain stand among those that rules retain.",
    )
    classes: List[Name] = Field(
        (), max_length=64, description="The names that class hints may give, for rules: request.hint_class."
    )


class Policy(Section):
    """A checked policy. An absent section leaves the engine's defaults."""

    apiVersion: Literal["kvpolicy/v1"]
    kind: Literal["KVPolicy"]
    metadata: Metadata
    cache: Cache | None = Field(None, description="Layout of the KV cache (takes effect at start).")
    backend: Backend | None = Field(None, description="Attention backend (takes effect at start).")
    allocator: Allocator | None = Field(None, description="Order and watermarks of slots.")
    eviction: Eviction | None = Field(None, description="What is kept and what goes first.")
    hints: Hints | None = Field(None, description="What a request may ask for itself.")
    engines: dict[Literal["sglang", "vllm"], Any] = Field(
        default_factory=dict, description="Per engine: override (a mapping) or drop (null) a section."
    )
    tests: List[PolicyTest] = Field(
        (), max_length=MAX_TESTS, description="What the policy does on small caches; `kvpolicy test` runs them."
    )

    @classmethod
    def from_document(cls, data: dict[str, Any]) -> Policy:
        """The policy of plain data as written in a file, units and all. Raises pydantic's ValidationError."""
        return cls.model_validate(data, context=WRITTEN, by_alias=True, by_name=False)

    @property
    def on_conflict(self) -> Literal["error", "warn"]:
        """What a contradiction between policy and engine does, wherever it is."""
        return self.cache.on_conflict if self.cache else "error"
