"""Replay traces under policies: how much each would hit and save on your traffic, before a server is restarted."""

from __future__ import annotations

import argparse
import json
import sys

from kvpolicy.cli.main import EXIT_ERROR, EXIT_OK, EXIT_USAGE
from kvpolicy.cli.output import open_output, why_unwritable
from kvpolicy.cli.progress import Progress
from kvpolicy.cli.render import render
from kvpolicy.cli.trace_arguments import add_trace_arguments, capacities, open_trace, tokens
from kvpolicy.replay.cost import ModelCost
from kvpolicy.replay.errors import TraceError, TraceUsageError
from kvpolicy.replay.policies import from_result, load
from kvpolicy.replay.run import Replay, Settings, replay
from kvpolicy.replay.simulator import GRANULARITIES, Eviction
from kvpolicy.replay.summary import to_json
from kvpolicy.replay.table import render_table

__all__ = ["add_arguments", "load_policies", "model_cost", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="a trace (.jsonl, .gz, .zst), or - for stdin")
    parser.add_argument(
        "--policy",
        action="append",
        metavar="FILE|NAME",
        help="a policy file, a shipped policy, or an algorithm like gdsf; repeat to compare (default: lru)",
    )
    parser.add_argument(
        "--capacity", type=capacities, required=True, metavar="TOKENS,...", help="pool sizes in tokens, like 1M,2M,4M"
    )
    parser.add_argument("--page-size", type=tokens, metavar="TOKENS", help="default: the trace's own block size")
    parser.add_argument(
        "--granularity",
        choices=sorted(GRANULARITIES),
        default="node",
        help="evict whole leaf nodes, as SGLang does, or single pages, as vLLM does (default: node)",
    )
    parser.add_argument(
        "--lock",
        choices=("inserting", "running"),
        default="inserting",
        help="how long a request locks its path: while it is inserted, or for the duration that the trace gives",
    )
    parser.add_argument("--model", metavar="DIR|config.json", help="also say the share of this model's prefill FLOPs")
    parser.add_argument("--no-bounds", action="store_true", help="leave out the infinite cache and the clairvoyant")
    parser.add_argument("--times", action="store_true", help="also say how long evicting took, in us a victim")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--html", metavar="FILE", help="also write one self-contained page with plots")
    add_trace_arguments(parser)


def run(args: argparse.Namespace) -> int:
    evictions, code = load_policies(args.policy or ["lru"], "replay")
    if code:
        return code
    if why := why_unwritable(args.html):
        print(f"kvpolicy replay: {why}", file=sys.stderr)
        return EXIT_USAGE
    settings = Settings(args.capacity, args.page_size, args.granularity, args.lock == "running", not args.no_bounds)
    done: list[Replay] = []
    try:
        model = model_cost(args.model)
        for path in args.traces:
            trace = open_trace(path, args)
            with Progress(trace.lines, path) as progress:
                done.append(replay(trace, evictions, settings, progress))
    except TraceError as error:
        print(error, file=sys.stderr)
        return EXIT_ERROR
    except TraceUsageError as error:
        print(f"kvpolicy replay: {error}", file=sys.stderr)
        return EXIT_USAGE
    if args.html:
        from kvpolicy.replay.html import render_html

        try:
            with open_output(args.html) as file:
                file.write(render_html(done, model))
        except OSError as error:
            print(f"kvpolicy replay: cannot write '{args.html}': {error.strerror}", file=sys.stderr)
            return EXIT_USAGE
    if args.format == "json":
        print(json.dumps([to_json(each, model) for each in done], indent=2))
    else:
        print("\n".join(render_table(each, model, args.times) for each in done), end="")
    return EXIT_OK


def load_policies(arguments: list[str], command: str) -> tuple[list[Eviction], int]:
    """Compile the policies, or print what is wrong with them; with the exit code."""
    evictions: list[Eviction] = []
    failed = EXIT_OK
    for argument in dict.fromkeys(arguments):
        result = load(argument)
        if result.policy is None:
            sys.stderr.write(render(result.diagnostics, "text", result.sources, checked=1))
            failed = max(failed, EXIT_USAGE if result.unopenable else EXIT_ERROR)
            continue
        evictions.append(from_result(result, argument))
    return evictions, failed


def model_cost(path: str | None) -> ModelCost | None:
    """The model's prefill cost. Raises TraceUsageError when it cannot be told."""
    if path is None:
        return None
    from kvpolicy.facts.errors import FactsArgumentError
    from kvpolicy.facts.model import load_model

    try:
        return ModelCost.of(load_model(path))
    except (FactsArgumentError, ValueError) as error:
        raise TraceUsageError(str(error)) from None
