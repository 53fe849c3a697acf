"""List the shipped policies: `builtin:NAME` in `extends`, NAME wherever a command or a server takes a policy."""

from __future__ import annotations

import argparse
import json
import sys

from kvpolicy.cli.main import EXIT_OK
from kvpolicy.language import load_policy
from kvpolicy.language.shipped_policies import shipped

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    rows = []
    for name, path in shipped().items():
        policy = load_policy(f"builtin:{name}").policy
        rows.append(
            {"name": name, "description": (policy.metadata.description if policy else None) or "", "file": str(path)}
        )
    if args.format == "json":
        json.dump(rows, sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        width = max((len(row["name"]) for row in rows), default=0)
        sys.stdout.write("".join(f"{row['name']:<{width}}  {row['description']}\n" for row in rows))
    return EXIT_OK
