"""Run the tests in the policies' `tests:` blocks, or random workloads against the invariants of every policy.

Exit 0: everything held, 1: a test failed, a policy has an error or (with --strict) a gap in its coverage, 2: bad usage.
"""

from __future__ import annotations

import argparse
import json
import sys

from kvpolicy.cli.main import EXIT_ERROR, EXIT_OK, EXIT_USAGE
from kvpolicy.cli.render import render, wants_colour
from kvpolicy.language import ENGINES, LoadResult, load_policy
from kvpolicy.policytest.load import files_of, prepare
from kvpolicy.policytest.report import Report, render_text, to_json
from kvpolicy.policytest.run import run_tests

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "policies",
        nargs="*",
        default=["."],
        metavar="FILE|DIR|NAME",
        help="policy files, folders of them, or names of shipped policies (default: this folder)",
    )
    parser.add_argument("--engine", choices=ENGINES, help="test the policy with this engine's overrides")
    parser.add_argument("--coverage", action="store_true", help="say which rules and conditions no test reached")
    parser.add_argument("--strict", action="store_true", help="with --coverage: a gap is a failure")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    fuzz = parser.add_argument_group("random workloads")
    fuzz.add_argument(
        "--fuzz",
        nargs="?",
        type=int,
        const=100,
        metavar="N",
        help="run N random workloads (default: 100) against the invariants instead of the tests",
    )
    fuzz.add_argument("--seed", type=int, default=1, help="which workloads (default: 1)")


def run(args: argparse.Namespace) -> int:
    if args.strict and not args.coverage:
        print("kvpolicy test: --strict is about --coverage; give both", file=sys.stderr)
        return EXIT_USAGE
    if args.fuzz is not None and (args.fuzz < 1 or args.coverage):
        print("kvpolicy test: --fuzz takes a number from 1, and no --coverage", file=sys.stderr)
        return EXIT_USAGE
    results, code = _load(args.policies, args.engine)
    if code == EXIT_USAGE:
        return code
    if args.fuzz is not None:
        from kvpolicy.cli.fuzz import run_fuzz

        return max(code, run_fuzz(results, args.fuzz, args.seed, args.engine or ENGINES[0], args.format))
    reports = []
    for result in results:
        eviction, coverage = prepare(result, args.engine or ENGINES[0])
        outcomes = list(run_tests(result, eviction))
        reports.append(Report(result, outcomes, coverage if args.coverage else None))
    if args.format == "json":
        print(json.dumps([to_json(report) for report in reports], indent=2, ensure_ascii=False))
    else:
        sys.stdout.write(render_text(reports, wants_colour(sys.stdout)))
    failed = any(report.failed or (args.strict and report.coverage and report.coverage.gaps()) for report in reports)
    return EXIT_ERROR if failed else code


def _load(arguments: list[str], engine: str | None) -> tuple[list[LoadResult], int]:
    """The policies without errors; errors and warnings of all go to stderr."""
    results, code = [], EXIT_OK
    for argument in dict.fromkeys(arguments):
        try:
            files = list(files_of(argument))
        except OSError as error:
            print(f"kvpolicy test: cannot read {error.filename}: {error.strerror}", file=sys.stderr)
            return [], EXIT_USAGE
        if not files:
            print(f"kvpolicy test: there is no policy in '{argument}'", file=sys.stderr)
            return [], EXIT_USAGE
        for file in files:
            result = load_policy(file, engine)
            found = [d for d in result.diagnostics if d.severity == "error" or d.code == "KVP324"]
            if found:
                sys.stderr.write(render(found, "text", result.sources, checked=1))
            if result.policy is not None:
                results.append(result)
            else:
                code = max(code, EXIT_USAGE if result.unopenable else EXIT_ERROR)
    return results, code
