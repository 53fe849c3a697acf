"""`kvpolicy COMMAND ...`: one module a command, imported only when it is asked for."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence

from kvpolicy import __version__

__all__ = ["COMMANDS", "EXIT_ERROR", "EXIT_OK", "EXIT_USAGE", "main"]

EXIT_OK, EXIT_ERROR, EXIT_USAGE = 0, 1, 2

#: command -> one line of help. `kvpolicy.cli.COMMAND` holds `add_arguments(parser)` and `run(args) -> exit code`.
COMMANDS: dict[str, str] = {
    "apply": "put a policy in charge of a running server, which keeps its cache",
    "bench": "compare two policies, or two servers, with the engine's own serving benchmark",
    "check": "check policies, and with --engine what an engine will make of them",
    "diff": "say what would change between two policies: hot, idle or restart",
    "doctor": "examine a running server: settings, faults, salts, pages, pressure",
    "explain": "explain a diagnostic code with a bad and a good example, or a topic like pins",
    "fidelity": "measure what a policy's KV dtype costs on a model, through a real engine",
    "init": "write a commented policy to start from",
    "list": "list the shipped policies",
    "plan": "say what a policy would change on a running server, and what that costs",
    "record": "record a running server's requests as a trace for replay, never text",
    "recommend": "search a policy for a trace, with evidence, or say that stock LRU is best",
    "replay": "replay traces under policies: hit rate, prefill saved, distance to the optimum",
    "rollback": "return a running server to the policy before the last change",
    "schema": "print the JSON Schema for editors",
    "shadow": "run candidate policies beside a server's own, on metadata alone",
    "show": "print the effective policy, after `extends`",
    "test": "run the tests of policies, or random workloads against their invariants",
    "top": "watch a running server's cache: occupancy, hit rate, evictions by rule",
    "trace": "say what a trace holds, or convert it to plain prefix hashes",
    "why": "say why a running server's cache missed: what was evicted, by which rule",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. 0: no error, 1: an error in a policy, 2: bad usage."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a policy's words must not end an ASCII terminal's report
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader (head, less) has seen enough; keep Python's exit from writing into the closed pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 130


def _dispatch(arguments: list[str]) -> int:
    if arguments and arguments[0] in COMMANDS:
        command = arguments[0]
        module = importlib.import_module(f"kvpolicy.cli.{command}")
        parser = argparse.ArgumentParser(prog=f"kvpolicy {command}", description=module.__doc__, allow_abbrev=False)
        module.add_arguments(parser)
        code: int = module.run(parser.parse_args(arguments[1:]))
        return code
    return _top(arguments)


def _top(arguments: list[str]) -> int:
    commands = "\n".join(f"  {name:<10} {text}" for name, text in sorted(COMMANDS.items()))
    parser = argparse.ArgumentParser(
        prog="kvpolicy",
        usage="kvpolicy [-h] [--version] COMMAND ...",
        description="KV-cache policies as YAML, for an unmodified SGLang or vLLM.",
        epilog=f"commands:\n{commands}\n\n`kvpolicy COMMAND --help` tells more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"kvpolicy {__version__}")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    known, _ = parser.parse_known_args(arguments)
    if known.command is None:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    from difflib import get_close_matches  # only here: `--version` starts as little as it can

    close = get_close_matches(known.command, COMMANDS, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else f" (commands: {', '.join(sorted(COMMANDS))})"
    print(f"kvpolicy: unknown command '{known.command}'{hint}", file=sys.stderr)
    return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
