"""Record a running server's requests as a trace for `kvpolicy replay`: lengths and numbers of pages, never text.
Ctrl-C ends the recording early; a second one leaves without it.

Exit 0: recorded, 1: the server refused or could not, 2: bad usage, or a server that does not answer.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath

from kvpolicy.cli.main import EXIT_ERROR, EXIT_OK, EXIT_USAGE
from kvpolicy.cli.output import open_output, why_unwritable
from kvpolicy.cli.server_arguments import add_server_arguments, api_key, asking, duration
from kvpolicy.live.client import LiveError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the trace; .gz compresses, - prints it")
    parser.add_argument("--for", dest="for_s", type=duration, default=60.0, metavar="60s", help="so long (60s)")


def run(args: argparse.Namespace) -> int:
    if why := why_unwritable(args.output):
        print(f"kvpolicy record: {why}", file=sys.stderr)
        return EXIT_USAGE
    return asking("record", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    from kvpolicy.live.apply import Refused
    from kvpolicy.live.shadow_client import record
    from kvpolicy.live.words import duration as spoken

    try:
        with _ended_by_interrupt(args):
            ran_s, engines = record(args.url, args.for_s, api_key=api_key(args))
    except Refused as refused:
        print(f"kvpolicy record: nothing was recorded: {'; '.join(refused.why)}", file=sys.stderr)
        return EXIT_ERROR
    for engine in engines:
        path = args.output if len(engines) == 1 else _of_rank(args.output, engine["rank"])
        with open_output(path) as file:
            file.write(engine["trace"])
        dropped = engine["dropped_requests"]
        print(
            f"{engine['trace'].count(chr(10)):,} requests recorded in {spoken(ran_s)}"
            f"{f', {dropped:,} dropped' if dropped else ''}: {path}",
            file=sys.stderr,
        )
    return EXIT_OK


@contextmanager
def _ended_by_interrupt(args: argparse.Namespace) -> Iterator[None]:
    """Within the block the first SIGINT asks the server to end the recording; the wait for its answer goes on."""
    from kvpolicy.live.shadow_client import end_recording

    def end(*_: object) -> None:
        signal.signal(signal.SIGINT, before)  # the next one is as ever
        print("kvpolicy record: ending the recording; again to leave without it", file=sys.stderr)
        try:
            end_recording(args.url, api_key=api_key(args))
        except LiveError as error:  # it has not begun, or is over
            print(f"kvpolicy record: {error}", file=sys.stderr)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _of_rank(path: str, rank: int) -> str:
    """`traffic.jsonl.gz` -> `traffic.dp1.jsonl.gz`: each data-parallel group has a cache of its own."""
    if path == "-":
        return path
    name = PurePath(path)
    stem, dot, suffixes = name.name.partition(".")
    return str(name.with_name(f"{stem}.dp{rank}{dot}{suffixes}"))
