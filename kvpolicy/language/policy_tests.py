"""The grammar of the `tests:` section: small caches, events, and what is expected between them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from kvpolicy.language.fields import List, PageTokens, Tokens, issue
from kvpolicy.language.section import Section
from kvpolicy.language.steps import EVENT_PATTERN, SEGMENT_PATTERN, Event, StepError, parse_event, parse_path
from kvpolicy.language.units import describe

__all__ = ["HINTS_RULE", "NOBODY", "UNPROTECTED", "Amount", "Event", "Expectation", "PolicyTest", "length_of"]

#: In `evicted_tokens`: what no rule protected. In `tenant_tokens`: requests without a cache_salt.
UNPROTECTED, NOBODY = "unprotected", "nobody"
#: What status, metrics and tests call the protection by requests' own hints. No rule can have this name.
HINTS_RULE = "(hints)"

_AMOUNT = re.compile(r"(<=|>=|<|>)? ?([0-9]{1,12})")


class Amount(Section):
    """A number of tokens, or a bound on it."""

    sign: Literal["=", "<", "<=", ">", ">="] = Field("=", description="How the number bounds the tokens.")
    tokens: int = Field(description="The number.")

    def holds(self, tokens: int) -> bool:
        if self.sign == "=":
            return tokens == self.tokens
        if "=" in self.sign and tokens == self.tokens:
            return True
        return tokens < self.tokens if "<" in self.sign else tokens > self.tokens

    def __str__(self) -> str:
        return f"{self.tokens}" if self.sign == "=" else f"{self.sign} {self.tokens}"


def _amount(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**12:
        return Amount(tokens=value)
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise issue(
            "KVP203", f"expected a number of tokens, got {describe(value)}", 'write 128, or a bound like "<= 128"'
        )
    return Amount.model_validate({"sign": match[1] or "=", "tokens": int(match[2])})


def _event(value: Any) -> Any:
    try:
        return parse_event(value)
    except StepError as error:
        raise issue("KVP320", error.message, error.help, error.offset) from None


def _path(value: Any) -> Any:
    try:
        names = tuple(segment.name for segment in parse_path(value)) if isinstance(value, str) else ()
    except StepError as error:
        raise issue("KVP320", error.message, error.help, error.offset) from None
    if not names:
        raise issue("KVP203", f"expected a path, got {describe(value)}", "write it like sys/ana")
    return names


_PATH_SCHEMA = {"type": "string", "pattern": rf"^{SEGMENT_PATTERN}(:\S+)?(/{SEGMENT_PATTERN}(:\S+)?)*$"}
Path = Annotated[List[str], BeforeValidator(_path), WithJsonSchema(_PATH_SCHEMA)]
Count = Annotated[
    Amount,
    BeforeValidator(_amount),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": rf"^{_AMOUNT.pattern}$"}]}
    ),
]


class Expectation(Section):
    """What holds after the events so far. A path stands for its last segment, the prefix before it included."""

    resident: List[Path] = Field((), description="Prefixes that are in the cache, complete.")
    evicted: List[Path] = Field((), description="Prefixes that were in the cache and whose last segment is gone.")
    absent: List[Path] = Field((), description="Prefixes whose last segment is not there, if it ever was.")
    protected: dict[str, str] = Field(
        default_factory=dict, description="Which rule protects the end of a prefix: {sys: opening}."
    )
    unprotected: List[Path] = Field((), description="Prefixes whose end is in the cache and protected by no rule.")
    next: List[Path] = Field((), description="What would be evicted next, in this order.")
    evicted_tokens: dict[str, Count] = Field(
        default_factory=dict,
        description='Tokens evicted so far by the rule that had protected them: {opening: 0, unprotected: "> 64"}.',
    )
    tenant_tokens: dict[str, Count] = Field(
        default_factory=dict, description='Tokens in the cache by tenant: {gold: ">= 51", nobody: 0}.'
    )
    resident_tokens: Count | None = Field(None, description="Tokens in the cache.")


def _step_tag(value: Any) -> str:
    return "(expectation)" if isinstance(value, dict | Expectation) else "(event)"


def _text(value: Any) -> Any:
    if not isinstance(value, str | Event):
        raise issue(
            "KVP203", f"expected an event or an expectation, got {describe(value)}", "write it like +10s sys/ana"
        )
    return value if isinstance(value, Event) else _event(value)


_EVENT_SCHEMA = WithJsonSchema({"type": "string", "pattern": EVENT_PATTERN})
Step = Annotated[
    Annotated[Any, BeforeValidator(_text), _EVENT_SCHEMA, Tag("(event)")]
    | Annotated[Expectation, Tag("(expectation)")],
    Discriminator(_step_tag),
]


class PolicyTest(Section):
    """One test: a small cache, events on a virtual clock, and what is expected in between."""

    name: str = Field(min_length=1, max_length=200, description="What the policy does here, as a sentence.")
    pool: Tokens = Field(description="Tokens that the cache holds.")
    page_size: PageTokens = Field(1, description="Tokens a page.")
    granularity: Literal["node", "page", "both"] = Field(
        "node", description="Evict leaf nodes, as SGLang does, single pages, as vLLM does, or run the test both ways."
    )
    segments: dict[str, Tokens] = Field(
        default_factory=dict, description="Lengths of segments in tokens; `turn: 64` holds for turn1, turn2, ... too."
    )
    steps: List[Step] = Field(max_length=1000, description="Events as text, and expectations between them.")

    @property
    def granularities(self) -> tuple[str, ...]:
        return ("node", "page") if self.granularity == "both" else (self.granularity,)

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(step for step in self.steps if isinstance(step, Event))

    def lengths(self) -> dict[str, int]:
        """Tokens of every segment of the events."""
        found: dict[str, int] = {}
        for event in self.events:
            for segment in (*event.path, *((event.output,) if event.output else ())):
                tokens = length_of(segment.name, self.segments) if segment.tokens is None else segment.tokens
                if tokens is not None:
                    found.setdefault(segment.name, tokens)
        return found


def length_of(name: str, declared: dict[str, int]) -> int | None:
    """The declared length of a segment: its own, or that of its name without the number at its end."""
    return declared.get(name, declared.get(name.rstrip("0123456789")))
