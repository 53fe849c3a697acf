"""Say why prompts were not found in the cache: what had been evicted, by which rule, and what would have kept it."""

from __future__ import annotations

import argparse
import json
import sys

from kvpolicy.cli.main import EXIT_OK
from kvpolicy.cli.server_arguments import add_server_arguments, api_key, asking
from kvpolicy.live.client import fetch_statuses
from kvpolicy.live.why import report

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)
    parser.add_argument("--misses", type=int, default=10, metavar="N", help="explain the N latest misses (10)")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    return asking("why", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    blocks = fetch_statuses(args.url, api_key(args), args.timeout)
    if args.format == "json":
        json.dump([block.get("why") for block in blocks], sys.stdout, indent=2)
        sys.stdout.write("\n")
        return EXIT_OK
    for rank, block in enumerate(blocks):
        if len(blocks) > 1:
            print(f"{'' if rank == 0 else chr(10)}data-parallel rank {rank}:")
        for line in report(block, args.misses):
            print(line)
    return EXIT_OK
