"""Check policies, every error of every file at once.

Exit 0: no error, 1: an error in a policy, 2: bad usage, or a file that does not exist or cannot be opened.
"""

from __future__ import annotations

import argparse
import sys

from kvpolicy.cli.main import EXIT_ERROR, EXIT_OK, EXIT_USAGE
from kvpolicy.cli.render import FORMATS, render
from kvpolicy.facts import FactsArgumentError, deployment, report_on
from kvpolicy.language import Diagnostic, LoadResult, load_policy, load_text
from kvpolicy.language.source import MAX_BYTES, Source

__all__ = ["add_arguments", "load_argument", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "policies", nargs="+", metavar="POLICY", help="a file, the name of a shipped policy, or - for stdin"
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help="how to print findings (default: text)")
    parser.add_argument("--strict", action="store_true", help="treat warnings as errors")
    facts = parser.add_argument_group("what a deployment will make of it")
    facts.add_argument(
        "--engine",
        metavar="ENGINE[==VERSION]",
        help="sglang==0.5.23 or vllm==0.32.0: page size, dtype and backend it will use",
    )
    facts.add_argument("--model", metavar="DIR|config.json", help="the model's folder or its config.json")
    facts.add_argument("--gpu", help="the GPU, like h200")
    facts.add_argument("--memory", help="memory for the KV pool of one rank, like 60GiB (default: an estimate)")
    facts.add_argument("--tp", type=int, default=1, metavar="N", help="tensor-parallel ranks (default: 1)")
    facts.add_argument(
        "--length",
        type=int,
        default=32768,
        metavar="TOKENS",
        help="request to count index entries for (default: 32768)",
    )
    facts.add_argument(
        "--traffic",
        metavar="batch=N,shared=TOKENS,unique=TOKENS",
        help="decode steps to say of whether a cascade, or a larger page, would pay",
    )
    facts.add_argument(
        "--evidence",
        action="append",
        default=[],
        metavar="FILE",
        help="what kvpolicy fidelity measured on this model; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    try:
        where = deployment(
            engine=args.engine,
            model=args.model,
            gpu=args.gpu,
            memory=args.memory,
            tp=args.tp,
            length_tokens=args.length,
            evidence=args.evidence,
            traffic=args.traffic,
        )
    except FactsArgumentError as error:
        hint = f" ({error.help})" if error.help else ""
        print(f"kvpolicy check: {error.message}{hint}", file=sys.stderr)
        return EXIT_USAGE
    if where.gpu is not None and where.target is None and where.model is None:
        print("kvpolicy check: --gpu says nothing by itself (add --engine, --model or both)", file=sys.stderr)
        return EXIT_USAGE
    engine = where.target.name if where.target else None
    found: list[Diagnostic] = []
    sources: dict[str, Source] = {}
    unopenable = False
    for argument in args.policies:
        result = load_argument(argument, engine)
        unopenable |= result.unopenable
        sources.update(result.sources)
        found += result.diagnostics
        if result.policy is not None:
            found += report_on(result.policy, where, locate=result.locate)
    if args.strict:
        found = [_strict(d) for d in found]
    failed = any(d.severity == "error" for d in found)
    sys.stdout.write(render(found, args.format, sources, checked=len(args.policies)))
    return EXIT_USAGE if unopenable else EXIT_ERROR if failed else EXIT_OK


def load_argument(argument: str, engine: str | None) -> LoadResult:
    if argument == "-":
        return load_text(sys.stdin.buffer.read(MAX_BYTES + 1), "<stdin>", engine)
    return load_policy(argument, engine)


def _strict(d: Diagnostic) -> Diagnostic:
    if d.severity != "warning":
        return d
    return Diagnostic(d.file, d.line, d.col, d.code, "error", d.message, d.help, d.data)
