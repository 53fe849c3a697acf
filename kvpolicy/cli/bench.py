"""Compare two policies on a model, or two running servers, with the engine's own serving benchmark.

With --policy twice, servers are started here, on the engine that is installed: one whose policy is changed before each
window where that needs no restart, otherwise one for each window. With --url twice, the servers are yours and only
receive requests. Windows alternate; the verdict is on one figure, over the rounds' ratios, with a 95 % interval.

Exit 0: measured, whoever is faster; 1: an error in a policy, or a window failed; 2: bad usage, or a server that does
not answer.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from kvpolicy.bench.base import BenchError, Side, Traffic
from kvpolicy.bench.report import FIGURES, Report, Setting, render, report_of
from kvpolicy.bench.run import run_rounds
from kvpolicy.bench.servers import Launch, target_at
from kvpolicy.bench.sides import AtUrl, Hot, HotServer, Restarted
from kvpolicy.bench.statistics import MIN_ROUNDS
from kvpolicy.cli.installed import NotInstalled, installed_engine
from kvpolicy.cli.main import EXIT_ERROR, EXIT_OK, EXIT_USAGE
from kvpolicy.cli.output import open_output, why_unwritable
from kvpolicy.cli.plan import errors_of
from kvpolicy.cli.server_arguments import api_key, asking, seconds
from kvpolicy.cli.trace_arguments import positive, tokens
from kvpolicy.language import ENGINES, LoadResult, load_policy
from kvpolicy.live.plan import make_plan

__all__ = ["add_arguments", "run"]

OFF = "off"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help="what the engine serves; with --url, its tokenizer")
    parser.add_argument(
        "--policy", action="append", default=[], metavar="FILE|NAME", help=f"twice: A and B; `{OFF}`: no policy"
    )
    parser.add_argument("--url", action="append", default=[], metavar="URL", help="twice: A and B, running servers")
    parser.add_argument("--engine", choices=ENGINES, help="default: the one that is installed")
    parser.add_argument("--api-key", metavar="KEY", help="of the servers (default: the variable KVPOLICY_API_KEY)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="for people (default) or JSON")
    parser.add_argument("-o", "--output", metavar="FILE", help="write all windows and ratios (JSON) there too")
    traffic = parser.add_argument_group("one window")
    traffic.add_argument("--requests", type=positive, default=64, metavar="N", help="default: 64")
    traffic.add_argument(
        "--input", type=tokens, default=512, metavar="TOKENS", help="of a request's own (default: 512)"
    )
    traffic.add_argument("--output-tokens", type=tokens, default=64, metavar="TOKENS", help="default: 64")
    traffic.add_argument("--shared", type=tokens, default=0, metavar="TOKENS", help="before them, the same in a group")
    traffic.add_argument("--groups", type=positive, default=1, metavar="N", help="of requests that share (default: 1)")
    traffic.add_argument("--rate", type=seconds, metavar="PER_S", help="requests a second (default: all at once)")
    traffic.add_argument("--concurrency", type=positive, metavar="N", help="requests at a time, at most")
    how = parser.add_argument_group("how it is measured")
    how.add_argument("--rounds", type=positive, default=6, metavar="N", help="windows a side (default: 6)")
    how.add_argument(
        "--judge", choices=tuple(FIGURES), help="the verdict's figure (default: throughput; with --rate, ttft)"
    )
    how.add_argument("--seed", type=positive, metavar="N", help="of the requests (default: 1; with --url, the time)")
    how.add_argument("--change", choices=("auto", "hot", "restart"), default="auto", help="how policies take turns")
    how.add_argument("--server-args", type=shlex.split, default=[], metavar="'...'", help="for the engine's server")
    how.add_argument("--bench-args", type=shlex.split, default=[], metavar="'...'", help="for the engine's benchmark")
    how.add_argument("--start-timeout", type=seconds, default=1800.0, metavar="S", help="for a server (default: 1800)")


def run(args: argparse.Namespace) -> int:
    if (problem := _problem(args)) is not None:
        print(f"kvpolicy bench: {problem}", file=sys.stderr)
        return EXIT_USAGE
    with _ended_by_sigterm():
        try:
            return asking("bench", lambda: _urls(args) if args.url else _policies(args))
        except NotInstalled as error:
            print(f"kvpolicy bench: {error}", file=sys.stderr)
            return EXIT_USAGE
        except BenchError as error:
            print(f"kvpolicy bench: {error}", file=sys.stderr)
            return EXIT_ERROR


def _problem(args: argparse.Namespace) -> str | None:
    if (len(args.policy), len(args.url)) not in ((2, 0), (0, 2)):
        return "give --policy twice or --url twice: A and B"
    if args.policy and args.model is None:
        return "MODEL is missing: what the engine is to serve"
    if args.rounds < MIN_ROUNDS:
        return f"--rounds {args.rounds} is too few: noise shows between rounds, so at least {MIN_ROUNDS}"
    if args.requests % args.groups:
        return f"--requests {args.requests} is no multiple of --groups {args.groups}"
    return why_unwritable(args.output)


def _traffic(args: argparse.Namespace) -> Traffic:
    return Traffic(
        args.requests, args.input, args.output_tokens, args.shared, args.groups, args.rate, args.concurrency,
        tuple(args.bench_args),
    )  # fmt: skip


def _urls(args: argparse.Namespace) -> int:
    targets = [target_at(url, args.model, api_key(args)) for url in args.url]
    if targets[0].engine != targets[1].engine:
        raise BenchError(f"{args.url[0]} is {targets[0].engine}, {args.url[1]} {targets[1].engine}: no A/B of policies")
    engine = installed_engine(args.engine or targets[0].engine)  # its benchmark runs here
    a, b = (AtUrl(label, target) for label, target in zip("AB", targets, strict=True))
    # Servers that stay remember the requests of an earlier run.
    return _measured(args, a, b, engine, targets[0].model, "url", args.seed or int(time.time()), args.url)


def _policies(args: argparse.Namespace) -> int:
    engine = installed_engine(args.engine)
    loaded = {source: load_policy(source, engine) for source in args.policy if source != OFF}
    for result in loaded.values():
        if (code := errors_of(result)) is not None:
            return code
    change = _change(args, [loaded.get(source) for source in args.policy])
    with ExitStack() as stack:
        launches = [
            Launch(
                engine, args.model, None if source == OFF else source, tuple(args.server_args), api_key(args),
                args.start_timeout,
            )
            for source in args.policy
        ]  # fmt: skip
        a: Side
        b: Side
        if change == "hot":
            _tell(f"starting {engine} with {args.policy[0]} ...")
            server = HotServer(stack.enter_context(launches[0].running()), "A")
            a, b = (Hot(label, name, loaded[name].flat, server) for label, name in zip("AB", args.policy, strict=True))
        else:
            a, b = (Restarted(label, launch) for label, launch in zip("AB", launches, strict=True))
        return _measured(args, a, b, engine, args.model, change, args.seed or 1, args.policy)


def _change(args: argparse.Namespace, loaded: list[LoadResult | None]) -> str:
    """How the policies take turns. BenchError where that was asked for and cannot be."""
    if args.change == "restart":
        return "restart"
    before, after = loaded
    if before is None or after is None:
        why = f"`{OFF}` is a server without a policy"
    else:
        stays = [change.path for change in make_plan(before.flat, after.flat).changes if change.mutability != "hot"]
        if not stays:
            return "hot"
        why = f"{', '.join(stays)} cannot change while a server runs"
    if args.change == "hot":
        raise BenchError(f"{why}: use --change restart")
    return "restart"


def _measured(
    args: argparse.Namespace, a: Side, b: Side, engine: str, model: str, change: str, seed: int, names: list[str]
) -> int:
    traffic = _traffic(args)
    outcomes = run_rounds(a, b, traffic, args.rounds, seed, _tell)
    judged_by = args.judge or ("throughput" if args.rate is None else "ttft")
    setting = Setting((names[0], names[1]), engine, model, traffic, change, seed, judged_by)
    return _finish(args, report_of(*outcomes, setting))


def _finish(args: argparse.Namespace, report: Report) -> int:
    written = json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n"
    if args.output is not None:
        try:
            with open_output(args.output) as file:
                file.write(written)
        except OSError as error:
            print(f"kvpolicy bench: cannot write '{args.output}': {error.strerror}", file=sys.stderr)
            return EXIT_USAGE
    if args.output != "-":
        sys.stdout.write(written if args.format == "json" else render(report))
    return EXIT_OK


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM unwinds the stack like Ctrl-C does, so that servers are stopped."""

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
