"""Say what would change from one policy to another, and what each change costs on a running server.

Exit 0: no error, 1: an error in a policy, 2: bad usage.
"""

from __future__ import annotations

import argparse
import json
import sys

from kvpolicy.cli.main import EXIT_OK
from kvpolicy.cli.render import wants_colour
from kvpolicy.language import ENGINES

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, what in (("before", "what runs"), ("after", "what would run")):
        parser.add_argument(name, metavar=name.upper(), help=f"{what}: a file or the name of a shipped policy")
    parser.add_argument("--engine", choices=ENGINES, help="as this engine reads them")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="for people (default) or JSON")


def run(args: argparse.Namespace) -> int:
    from kvpolicy.cli.check import load_argument
    from kvpolicy.cli.plan import errors_of
    from kvpolicy.live.plan import make_plan, render

    flats = []
    for argument in (args.before, args.after):
        result = load_argument(argument, args.engine)
        if (code := errors_of(result)) is not None:
            return code
        flats.append(result.flat)
    plan = make_plan(*flats)
    if args.format == "json":
        json.dump(plan.to_json(), sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(render(plan, colour=wants_colour(sys.stdout)))
    return EXIT_OK
