"""Compare a policy with what a server runs: what would change, when it could take effect, and what it costs.

Exit 0: no error, 1: an error in the policy, 2: bad usage, or a server that does not answer.
"""

from __future__ import annotations

import argparse
import json
import sys

from kvpolicy.cli.main import EXIT_ERROR, EXIT_OK, EXIT_USAGE
from kvpolicy.cli.render import render as render_diagnostics
from kvpolicy.cli.render import wants_colour
from kvpolicy.cli.server_arguments import add_server_arguments, api_key, asking
from kvpolicy.language import LoadResult, has_errors

__all__ = ["add_arguments", "errors_of", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("policy", metavar="POLICY", help="a file or the name of a shipped policy")
    add_server_arguments(parser)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="for people (default) or JSON")


def run(args: argparse.Namespace) -> int:
    return asking("plan", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    from kvpolicy.live.apply import load_for, running
    from kvpolicy.live.plan import effective_of, make_plan, render

    now = running(args.url, api_key(args))
    result = load_for(args.policy, now.engine)
    if (code := errors_of(result)) is not None:
        return code
    plan = make_plan(now.flat, result.flat, effective_of(now.blocks[0]))
    if args.format == "json":
        json.dump(plan.to_json(), sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(render(plan, colour=wants_colour(sys.stdout)))
    return EXIT_OK


def errors_of(result: LoadResult) -> int | None:
    """The exit code of a policy with errors, which are printed; None for one without."""
    if not has_errors(result.diagnostics):
        return None
    errors = [d for d in result.diagnostics if d.severity == "error"]
    sys.stderr.write(render_diagnostics(errors, "text", result.sources, checked=1, colour=False))
    return EXIT_USAGE if result.unopenable else EXIT_ERROR
