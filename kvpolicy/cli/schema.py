"""Print the JSON Schema (draft-07) of policies, for editors: `kvpolicy schema > kvpolicy.schema.json`."""

from __future__ import annotations

import argparse
import json
import sys

from kvpolicy.cli.main import EXIT_OK

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None: the schema depends on nothing."""


def run(args: argparse.Namespace) -> int:
    from kvpolicy.language.schema import json_schema

    json.dump(json_schema(), sys.stdout, indent=2)
    sys.stdout.write("\n")
    return EXIT_OK
