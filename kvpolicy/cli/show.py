"""Print the effective policy: after `extends` and, with --engine, after that engine's overrides. Without its tests."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from kvpolicy.cli.main import EXIT_ERROR, EXIT_OK, EXIT_USAGE
from kvpolicy.cli.render import render
from kvpolicy.language import ENGINES, LoadResult, has_errors
from kvpolicy.language.dump import dump

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("policy", metavar="POLICY", help="a file, the name of a shipped policy, or - for stdin")
    parser.add_argument("--engine", choices=ENGINES, help="as this engine reads it")
    parser.add_argument("--origin", action="store_true", help="name the file:line that each value comes from")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="YAML (default) or JSON")


def run(args: argparse.Namespace) -> int:
    from kvpolicy.cli.check import load_argument

    result = load_argument(args.policy, args.engine)
    problems = [d for d in result.diagnostics if d.severity != "info"]
    if problems:
        sys.stderr.write(render(problems, "text", result.sources, checked=1, colour=False))
    if has_errors(problems):
        return EXIT_USAGE if result.unopenable else EXIT_ERROR
    if args.format == "json":
        data: dict[str, Any] = {"digest": result.digest, "policy": result.flat}
        if args.origin:
            data["origin"] = {path: _place(result, path) for path in _leaves(result.flat)}
        json.dump(data, sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
        return EXIT_OK
    note = (lambda path: _place(result, path)) if args.origin else None
    sys.stdout.write(f"# digest sha256:{result.digest}\n{dump(result.flat, note)}")
    return EXIT_OK


def _place(result: LoadResult, path: tuple[str | int, ...] | str) -> str:
    origin = result.origin(path)
    return f"{origin[0]}:{origin[1]}" if origin else "the file's name"


def _leaves(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict) and value:
        return [leaf for name, item in value.items() for leaf in _leaves(item, f"{path}.{name}" if path else name)]
    if isinstance(value, list) and value:
        return [leaf for index, item in enumerate(value) for leaf in _leaves(item, f"{path}[{index}]")]
    return [path]
