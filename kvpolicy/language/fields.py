"""Field types of the models: units, names and shorthand, each with its part of the JSON Schema."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Final, TypeVar, cast

from pydantic import BeforeValidator, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo, WithJsonSchema
from pydantic.types import Strict
from pydantic_core import PydanticCustomError, core_schema

from kvpolicy.language import units
from kvpolicy.language.units import describe
from kvpolicy.language.vocabulary import ATTENTION_BACKENDS, DTYPE_ALIASES, KV_DTYPES

__all__ = ["did_you_mean", "issue"]

T = TypeVar("T")
#: Validation context of a document that a person wrote, where a number without its unit is an error.
WRITTEN: Final = {"written": True}
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
LAYERS_PATTERN = r"^ *(-?[0-9]+|-?[0-9]*:-?[0-9]*|[0-9]+-[0-9]+)( *, *(-?[0-9]+|-?[0-9]*:-?[0-9]*|[0-9]+-[0-9]+))* *$"


def issue(code: str, message: str, help: str | None = None, offset: int = 0) -> PydanticCustomError:
    """A validation error that carries our code and help; the loader gives it a place, ``offset`` characters into the
    scalar."""
    context = {"code": code, "message": message, "help": help, "offset": offset}
    return PydanticCustomError("kvpolicy", "{message}", context)


def did_you_mean(word: str, known: list[str] | tuple[str, ...] | dict[str, Any]) -> str | None:
    """`did you mean 'x'?`, or None when nothing is near."""
    lower = {name.lower(): name for name in known}
    close = get_close_matches(word.lower()[:80], list(lower), n=1, cutoff=0.6)
    return f"did you mean '{lower[close[0]]}'?" if close else None


def _unit(parse: Callable[[Any], T]) -> Callable[[Any, ValidationInfo], T]:
    def validate(value: Any, info: ValidationInfo) -> T:
        if info.context is not WRITTEN and isinstance(value, int | float):
            return cast(T, value)  # built in Python: canonical already
        try:
            return parse(value)
        except units.UnitError as error:
            raise issue(error.code, error.message, error.help) from None

    return validate


Share = Annotated[
    float, BeforeValidator(_unit(units.parse_share)), WithJsonSchema({"type": "string", "pattern": units.SHARE_PATTERN})
]
DurationMs = Annotated[
    int,
    BeforeValidator(_unit(units.parse_duration_ms)),
    WithJsonSchema({"type": "string", "pattern": units.DURATION_PATTERN}),
]
Tokens = Annotated[
    int,
    BeforeValidator(_unit(units.parse_tokens)),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": units.TOKENS_PATTERN}]}),
]

#: A YAML list; strict mode would take only Python tuples.
List = Annotated[tuple[T, ...], Strict(False)]


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise issue(
            "KVP203", f"expected a name, got {describe(value)}", f'quote it: "{value}"' if _is_scalar(value) else None
        )
    if not re.fullmatch(NAME_PATTERN, value):
        raise issue(
            "KVP208",
            f"{describe(value)} is not a usable name",
            "letters, digits, '.', '_' and '-', at most 63, starting with a letter or digit",
        )
    return value


def usable_name(text: str) -> str:
    """The nearest usable name, for a policy that gives none: `my policy (1)` -> `my-policy-1`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:63].rstrip("-._") or "policy"


Name = Annotated[str, BeforeValidator(_name), WithJsonSchema({"type": "string", "pattern": NAME_PATTERN})]


