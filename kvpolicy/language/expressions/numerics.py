"""What each operation means: IEEE doubles, and a defined finite result where IEEE has none.

This is the reference: the folder and the tests run these functions, and generated code calls them wherever it cannot
prove that the plain Python operator gives the same. No function here raises for finite arguments.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping

__all__ = ["LOG_OF_NOTHING", "MAX", "OPERATIONS", "finite", "key_log"]

#: The largest double: what an overflow, and a division of something by zero, gives.
MAX = sys.float_info.max
#: log and log1p at and below their pole: under the log of the smallest positive double (-744.4), yet small enough
#: that other terms of a sum still count.
LOG_OF_NOTHING = -745.0


def finite(x: float) -> float:
    """The nearest finite double; not-a-number gives 0."""
    if -MAX <= x <= MAX:
        return x
    return MAX if x > 0.0 else -MAX if x < 0.0 else 0.0


def add(a: float, b: float) -> float:
    return finite(a + b)


def sub(a: float, b: float) -> float:
    return finite(a - b)


def mul(a: float, b: float) -> float:
    return finite(a * b)


def div(a: float, b: float) -> float:
    """Something by zero is the largest double with the sign of ``a`` (the limit from above); 0/0 is 0."""
    if b == 0.0:
        return MAX if a > 0.0 else -MAX if a < 0.0 else 0.0
    return finite(a / b)


def floordiv(a: float, b: float) -> float:
    return div(a, b) if b == 0.0 else finite(a // b)


def mod(a: float, b: float) -> float:
    """Python's remainder (sign of ``b``); x % 0 is 0."""
    return 0.0 if b == 0.0 else a % b


def power(a: float, b: float) -> float:
    """0 to a negative power is the largest double; a negative number to a fractional power is 0."""
    try:
        result = a**b
    except ZeroDivisionError:
        return MAX
    except OverflowError:
        return -MAX if a < 0.0 and b % 2.0 == 1.0 else MAX
    return 0.0 if isinstance(result, complex) else finite(result)


def neg(a: float) -> float:
    return -a


def floor(a: float) -> float:
    return a // 1.0


def ceil(a: float) -> float:
    return -(-a // 1.0)


def exp(a: float) -> float:
    try:
        return math.exp(a)
    except OverflowError:
        return MAX


def log(a: float) -> float:
    return math.log(a) if a > 0.0 else LOG_OF_NOTHING


def log1p(a: float) -> float:
    return math.log1p(a) if a > -1.0 else LOG_OF_NOTHING


def key_log(a: float) -> float:
    """The logarithm inside keys: a zero factor makes a score zero whatever the time, so it sorts below everything."""
    return math.log(a) if a > 0.0 else -MAX


def sqrt(a: float) -> float:
    return math.sqrt(a) if a > 0.0 else 0.0


def minimum(*args: float) -> float:
    return min(args)


def maximum(*args: float) -> float:
    return max(args)


def clamp(x: float, low: float, high: float) -> float:
    """``high`` wins where the two cross."""
    return min(max(x, low), high)


OPERATIONS: Mapping[str, Callable[..., float]] = {
    "add": add, "sub": sub, "mul": mul, "div": div, "floordiv": floordiv, "mod": mod, "pow": power, "neg": neg,
    "abs": abs, "ceil": ceil, "clamp": clamp, "exp": exp, "floor": floor, "log": log, "log1p": log1p,
    "key_log": key_log, "max": maximum, "min": minimum, "sqrt": sqrt,
}  # fmt: skip
