"""Examine a running server: does it run what its policy asks for, did anything fail, what keeps it from hitting.

Exit 0: no error found, 1: an error, 2: the server did not answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kvpolicy.cli.main import EXIT_ERROR, EXIT_OK, EXIT_USAGE
from kvpolicy.cli.server_arguments import add_server_arguments, api_key, asking, seconds
from kvpolicy.live.client import fetch_statuses
from kvpolicy.live.doctor import Finding, examine

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    router = parser.add_argument_group("what a router sees (needs pyzmq and msgspec)")
    router.add_argument("--kv-events", metavar="tcp://HOST:PORT", help="listen to the server's KV events")
    router.add_argument("--router-page-size", type=int, metavar="N", help="the router's block size, in tokens")
    router.add_argument("--listen", type=seconds, default=10.0, metavar="S", help="listen so long (10)")


def run(args: argparse.Namespace) -> int:
    if args.router_page_size is not None and args.kv_events is None:
        print("kvpolicy doctor: --router-page-size is compared with --kv-events, which is missing", file=sys.stderr)
        return EXIT_USAGE
    return asking("doctor", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    blocks = fetch_statuses(args.url, api_key(args), args.timeout)
    found = examine(blocks)
    if args.kv_events is not None:
        from kvpolicy.live.kv_events import compare, listen

        heard = listen(args.kv_events, args.listen)
        before, blocks = blocks, fetch_statuses(args.url, api_key(args), args.timeout)
        salted = _salted(blocks) - _salted(before)
        found = sorted([*found, *compare(heard, blocks[0], salted, args.router_page_size)], key=_gravity)
    if args.format == "json":
        json.dump([finding.to_json() for finding in found], sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        for finding in found:
            sys.stdout.write(_text(finding))
        count = Counter(finding.severity for finding in found)
        parts = [f"{count[s]} {s}{'s' if count[s] != 1 else ''}" for s in ("error", "warning") if count[s]]
        engines = "" if len(blocks) == 1 else f" of {len(blocks)} data-parallel ranks"
        print(f"policy {blocks[0]['name']}{engines}: {', '.join(parts) or 'no problems'}")
    return EXIT_ERROR if any(finding.severity == "error" for finding in found) else EXIT_OK


def _salted(blocks: Sequence[Mapping[str, Any]]) -> int:
    """Requests with a salt so far, where the policy keeps metadata."""
    return sum((block.get("traffic") or {}).get("salted_requests", 0) for block in blocks)


def _gravity(finding: Finding) -> int:
    return ("error", "warning", "info").index(finding.severity)


def _text(finding: Finding) -> str:
    rank = "" if finding.rank is None else f"rank {finding.rank}: "
    message = "".join(c if c.isprintable() else "?" for c in finding.message)
    return f"{finding.code} {finding.severity}: {rank}{message}\n        help: {finding.help}\n"
