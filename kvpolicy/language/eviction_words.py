"""Names and parameters of the built-in eviction orders, checked against the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvpolicy.language.diagnostics import Diagnostic
from kvpolicy.language.fields import did_you_mean
from kvpolicy.language.tree import Mapping, Scalar
from kvpolicy.language.units import UnitError, describe, parse_share, parse_tokens
from kvpolicy.language.vocabulary import EVICTION_POLICIES, Param

__all__ = ["parameters", "policy_word", "resolved_params"]


def policy_word(word: Scalar) -> Iterator[Diagnostic]:
    """KVP302 for a name that is no built-in order."""
    if word.value not in EVICTION_POLICIES:
        help = did_you_mean(str(word.value), EVICTION_POLICIES) or f"one of {', '.join(EVICTION_POLICIES)}"
        yield word.source.at(
            word.index, "KVP302", "error", f"there is no eviction policy '{_clip(str(word.value))}'", help
        )


def parameters(policy: str, params: Mapping) -> Iterator[Diagnostic]:
    """KVP303 for each parameter that the policy does not take, or not so."""
    known = EVICTION_POLICIES.get(policy)
    if known is None:
        return
    takes = known.params or {}
    for name, entry in params.entries.items():
        if name not in takes:
            help = did_you_mean(name, takes) or (f"it takes {', '.join(takes)}" if takes else "it takes none")
            message = f"`{policy}` has no parameter '{_clip(name)}'"
            yield entry.key.source.at(entry.key.index, "KVP303", "error", message, help)
            continue
        value = entry.value
        try:
            if not isinstance(value, Scalar):
                raise UnitError(
                    "KVP303", f"expected {_KINDS[takes[name].kind]}, got a list or a mapping", takes[name].text
                )
            param_value(takes[name], value.value)
        except UnitError as error:
            yield value.source.at(value.index, "KVP303", "error", f"{policy}.{name}: {error.message}", error.help)


def param_value(param: Param, value: Any) -> int | float:
    """The canonical number of a parameter as written. Raises UnitError."""
    number: int | float
    if param.kind == "share":
        number = parse_share(value)
    elif param.kind == "tokens":
        number = parse_tokens(value)
    else:
        whole = param.kind == "int"
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise UnitError("KVP303", f"expected {_KINDS[param.kind]}, got {describe(value)}", param.text)
        number = value
    if not param.low <= number <= param.high:
        raise UnitError("KVP303", f"{value} is not between {param.low:g} and {param.high:g}", param.text)
    return number


def resolved_params(policy: str, params: dict[str, Any]) -> dict[str, int | float]:
    """Every parameter of a built-in order as a canonical number, defaults filled in; canonical ones stay as they are.

    Raises:
        KeyError: no such policy or parameter.
        UnitError: a value that the parameter does not take.
    """
    known = EVICTION_POLICIES[policy].params or {}
    for name in params:
        if name not in known:
            raise KeyError(f"{policy} has no parameter {name!r}")
    return {name: _canonical(param, params.get(name, param.default)) for name, param in known.items()}


def _canonical(param: Param, value: Any) -> int | float:
    if param.kind == "share" and isinstance(value, float):
        value = f"{value * 100:.10g}%"
    return param_value(param, value)


_KINDS = {"int": "a whole number", "float": "a number", "share": "a share like 10%", "tokens": "a token count"}


def _clip(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
