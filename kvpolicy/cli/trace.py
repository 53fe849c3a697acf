"""Look into a trace (`trace info`), or write it in one plain format (`trace convert`)."""

from __future__ import annotations

import argparse
import json
import sys

from kvpolicy.cli.main import EXIT_ERROR, EXIT_OK, EXIT_USAGE
from kvpolicy.cli.output import open_output, why_unwritable
from kvpolicy.cli.progress import Progress
from kvpolicy.cli.trace_arguments import add_trace_arguments, open_trace, tokens
from kvpolicy.replay.convert import convert
from kvpolicy.replay.errors import TraceError, TraceUsageError
from kvpolicy.replay.formats import FORMATS
from kvpolicy.replay.profile import profile, render_profile

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "formats:\n" + "\n".join(f"  {name:<11} {f.summary}" for name, f in FORMATS.items())
    parser.add_argument("action", choices=("info", "convert"))
    parser.add_argument("trace", metavar="TRACE", help="a trace (.jsonl, .gz, .zst), or - for stdin")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="convert: where to write (.gz compresses; default: stdout)"
    )
    parser.add_argument(
        "--to",
        type=tokens,
        metavar="TOKENS",
        dest="to_block",
        help="convert: block size of the hash ids written (default: the trace's own; 16 for traces of tokens)",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="info: how to print")
    add_trace_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if args.action == "convert" and (why := why_unwritable(args.output)):
        print(f"kvpolicy trace: {why}", file=sys.stderr)
        return EXIT_USAGE
    try:
        trace = open_trace(args.trace, args)
        with Progress(trace.lines, args.trace) as progress:
            if args.action == "info":
                found = profile(trace, progress)
                print(json.dumps(found.to_json(), indent=2) if args.format == "json" else render_profile(found), end="")
                if args.format == "json":
                    print()
                return EXIT_OK
            with open_output(args.output) as out:
                count = convert(trace, out, args.to_block, progress)
        if args.output:
            print(f"{count:,} requests written to {args.output}", file=sys.stderr)
    except TraceError as error:
        print(error, file=sys.stderr)
        return EXIT_ERROR
    except TraceUsageError as error:
        print(f"kvpolicy trace: {error}", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        print(f"kvpolicy trace: cannot write '{args.output}': {error.strerror}", file=sys.stderr)
        return EXIT_USAGE
    return EXIT_OK
