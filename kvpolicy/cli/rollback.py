"""Return a running server to the policy that it ran before the last change; its cache keeps its content.

Exit 0: done, 1: the server refused, 2: bad usage, or a server that does not answer.
"""

from __future__ import annotations

import argparse
from functools import partial

from kvpolicy.cli.apply import report
from kvpolicy.cli.server_arguments import add_server_arguments, api_key, asking

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)
    parser.add_argument("--expect-digest", metavar="D", help="only if the server runs the policy of this digest")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="for people (default) or JSON")


def run(args: argparse.Namespace) -> int:
    from kvpolicy.live.apply import rollback

    key, expected = api_key(args), args.expect_digest
    change = partial(rollback, args.url, expect_digest=expected, api_key=key)
    return asking("rollback", lambda: report("rollback", change, args.format))
