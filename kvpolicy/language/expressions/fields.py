"""What an expression may read: names, units, ranges, and where each value comes from.

Three tables, one a place: a score sees every field, a match all that cannot change without a touch, an admission only
what is known before insertion. The generated code reads ``m`` (a ``UnitMeta``), ``c`` (a ``PolicyClock``) or, for
admission, ``r`` (a ``RequestInfo``) and the two sizes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["ADMIT_FIELDS", "ANCHORS", "MATCH_FIELDS", "SCORE_FIELDS", "Dim", "Field", "Kind", "Trend"]

#: Integer fields are exact up to here; larger values are read as this one.
EXACT = 2.0**53


class Kind(enum.Enum):
    """The four kinds of value."""

    NUMBER = "a number"
    BOOL = "true or false"
    TEXT = "text"
    NONE = "None"


class Dim(NamedTuple):
    """Exponents of the three units; all zero is a plain number."""

    tokens: int = 0
    seconds: int = 0
    requests: int = 0

    def __str__(self) -> str:
        over = [n if e == 1 else f"{n}**{e}" for n, e in zip(self._fields, self, strict=True) if e > 0]
        under = [n if e == -1 else f"{n}**{-e}" for n, e in zip(self._fields, self, strict=True) if e < 0]
        if not over and not under:
            return "a plain number"
        return "/".join(["*".join(over) or "1", *under])


PLAIN = Dim()
TOKENS = Dim(tokens=1)
SECONDS = Dim(seconds=1)
REQUESTS = Dim(requests=1)

#: What a touch does to a value: nothing, never lower it, never raise it, anything.
Trend = Literal["same", "up", "down", "any"]


@dataclass(frozen=True, slots=True)
class Field:
    """One name of the language. ``low`` and ``high`` bound a number; reads outside are taken as the nearer bound."""

    name: str
    kind: Kind
    code: str  # Python source that reads it; free of side effects
    doc: str
    dim: Dim = PLAIN
    low: float = 0.0
    high: float = EXACT
    integer: bool = False
    optional: bool = False  # may be None
    trend: Trend = "any"
    anchor: str = ""  # clock-dependent fields: the static value they are measured from, in the same unit


def _table(*fields: Field) -> dict[str, Field]:
    return {f.name: f for f in fields}


def _request(owner: str) -> dict[str, Field]:
    return _table(
        Field("request.cache_salt", Kind.TEXT, f"{owner}.cache_salt", "the tenant's salt", optional=True),
        # Not "up", though it is a running maximum: an absent priority counts as 0 and may become negative.
        Field("request.priority", Kind.NUMBER, f"{owner}.priority", "highest priority of the unit's requests, clamped",
              low=-EXACT, integer=True, optional=True),
        Field("request.session_id", Kind.TEXT, f"{owner}.session_id", "the session", optional=True),
        Field("request.lora", Kind.TEXT, f"{owner}.lora", "the LoRA adapter", optional=True),
        Field("request.hint_class", Kind.TEXT, f"{owner}.hint_class", "the class that a hint gave it", optional=True),
    )  # fmt: skip


_N = Kind.NUMBER

_BETWEEN_TOUCHES = {
    **_table(
        Field("hits", _N, "m.hits", "requests after the creating one whose match reached the unit's end",
              integer=True, trend="up"),
        # A unit holds at least one token. Splits change both; the index re-offers a split unit whatever its score.
        Field("size_tokens", _N, "m.size_tokens", "tokens of this unit alone", TOKENS, 1.0, integer=True, trend="same"),
        Field("depth_tokens", _N, "m.depth_tokens", "tokens from the root to the unit's end",
              TOKENS, 1.0, integer=True, trend="same"),
        Field("reuse_gap_s", _N, "m.reuse_gap_s", "smoothed gap between touches, 0 before the first reuse", SECONDS),
        Field("is_output", Kind.BOOL, "m.is_output", "the unit holds generated tokens", trend="same"),
    ),
    **_request("m"),
}  # fmt: skip

_CLOCKED = _table(
    Field("idle_requests", _N, "(c.request_seq - m.touch_seq)", "requests since the last touch",
          REQUESTS, integer=True, anchor="touch_requests"),
    Field("age_requests", _N, "(c.request_seq - m.birth_seq)", "requests since insertion",
          REQUESTS, integer=True, anchor="birth_requests"),
    Field("idle_s", _N, "((c.now_ms - m.touch_ms) / 1000.0)", "policy time since the last touch",
          SECONDS, anchor="touch_s"),
    Field("age_s", _N, "((c.now_ms - m.birth_ms) / 1000.0)", "policy time since insertion",
          SECONDS, anchor="birth_s"),
)  # fmt: skip

#: Static counterparts of the clock-dependent fields; keys use them, texts cannot name them.
ANCHORS: Mapping[str, Field] = _table(
    Field("touch_requests", _N, "m.touch_seq", "", REQUESTS, integer=True, trend="up"),
    Field("birth_requests", _N, "m.birth_seq", "", REQUESTS, integer=True, trend="same"),
    Field("touch_s", _N, "(m.touch_ms / 1000.0)", "", SECONDS, trend="up"),
    Field("birth_s", _N, "(m.birth_ms / 1000.0)", "", SECONDS, trend="same"),
)

SCORE_FIELDS: Mapping[str, Field] = {**_BETWEEN_TOUCHES, **_CLOCKED}
MATCH_FIELDS: Mapping[str, Field] = _BETWEEN_TOUCHES
ADMIT_FIELDS: Mapping[str, Field] = {
    **_table(
        Field("size_tokens", _N, "size_tokens", "tokens that would be inserted", TOKENS, integer=True),
        Field("depth_tokens", _N, "depth_tokens", "tokens from the root to their end", TOKENS, integer=True),
    ),
    **_request("r"),
}
