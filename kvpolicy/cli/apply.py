"""Put a policy in charge of a running server; its cache keeps its content. Nothing changes unless all of it can.

With --guard the server's figures are watched before and after, and a policy under which one gets worse by more than a
fifth is rolled back.

Exit 0: applied, 1: an error in the policy, the server refused it, or the guard rolled it back, 2: bad usage, or a
server that does not answer.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from kvpolicy.cli.main import EXIT_ERROR, EXIT_OK, EXIT_USAGE
from kvpolicy.cli.render import wants_colour
from kvpolicy.cli.server_arguments import add_server_arguments, api_key, asking, duration

__all__ = ["add_arguments", "report", "run"]

#: As kvpolicy.live.watch knows them.
NAMES = ("hit_rate", "evict_s", "ttft")
#: How often the figures are looked at.
POLL_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("policy", nargs="?", metavar="POLICY", help="a file or the name of a shipped policy")
    parser.add_argument("--off", action="store_true", help="no policy: leave everything to the engine")
    add_server_arguments(parser)
    parser.add_argument("--expect-digest", metavar="D", help="only if the server runs the policy of this digest")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="for people (default) or JSON")
    guard = parser.add_argument_group("a guard over the change")
    guard.add_argument(
        "--guard",
        type=_figures,
        default=(),
        metavar="FIGURE,...",
        help="roll back if one gets worse: " + ", ".join(NAMES),
    )
    guard.add_argument("--for", dest="watch", type=duration, default=60.0, metavar="60s", help="watch so long (60s)")
    guard.add_argument(
        "--baseline", type=duration, default=None, metavar="30s", help="compare with so long before (as --for)"
    )


def run(args: argparse.Namespace) -> int:
    if (args.policy is None) == (not args.off):
        print("kvpolicy apply: one of POLICY and --off is needed, not both", file=sys.stderr)
        return EXIT_USAGE
    return asking("apply", lambda: _guarded(args) if args.guard else _run(args))


def _guarded(args: argparse.Namespace) -> int:
    """Apply between two windows of the server's figures; roll back where one got worse."""
    from kvpolicy.live.apply import rollback
    from kvpolicy.live.client import fetch_metrics
    from kvpolicy.live.watch import means, totals, worse

    key = api_key(args)

    def now() -> dict[str, tuple[float, float]]:
        return totals(fetch_metrics(args.url, key), args.guard)

    if missing := [name for name in args.guard if name not in now()]:
        print(f"kvpolicy apply: the server's /metrics has no {', '.join(missing)}: nothing to guard", file=sys.stderr)
        return EXIT_USAGE
    baseline_s = args.watch if args.baseline is None else args.baseline
    print(f"Watching {', '.join(args.guard)} for {baseline_s:g} s before the change.", flush=True)
    start = now()
    time.sleep(baseline_s)
    before = means(start, now())
    if quiet := [name for name in args.guard if name not in before]:
        print(f"Too little traffic to judge {', '.join(quiet)} by; not guarded.")
    if (code := _run(args)) != EXIT_OK:
        return code
    applied_at, start = time.monotonic(), now()
    while (left_s := args.watch - (time.monotonic() - applied_at)) > 0:
        time.sleep(min(left_s, POLL_S))
        if found := worse(before, means(start, now())):
            for each in found:
                print(f"Got worse: {each}", file=sys.stderr)
            code = report("rollback", lambda: rollback(args.url, api_key=key))
            return code if code != EXIT_OK else EXIT_ERROR
    print(f"Nothing got worse in {args.watch:g} s.")
    return EXIT_OK


def _run(args: argparse.Namespace) -> int:
    from kvpolicy.cli.plan import errors_of
    from kvpolicy.live.apply import apply_off, apply_policy, load_for, running

    key, expected = api_key(args), args.expect_digest
    if args.off:
        return report("apply", lambda: apply_off(args.url, expect_digest=expected, api_key=key), args.format)
    now = running(args.url, key)
    result = load_for(args.policy, now.engine)
    if (code := errors_of(result)) is not None:
        return code
    source = args.policy
    return report(
        "apply", lambda: apply_policy(args.url, result.flat, source, expect_digest=expected, api_key=key), args.format
    )


def _figures(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if unknown := [name for name in names if name not in NAMES]:
        raise argparse.ArgumentTypeError(f"unknown figure '{unknown[0]}' (known: {', '.join(NAMES)})")
    return names


def report(command: str, change: Callable[[], dict[str, Any]], format: str = "text") -> int:
    """Print what came of a change: the plan that was carried out, or why the server kept its policy."""
    from kvpolicy.live.apply import Refused
    from kvpolicy.live.plan import plan_from_json, render

    try:
        answer = change()
    except Refused as refused:
        print(f"kvpolicy {command}: the server keeps its policy:", file=sys.stderr)
        for why in refused.why:
            print(f"  {why}", file=sys.stderr)
        return EXIT_ERROR
    if format == "json":
        json.dump(answer, sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
        return EXIT_OK
    engines = f"on {answer['engines']} engine(s)"
    if answer["off"]:
        print(f"Switched off {engines}: the engine's own ways serve. `kvpolicy rollback` returns to the policy.")
        return EXIT_OK
    plan = plan_from_json(answer["plan"])
    if plan.changes:  # none: it was switched off and is in charge again
        sys.stdout.write(render(plan, colour=wants_colour(sys.stdout)))
    print(f"Applied {engines}: digest {answer['applied'][:16]}.")
    return EXIT_OK
