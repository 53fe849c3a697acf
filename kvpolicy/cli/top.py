"""Watch a running server's cache: occupancy, what rules protect, hit rate, evictions by rule. Ctrl-C ends it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict

from kvpolicy.cli.main import EXIT_OK
from kvpolicy.cli.server_arguments import add_server_arguments, api_key, asking, seconds
from kvpolicy.live.client import LiveError, fetch_metrics, fetch_statuses
from kvpolicy.live.view import Snapshot, frame

__all__ = ["add_arguments", "run"]

_HOME, _CLEAR_LINE, _CLEAR_BELOW, _CLEAR = "\x1b[H", "\x1b[K", "\x1b[J", "\x1b[2J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)
    parser.add_argument("--interval", type=seconds, default=2.0, metavar="S", help="time between two pictures (2)")
    parser.add_argument("--once", action="store_true", help="one picture, as where the output is no terminal")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: one object, then the end")


def run(args: argparse.Namespace) -> int:
    return asking("top", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    now = _look(args)
    if args.format == "json":
        json.dump({"engines": now.blocks, "metrics": [asdict(sample) for sample in now.samples]}, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return EXIT_OK
    if args.once or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        sys.stdout.write("".join(f"{line}\n" for line in frame(now)))
        return EXIT_OK
    try:
        _watch(args, now)
    except KeyboardInterrupt:
        sys.stdout.write("\n")
    return EXIT_OK


def _watch(args: argparse.Namespace, now: Snapshot) -> None:
    before = None
    sys.stdout.write(_CLEAR)
    while True:
        head = f"kvpolicy top {args.url}   {time.strftime('%H:%M:%S')}, every {args.interval:g} s, Ctrl-C ends"
        lines = [head, "", *frame(now, before)]
        sys.stdout.write(_HOME + "".join(f"{line}{_CLEAR_LINE}\n" for line in lines) + _CLEAR_BELOW)
        sys.stdout.flush()
        time.sleep(args.interval)
        before, now = now, _look(args)


def _look(args: argparse.Namespace) -> Snapshot:
    key = api_key(args)
    blocks = fetch_statuses(args.url, key, args.timeout)
    try:
        samples = fetch_metrics(args.url, key, args.timeout)
    except LiveError:  # a convenience: the status has most of it
        samples = []
    return Snapshot(time.monotonic(), blocks, samples)
