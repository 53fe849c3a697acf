"""Arguments that `replay`, `recommend` and `trace` share: which trace, how it is read, how its sessions interleave."""

from __future__ import annotations

import argparse
import re

from kvpolicy.replay.formats import FORMATS
from kvpolicy.replay.interleave import Interleaving
from kvpolicy.replay.trace import Trace

__all__ = ["add_trace_arguments", "capacities", "open_trace", "tokens"]

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1024, "mi": 1024**2, "gi": 1024**3}
_TOKENS = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?", re.IGNORECASE)


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    reading = parser.add_argument_group("how the trace is read")
    reading.add_argument(
        "--trace-format", choices=sorted(FORMATS), help="how its rows are written (default: found from the first row)"
    )
    reading.add_argument("--block-size", type=tokens, metavar="TOKENS", help="tokens a hash id stands for")
    reading.add_argument("--tokenizer", metavar="DIR", help="for traces of texts: a Hugging Face directory, or bytes")
    reading.add_argument("--skip-bad-rows", action="store_true", help="pass over rows that cannot be read, and say so")
    reading.add_argument("--limit", type=positive, metavar="N", help="replay the first N requests only")
    sessions = parser.add_argument_group("traces of sessions, each on its own clock")
    sessions.add_argument("--sessions", type=positive, metavar="N", help="use the first N sessions only")
    sessions.add_argument(
        "--session-gap",
        type=seconds,
        default=30.0,
        metavar="S",
        help="mean gap between starts, exponential (30)",
    )
    sessions.add_argument("--seed", type=int, default=7, help="seed of those gaps (default: 7)")
    sessions.add_argument(
        "--tail",
        type=seconds,
        default=3600.0,
        metavar="S",
        help="drop requests later than this after the last start (default: 3600; 0 keeps all)",
    )


def open_trace(path: str, args: argparse.Namespace) -> Trace:
    """The trace as the arguments ask for it. Raises TraceUsageError and TraceError."""
    how = Interleaving(args.session_gap, args.seed, args.tail or None, args.sessions)
    options = {"block_tokens": args.block_size, "tokenizer": args.tokenizer}
    return Trace(path, args.trace_format, options, how, args.limit, args.skip_bad_rows)


def tokens(text: str) -> int:
    """`512`, `64k`, `2M`, `1.5M` (powers of 1000), `2Mi` (of 1024)."""
    match = _TOKENS.fullmatch(text.strip())
    value = float(match[1]) * _UNITS[(match[2] or "").lower()] if match else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of tokens like 64k, 2M or 2Mi")
    return int(value)


def capacities(text: str) -> tuple[int, ...]:
    """A comma-separated list of capacities, in the order given."""
    return tuple(dict.fromkeys(tokens(part) for part in text.split(",")))


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number above 0")
    return int(text)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"'{text}' is no number of seconds")
    return value