def _page_tokens(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        unquoted = f"; write {value} without quotes" if isinstance(value, str) and value.isdigit() else ""
        raise issue(
            "KVP203", f"expected a page size in tokens, got {describe(value)}", f"a power of two, like 16{unquoted}"
        )
    if value < 1 or value & (value - 1) or value > 2**16:
        near = 2 ** max(0, min(16, round(value).bit_length() - 1)) if value > 0 else 16
        raise issue(
            "KVP207",
            f"the page size {value} is not a power of two from 1 to 65536",
            f"the nearest below is {near}" if value > 0 else "write 16, or `auto`",
        )
    return value


_PAGE_SIZES = {"type": "integer", "enum": [2**i for i in range(17)]}
PageTokens = Annotated[int, BeforeValidator(_page_tokens), WithJsonSchema(_PAGE_SIZES)]


def _word(what: str, known: dict[str, Any], aliases: dict[str, str]) -> Callable[[Any], str]:
    def validate(value: Any) -> str:
        if not isinstance(value, str):
            raise issue("KVP203", f"expected the name of {what}, got {describe(value)}")
        name = aliases.get(value, value)
        if name not in known:
            guess = did_you_mean(value, [*known, *aliases])
            raise issue(
                "KVP204",
                f"unknown {what.split(' ', 1)[1]} {_quoted(value)}",
                guess or f"one of {', '.join(list(known)[:10])}, ...",
            )
        return name

    return validate


_DTYPES = {"type": "string", "enum": [*KV_DTYPES, *DTYPE_ALIASES]}
DtypeName = Annotated[str, BeforeValidator(_word("a KV dtype", KV_DTYPES, DTYPE_ALIASES)), WithJsonSchema(_DTYPES)]
AttentionName = Annotated[
    str,
    BeforeValidator(_word("an attention backend", ATTENTION_BACKENDS, {})),
    WithJsonSchema({"type": "string", "enum": [*ATTENTION_BACKENDS]}),
]


def _layers(value: Any) -> tuple[tuple[str, str], ...]:
    value = dict(value) if isinstance(value, tuple) else value  # built in Python
    if not isinstance(value, dict):
        raise issue(
            "KVP203", f"expected layer ranges with dtypes, got {describe(value)}", 'write {"0-1": bf16, "-2:": bf16}'
        )
    pairs = []
    for key, name in value.items():
        parse_layer_range(key)
        pairs.append((str(key), _word("a KV dtype", KV_DTYPES, DTYPE_ALIASES)(name)))
    return tuple(pairs)


LayerMap = Annotated[
    tuple[tuple[str, str], ...],
    BeforeValidator(_layers),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": LAYERS_PATTERN},
            "additionalProperties": _DTYPES,
        }
    ),
]
_RANGE = re.compile(r"(?P<one>-?[0-9]+)|(?P<start>-?[0-9]*):(?P<stop>-?[0-9]*)|(?P<first>[0-9]+)-(?P<last>[0-9]+)")


def parse_layer_range(text: str) -> tuple[tuple[int | None, int | None], ...]:
    """``0-1,62-63`` or ``-2:`` -> half-open (start, stop) pairs in Python's slice sense.

    Raises:
        PydanticCustomError: KVP209.
    """
    found: list[tuple[int | None, int | None]] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip()) if len(text) <= 200 else None
        if match is None:
            raise issue(
                "KVP209",
                f"{_quoted(text)} is not a layer range",
                'write "0-1" (inclusive), "-2:" (the last two), "5" or "0-1,62-63"',
            )
        if match["one"] is not None:
            layer = int(match["one"])
            found.append((layer, layer + 1 if layer != -1 else None))
        elif match["first"] is not None:
            first, last = int(match["first"]), int(match["last"])
            if first > last:
                raise issue(
                    "KVP209", f"the layer range {_quoted(part.strip())} runs backwards", f'write "{last}-{first}"'
                )
            found.append((first, last + 1))
        else:
            start, stop = match["start"], match["stop"]
            found.append((int(start) if start not in ("", "-") else None, int(stop) if stop not in ("", "-") else None))
    return tuple(found)


def _choice_from_scalar(value: Any) -> Any:
    """`16` -> {prefer: 16}; `auto` -> None."""
    if value == "auto" or value is None:
        return None
    return value if isinstance(value, dict) else {"prefer": value}


@dataclass(frozen=True, slots=True)
class Shorthand:
    """Widens a scalar to the full mapping before validation, and offers both in the JSON Schema."""

    scalar: dict[str, Any]  # JSON Schema of the scalar

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(_choice_from_scalar, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        full = handler(schema)
        return {"anyOf": [self.scalar, full]}


PAGE_SIZE = Shorthand({"anyOf": [{"const": "auto"}, _PAGE_SIZES]})
KV_DTYPE = Shorthand(_DTYPES)
ATTENTION = Shorthand({"type": "string", "enum": ["auto", *ATTENTION_BACKENDS]})


def _is_scalar(value: Any) -> bool:
    return isinstance(value, bool | int | float)


def _quoted(text: str) -> str:
    return f"'{text if len(text) <= 40 else text[:37] + '...'}'"
