"""How a score moves while a unit is not touched, and the static key that stands for it.

*stable*: it reads nothing that moves with the clock; the score is its own key.

*decay*: it moves, but the order of two untouched units never changes. Two shapes are recognised, with ``x`` anything
stable, ``k`` constants and ``t`` the clock-dependent fields:

- affine: ``x + k1*t1 + ...``; its key is ``x - k1*anchor1 - ...``, an anchor being the moment the field counts from;
- exponential: ``x * exp(b + k1*t1 + ...)`` with ``x`` of one sign; its key is ``log(x) + b - k1*anchor1 - ...``;

and every strictly monotone function of one of them that has constant parameters, such as ``1 / (1 + idle_s)``.

*dynamic*: everything else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from .bounds import bounds
from .fields import ANCHORS, SCORE_FIELDS, Kind, Trend
from .interpret import fold
from .nodes import Node, Type, number, operation, read, walk
from .numerics import MAX

__all__ = ["Change", "ScoreClass", "classify", "trend"]

ScoreClass = Literal["stable", "decay", "dynamic"]
#: The values of ``kvpolicy.eviction.base.KeyChange``.
Change = Literal["static", "grows", "shrinks", "dynamic"]

_NUMBER = Type(Kind.NUMBER)
_ONE = number(1.0)
Rates = dict[str, float]  # clock-dependent field -> change of the (log) score per unit of it


def _op(name: str, *args: Node) -> Node:
    return fold(operation(name, _NUMBER, *args))


@dataclass(frozen=True)
class _Stable:
    node: Node


@dataclass(frozen=True)
class _Affine:
    base: Node
    rates: Rates


@dataclass(frozen=True)
class _Exponential:
    factor: Node  # of one sign
    log: Node  # the score is factor * exp(log + rates * fields)
    rates: Rates


@dataclass(frozen=True)
class _Monotone:
    """A strictly monotone function, with constant parameters only, of an affine or exponential form."""

    inner: _Affine | _Exponential
    rising: bool


_Form = _Stable | _Affine | _Exponential | _Monotone


def classify(node: Node) -> tuple[ScoreClass, Node | None]:
    """``(class, key)``; the key is a tree without clock-dependent fields, ``None`` where the class is dynamic."""
    form = _form(node)
    if form is None:
        return "dynamic", None
    if isinstance(form, _Stable):
        return "stable", node
    if isinstance(form, _Monotone):
        key = _key(form.inner)
        return "decay", key if form.rising else _op("neg", key)
    return "decay", _key(form)


def _key(form: _Affine | _Exponential) -> Node:
    if isinstance(form, _Affine):
        return _anchored(form.base, form.rates)
    if bounds(form.factor).low >= 0.0:
        return _exponential_key(form.factor, form)
    return _op("neg", _exponential_key(_op("neg", form.factor), form))


def _exponential_key(factor: Node, form: _Exponential) -> Node:
    key = _anchored(form.log, form.rates)
    return key if factor.is_const and factor.value == 1.0 else _op("add", _op("key_log", factor), key)


def _anchored(base: Node, rates: Rates) -> Node:
    key = base
    for name, rate in rates.items():
        anchor = read(ANCHORS[SCORE_FIELDS[name].anchor])
        shift = anchor if abs(rate) == 1.0 else _op("mul", number(abs(rate)), anchor)
        if key.is_const and key.value == 0.0:
            key = shift if rate < 0.0 else _op("neg", shift)
        else:
            key = _op("sub" if rate > 0.0 else "add", key, shift)
    return key


def _form(node: Node) -> _Form | None:
    """The recognised shape of a numeric node; ``None``: dynamic."""
    if not any(n.field is not None and n.field.anchor for n in walk(node)):
        return _Stable(node)
    if node.field is not None:
        return _Affine(number(0.0), {node.field.name: 1.0})
    if node.op == "if":
        return _branches(node)
    if node.type.kind is not Kind.NUMBER:
        return None
    forms = [_form(a) for a in node.args]
    if any(f is None for f in forms):
        return None
    a = forms[0]
    b = forms[1] if len(forms) > 1 else None
    match node.op:
        case "neg":
            return _scaled(a, -1.0)
        case "add":
            return _sum(a, b)
        case "sub":
            return _sum(a, _scaled(b, -1.0))
        case "mul":
            return _product(a, b)
        case "div":
            return _quotient(a, b, bounds(node.args[1]).low)
        case "pow":
            return _power(a, b, bounds(node.args[0]).low)
        case "exp":
            if isinstance(a, _Affine):
                return _Exponential(_ONE, a.base, a.rates)
            return _monotone(a, True)
        case "log" | "log1p" | "sqrt":
            # Below their domain these are flat: ties, where the key would go on.
            pole = -1.0 if node.op == "log1p" else 0.0
            return _monotone(a, True) if bounds(node.args[0]).low >= pole else None
    return None


def _branches(node: Node) -> _Form | None:
    """A choice made by something stable between two forms that move alike."""
    test, yes, no = node.args
    if not isinstance(_form_of_test(test), _Stable):
        return None
    a, b = _form(yes), _form(no)
    if isinstance(a, _Affine) and isinstance(b, _Affine) and a.rates == b.rates:
        return _Affine(_op("if", test, a.base, b.base), a.rates)
    return None


def _form_of_test(test: Node) -> _Stable | None:
    return None if any(n.field is not None and n.field.anchor for n in walk(test)) else _Stable(test)


def _const(form: _Form | None) -> float | None:
    if isinstance(form, _Stable) and form.node.is_const and isinstance(form.node.value, float):
        return form.node.value
    return None


def _monotone(form: _Form | None, rising: bool) -> _Monotone | None:
    if isinstance(form, _Monotone):
        return _Monotone(form.inner, form.rising is rising)
    return _Monotone(form, rising) if isinstance(form, (_Affine, _Exponential)) else None


def _rates(a: Rates, b: Rates, sign: float = 1.0) -> Rates | None:
    total = {name: a.get(name, 0.0) + sign * b.get(name, 0.0) for name in [*a, *(n for n in b if n not in a)]}
    return _usable({name: rate for name, rate in total.items() if rate != 0.0})


def _usable(rates: Rates) -> Rates | None:
    """``None`` where a rate is so large or small that keys would overflow or lose the order."""
    return rates if all(1e-100 < abs(r) < 1e100 for r in rates.values()) else None


def _scaled(form: _Form | None, factor: float) -> _Form | None:
    if factor == 0.0 or not 1e-100 < abs(factor) < 1e100:
        return None
    match form:
        case _Stable():
            return _Stable(_op("neg", form.node) if factor == -1.0 else _op("mul", number(factor), form.node))
        case _Affine():
            rates = _usable({name: rate * factor for name, rate in form.rates.items()})
            base = _scaled(_Stable(form.base), factor)
            return _Affine(base.node, rates) if rates is not None and isinstance(base, _Stable) else None
        case _Exponential() | _Monotone():
            return _monotone(form, factor > 0.0)
    return None


def _sum(a: _Form | None, b: _Form | None) -> _Form | None:
    if isinstance(a, _Stable) and not isinstance(b, _Stable):
        a, b = b, a
    if isinstance(a, _Affine) and isinstance(b, _Stable):
        return _Affine(_op("add", a.base, b.node), a.rates)
    if isinstance(a, _Affine) and isinstance(b, _Affine):
        rates = _rates(a.rates, b.rates)
        return None if rates is None else _Affine(_op("add", a.base, b.base), rates)
    return _monotone(a, True) if _const(b) is not None else None


def _one_sign(node: Node) -> bool:
    low, high = bounds(node)
    return low >= 0.0 or high <= 0.0


def _product(a: _Form | None, b: _Form | None) -> _Form | None:
    if isinstance(a, _Stable):
        a, b = b, a
    factor = _const(b)
    if isinstance(a, _Exponential) and isinstance(b, _Stable):
        return _Exponential(_op("mul", a.factor, b.node), a.log, a.rates) if _one_sign(b.node) else None
    if factor is not None:
        return _scaled(a, factor)
    if isinstance(a, _Exponential) and isinstance(b, _Exponential):
        rates = _rates(a.rates, b.rates)
        return None if rates is None else _Exponential(_op("mul", a.factor, b.factor), _op("add", a.log, b.log), rates)
    return None


def _quotient(a: _Form | None, b: _Form | None, lowest_divisor: float) -> _Form | None:
    if isinstance(b, _Stable):
        divisor = _const(b)
        if divisor is not None:
            return _scaled(a, 1.0 / divisor)
        if isinstance(a, _Exponential) and _never_zero(b.node):
            return _Exponential(_op("div", a.factor, b.node), a.log, a.rates)
        return None
    top = _const(a)
    if isinstance(a, _Stable) and _one_sign(a.node):
        a = _Exponential(a.node, number(0.0), {})
    if isinstance(a, _Exponential) and isinstance(b, _Exponential) and _never_zero(b.factor):
        rates = _rates(a.rates, b.rates, -1.0)
        if rates is not None:
            return _Exponential(_op("div", a.factor, b.factor), _op("sub", a.log, b.log), rates)
    if top is not None and top != 0.0 and lowest_divisor >= 0.0:
        # Also at zero: the quotient there is its limit from above.
        return _monotone(b, top < 0.0)
    return None


def _never_zero(node: Node) -> bool:
    low, high = bounds(node)
    return low > 0.0 or high < 0.0


def _power(a: _Form | None, b: _Form | None, lowest_base: float) -> _Form | None:
    base, exponent = _const(a), _const(b)
    if base is not None and isinstance(b, _Affine) and 0.0 < base < MAX and base != 1.0:
        log = math.log(base)
        rates = _usable({name: rate * log for name, rate in b.rates.items()})
        return None if rates is None else _Exponential(_ONE, _op("mul", number(log), b.base), rates)
    if exponent is not None and exponent != 0.0 and lowest_base >= 0.0:
        return _monotone(a, exponent > 0.0)
    return None


_FLIP: dict[Trend, Trend] = {"same": "same", "up": "down", "down": "up", "any": "any"}


def trend(node: Node) -> Trend:
    """What a touch does to a stable number or condition."""
    if node.is_const:
        return "same"
    if node.field is not None:
        return node.field.trend
    trends = [trend(a) for a in node.args]
    if all(t == "same" for t in trends):
        return "same"
    if node.type.kind is not Kind.NUMBER:
        return "any"
    match node.op:
        case "add" | "min" | "max" | "clamp" | "exp" | "log" | "log1p" | "key_log" | "sqrt" | "floor" | "ceil":
            return _together(*trends)
        case "neg":
            return _FLIP[trends[0]]
        case "if":
            return _together(trends[1], trends[2]) if trends[0] == "same" else "any"
        case "sub":
            return _together(trends[0], _FLIP[trends[1]])
        case "abs":
            return trends[0] if bounds(node.args[0]).low >= 0.0 else "any"
        case "mul":
            return _together(_along(trends[0], node.args[1]), _along(trends[1], node.args[0]))
        case "div" if bounds(node.args[1]).low >= 0.0:
            return _together(trends[0], _along(_FLIP[trends[1]], node.args[0]))
        case "pow" if node.args[1].is_const and bounds(node.args[0]).low >= 0.0:
            return _along(trends[0], node.args[1])
    return "any"


def _together(*trends: Trend) -> Trend:
    moving = {t for t in trends if t != "same"}
    return "same" if not moving else moving.pop() if len(moving) == 1 else "any"


def _along(moving: Trend, factor: Node) -> Trend:
    """The trend of a product in which ``factor`` multiplies something that moves so."""
    low, high = bounds(factor)
    return moving if low >= 0.0 else _FLIP[moving] if high <= 0.0 else "same" if moving == "same" else "any"
