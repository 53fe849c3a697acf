"""Run candidate policies beside a server's own, on metadata alone: what each would have found in the same traffic.

Exit 0: done, 1: an error in a policy, or the server refused, 2: bad usage, or a server that does not answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from kvpolicy.cli.main import EXIT_ERROR, EXIT_OK
from kvpolicy.cli.server_arguments import add_server_arguments, api_key, asking

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = actions.add_parser("add", help="start ghosts of policies, beside those that run", allow_abbrev=False)
    add.add_argument(
        "policies", nargs="+", metavar="POLICY", help="a file, a shipped policy, or an algorithm like gdsf"
    )
    show = actions.add_parser("list", help="what each has found so far", allow_abbrev=False)
    clear = actions.add_parser("clear", help="stop all of them", allow_abbrev=False)
    for action in (add, show, clear):
        add_server_arguments(action)
    show.add_argument("--format", choices=("text", "json"), default="text", help="for people (default) or JSON")


def run(args: argparse.Namespace) -> int:
    return asking("shadow", lambda: {"add": _add, "list": _list, "clear": _clear}[args.action](args))


def _add(args: argparse.Namespace) -> int:
    from kvpolicy.cli.plan import errors_of
    from kvpolicy.live.apply import running
    from kvpolicy.live.shadow_client import add_shadows
    from kvpolicy.replay.policies import load

    key = api_key(args)
    engine = running(args.url, key).engine
    results = [load(policy, engine) for policy in args.policies]
    for result in results:
        if (code := errors_of(result)) is not None:
            return code
    engines = _told("add", lambda: add_shadows(args.url, [result.flat for result in results], api_key=key))
    if engines is None:
        return EXIT_ERROR
    print(f"{engines[0]['policies']} shadows run on {len(engines)} engine(s), on empty caches from now on.")
    return EXIT_OK


def _clear(args: argparse.Namespace) -> int:
    from kvpolicy.live.shadow_client import clear_shadows

    if _told("clear", lambda: clear_shadows(args.url, api_key=api_key(args))) is None:
        return EXIT_ERROR
    print("No shadows run.")
    return EXIT_OK


def _list(args: argparse.Namespace) -> int:
    from kvpolicy.live.client import fetch_statuses
    from kvpolicy.live.shadow_view import shadow_lines

    blocks = fetch_statuses(args.url, api_key(args), args.timeout)
    if args.format == "json":
        json.dump([block.get("shadows") for block in blocks], sys.stdout, indent=2)
        sys.stdout.write("\n")
        return EXIT_OK
    for rank, block in enumerate(blocks):
        if len(blocks) > 1:
            print(f"{'' if rank == 0 else chr(10)}data-parallel rank {rank}")
        lines = list(shadow_lines(block["shadows"])) if "shadows" in block else []
        print("\n".join(lines or ["no shadows: kvpolicy shadow add POLICY --url ..."]))
    return EXIT_OK


def _told(action: str, ask: Any) -> list[dict[str, Any]] | None:
    """The engines' answers; None, with the server's reasons on stderr, where it refused."""
    from kvpolicy.live.apply import Refused

    try:
        engines: list[dict[str, Any]] = ask()
    except Refused as refused:
        print(f"kvpolicy shadow {action}: the server refuses:", file=sys.stderr)
        for why in refused.why:
            print(f"  {why}", file=sys.stderr)
        return None
    return engines
