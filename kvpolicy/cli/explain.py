"""Explain a diagnostic code, with a policy that raises it and one that does not. Without a code: list them all."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from typing import Any

from kvpolicy.cli.main import EXIT_OK, EXIT_USAGE
from kvpolicy.language.codes import CODES, Code

__all__ = ["add_arguments", "run"]

_MAX_LINES = 24  # of an example: some are long because being long is the point


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("codes", nargs="*", metavar="CODE", help="like KVP301 (or 301); left out: list all codes")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    chosen: list[Code] = []
    for asked in args.codes or CODES:
        code = asked.upper() if asked.upper().startswith("KVP") else f"KVP{asked}"
        if code not in CODES:
            group = ", ".join(known for known in CODES if known[:4] == code[:4])
            print(
                f"kvpolicy explain: there is no code {asked} (known: {group or 'KVP101, KVP201, ...'})", file=sys.stderr
            )
            return EXIT_USAGE
        chosen.append(CODES[code])
    if args.format == "json":
        json.dump([_data(code) for code in chosen], sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
    elif not args.codes:
        sys.stdout.write("".join(f"{code.code}  {code.title}\n" for code in chosen))
    else:
        sys.stdout.write("\n".join(_text(code) for code in chosen))
    return EXIT_OK


def _text(code: Code) -> str:
    check = " ".join(["kvpolicy check", *(() if code.code == "KVP101" else ("policy.yaml",)), *code.args])
    parts = [f"{code.code}: {code.title}\n\n{textwrap.fill(code.text, 100)}\n"]
    if code.code == "KVP101":
        return f"{parts[0]}\nraised by: {check}\n"
    parts.append(f"\nbad ({check}):\n\n{_example(code, 'bad')}")
    asked = "" if code.good_args is None else f" ({' '.join(['kvpolicy check policy.yaml', *code.good_args])})"
    parts.append(f"\ngood{asked}:\n\n{_example(code, 'good')}")
    for name in code.files:
        parts.append(f"\nbeside it, {name}:\n\n{_indent(code.files[name])}" if len(code.files) <= 2 else "")
    return "".join(parts)


def _example(code: Code, which: str) -> str:
    return _indent(code.example(which).decode("utf-8", errors="backslashreplace"))


def _indent(text: str) -> str:
    lines = [
        "".join(c if c.isprintable() or c == "\t" else f"\\x{ord(c):02x}" for c in line) for line in text.split("\n")
    ]
    lines = lines[:-1] if lines and not lines[-1] else lines
    shown = [line if len(line) <= 160 else f"{line[:157]}..." for line in lines[:_MAX_LINES]]
    if len(lines) > _MAX_LINES:
        shown.append(f"... ({len(lines) - _MAX_LINES:,} more lines)")
    return "".join(f"    {line}\n" for line in shown)


def _data(code: Code) -> dict[str, Any]:
    return {
        "code": code.code,
        "title": code.title,
        "text": code.text,
        "bad": code.example("bad").decode("utf-8", errors="backslashreplace"),
        "good": code.example("good").decode("utf-8", errors="backslashreplace"),
        "files": dict(code.files),
        "args": list(code.args),
        "good_args": list(code.args if code.good_args is None else code.good_args),
    }
