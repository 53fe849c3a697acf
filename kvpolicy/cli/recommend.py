"""Search a policy for a trace, and write it with evidence and first tests, or say plainly that stock LRU is best."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from kvpolicy.cli.main import EXIT_ERROR, EXIT_OK, EXIT_USAGE
from kvpolicy.cli.output import open_output, why_unwritable
from kvpolicy.cli.progress import Progress
from kvpolicy.cli.trace_arguments import add_trace_arguments, capacities, open_trace, positive, tokens
from kvpolicy.language.fields import did_you_mean
from kvpolicy.language.units import parse_share
from kvpolicy.policytest.starter import starter_tests
from kvpolicy.replay.errors import TraceError, TraceUsageError
from kvpolicy.replay.recommend import OBJECTIVES, Floor, Recommendation, Trial, candidates, judge, objective_of, trial
from kvpolicy.replay.run import Settings, replay
from kvpolicy.replay.search import evictions_of, render_evidence, render_policy
from kvpolicy.replay.simulator import GRANULARITIES
from kvpolicy.replay.table import tokens_text

__all__ = ["add_arguments", "run"]

_BATCH = 6  # candidates a pass over the trace: what Ctrl-C may lose


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", metavar="TRACE", help="a trace file (.jsonl, .gz, .zst); read once for every batch")
    parser.add_argument("--capacity", type=capacities, required=True, metavar="TOKENS,...", help="pool sizes in tokens")
    parser.add_argument(
        "--objective", choices=sorted(OBJECTIVES), default="hit", help="what to maximise (default: hit)"
    )
    parser.add_argument(
        "--floor",
        type=_floor,
        action="append",
        default=[],
        metavar="TENANT=SHARE",
        help="a hit rate that this tenant (a cache_salt) must have, like gold=30%%; may be repeated",
    )
    parser.add_argument("--candidates", type=positive, default=48, metavar="N", help="how many to try (default: 48)")
    parser.add_argument("--page-size", type=tokens, metavar="TOKENS", help="default: the trace's own block size")
    parser.add_argument("--granularity", choices=sorted(GRANULARITIES), default="node")
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write the policy (default: stdout)")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists, with the tests in it")
    add_trace_arguments(parser)


def _floor(text: str) -> Floor:
    tenant, _, share = text.rpartition("=")
    try:
        if not tenant:
            raise ValueError
        return Floor(tenant, parse_share(share))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no tenant and hit rate like gold=30%") from None


def run(args: argparse.Namespace) -> int:
    if args.trace == "-":
        print("kvpolicy recommend: the trace is read several times: give a file", file=sys.stderr)
        return EXIT_USAGE
    if why := why_unwritable(args.output):
        print(f"kvpolicy recommend: {why}", file=sys.stderr)
        return EXIT_USAGE
    if args.output not in (None, "-") and Path(args.output).is_file() and not args.force:
        print(f"kvpolicy recommend: '{args.output}' exists: add --force to replace it", file=sys.stderr)
        return EXIT_USAGE
    trials: list[Trial] = []
    described = interrupted = ""
    floors: list[Floor] = args.floor
    tried = candidates(args.seed, args.candidates, [floor.tenant for floor in floors])
    try:
        measure = objective_of(args.objective)
        settings = Settings(args.capacity, args.page_size, args.granularity, bounds=False)
        for at in range(0, len(tried), _BATCH):
            batch = tried[at : at + _BATCH]
            trace = open_trace(args.trace, args)
            with Progress(trace.lines, f"{at}/{len(tried)} tried") as progress:
                done = replay(trace, evictions_of(batch), settings, progress)
            for floor in floors:
                if floor.tenant not in done.cache_salts:
                    raise TraceUsageError(_no_tenant(floor.tenant, done.cache_salts))
            by_name = {candidate.name: candidate for candidate in batch}
            trials += [
                trial(
                    by_name[each.policy],
                    each.capacity_tokens,
                    done.input_tokens,
                    each.hit_tokens,
                    measure,
                    done.cache_salts,
                    floors,
                )
                for each in done.runs
            ]
            size = f"pages of {done.page_tokens} token{'s' * (done.page_tokens > 1)}"
            pages = f"simulated by {args.granularity} with {size}"
            described = f"{done.trace}: {done.requests:,} requests, digest {done.digest}; {pages}"
    except KeyboardInterrupt:
        if not trials:
            raise
        interrupted = f"interrupted after {len(trials) // len(args.capacity)} of {len(tried)} candidates"
    except TraceError as error:
        print(error, file=sys.stderr)
        return EXIT_ERROR
    except TraceUsageError as error:
        print(f"kvpolicy recommend: {error}", file=sys.stderr)
        return EXIT_USAGE
    return _report(args, [judge(trials, capacity, floors) for capacity in args.capacity], described, interrupted)


def _no_tenant(tenant: str, salts: Sequence[str | None]) -> str:
    known = sorted({salt for salt in salts if salt is not None})
    help = did_you_mean(tenant, known) or (f"it has {', '.join(known[:8])}" if known else "no row has a cache_salt")
    return f"no request of the trace is of tenant '{tenant}': {help}"


def _report(args: argparse.Namespace, found: list[Recommendation], described: str, interrupted: str) -> int:
    if interrupted:
        print(interrupted, file=sys.stderr)
    evidence = [f"kvpolicy recommend, objective {args.objective} ({OBJECTIVES[args.objective]}), seed {args.seed}"]
    evidence += [f"floor: {floor}" for floor in args.floor]
    evidence += [described, *([interrupted] if interrupted else []), *render_evidence(found)]
    chosen = [each for each in found if each.chosen is not None]
    if not chosen:
        print("\n".join(evidence))
        if any(each.is_floor_broken for each in found):
            print("\nNo policy is recommended: none is known to keep every floor. Ask for less, or give it more room.")
            return EXIT_ERROR
        print("\nStock LRU is best here: run the engine without a policy, or with `stock_lru` for its faster index.")
        if args.output not in (None, "-"):
            print(f"{args.output} was not written.")
        return EXIT_OK
    best = max(chosen, key=lambda each: each.chosen.validation - each.lru.validation if each.chosen else 0.0)
    assert best.chosen is not None
    text = render_policy(best.chosen.candidate, evidence)
    text += "\n" + starter_tests(text)
    if args.output in (None, "-"):
        sys.stdout.write(text)
        return EXIT_OK
    try:
        with open_output(args.output) as file:
            file.write(text)
    except OSError as error:
        print(f"kvpolicy recommend: cannot write '{args.output}': {error.strerror}", file=sys.stderr)
        return EXIT_USAGE
    print("\n".join(evidence))
    pool = f", what won most over LRU, at {tokens_text(best.capacity_tokens)} tokens" if len(found) > 1 else ""
    print(f"\nwritten to {args.output}{pool}: {json.dumps(best.chosen.candidate.eviction)}")
    return EXIT_OK
