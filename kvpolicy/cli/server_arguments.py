"""Arguments of the commands that ask a running server, and how they end when it does not answer."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from kvpolicy.cli.main import EXIT_USAGE
from kvpolicy.language.units import UnitError, parse_duration_ms
from kvpolicy.live.client import TIMEOUT_S, LiveError

__all__ = ["KEY_ENV", "add_server_arguments", "api_key", "asking", "duration", "seconds"]

KEY_ENV = "KVPOLICY_API_KEY"


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", required=True, metavar="URL", help="the server, http://host:port")
    parser.add_argument("--api-key", metavar="KEY", help=f"the server's API key (default: the variable {KEY_ENV})")
    parser.add_argument("--timeout", type=seconds, default=TIMEOUT_S, metavar="S", help="wait so long for an answer")


def api_key(args: argparse.Namespace) -> str | None:
    key: str | None = args.api_key or os.environ.get(KEY_ENV) or None
    return key


def asking(command: str, run: Callable[[], int]) -> int:
    """The exit code of `run`; 2, with one line on stderr, where the server did not answer."""
    try:
        return run()
    except LiveError as error:
        print(f"kvpolicy {command}: {error}", file=sys.stderr)
        return EXIT_USAGE


def seconds(text: str) -> float:
    """An argument's number of seconds, above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is no number of seconds above 0")
    return value


def duration(text: str) -> float:
    """An argument like `60s`, in seconds."""
    try:
        return parse_duration_ms(text) / 1000
    except UnitError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
