"""Measure what a policy's KV dtype costs on a model: the same text through a real engine, with it and without it.

Runs on the machine where the engine is, and starts the engine itself, twice, one after the other. Exit 0: ok or
noticeable; 1: the verdict is bad, the policy is wrong, or the engine does not run it; 2: bad usage.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from kvpolicy.cli.installed import NotInstalled, installed_engine
from kvpolicy.cli.main import EXIT_ERROR, EXIT_OK, EXIT_USAGE
from kvpolicy.cli.output import open_output, why_unwritable
from kvpolicy.cli.render import render
from kvpolicy.cli.trace_arguments import tokens
from kvpolicy.facts import FactsArgumentError, load_model
from kvpolicy.facts.measured import shape_of
from kvpolicy.fidelity.base import FidelityError, Job
from kvpolicy.fidelity.comparison import Run
from kvpolicy.fidelity.policies import measured_policy, reference_policy
from kvpolicy.fidelity.report import render_result
from kvpolicy.fidelity.result import Result, result_of, to_json
from kvpolicy.fidelity.run import run_child
from kvpolicy.language import ENGINES, load_policy

__all__ = ["add_arguments", "run"]

_DEFAULT_TEXT = Path(__file__).parent.parent / "fidelity" / "text.md"
_TEXT_NAME = "the shipped text"
_MAX_TEXT_BYTES = 64 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the model's folder")
    parser.add_argument(
        "--policy", required=True, metavar="FILE|NAME", help="the policy whose cache.kv_dtype is measured"
    )
    parser.add_argument("--engine", choices=ENGINES, help="default: the one that is installed")
    parser.add_argument("--text", metavar="FILE", help="UTF-8 text like your traffic (default: a short one is shipped)")
    parser.add_argument("-o", "--output", metavar="FILE", help="write the evidence (JSON) for check --evidence")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    how = parser.add_argument_group("how it is measured")
    how.add_argument("--window", type=tokens, default=1024, metavar="TOKENS", help="longest context (default: 1024)")
    how.add_argument(
        "--tokens", type=tokens, default=4096, metavar="TOKENS", help="of the text at most (default: 4096)"
    )
    how.add_argument("--top-k", type=tokens, default=64, metavar="N", help="logprobs asked for a token (default: 64)")
    how.add_argument(
        "--engine-arg",
        type=_engine_arg,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a keyword of sglang.Engine or vllm.LLM for both runs, like tp_size=2; may be repeated",
    )


def _engine_arg(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    try:
        if not equals or not name.isidentifier():
            raise ValueError
        return name, yaml.safe_load(value)
    except (ValueError, yaml.YAMLError):
        raise argparse.ArgumentTypeError(f"'{text}' is no NAME=VALUE like tp_size=2") from None


def run(args: argparse.Namespace) -> int:
    try:
        engine = installed_engine(args.engine)
        model = load_model(args.model)
        if not Path(args.model).is_dir():
            raise _Usage(f"'{args.model}' is not a folder: the engine loads the model from it")
        text, text_name = _text(args.text)
        if why := why_unwritable(args.output):
            raise _Usage(why)
        if args.window > (model.context_tokens or args.window):
            raise _Usage(f"--window {args.window} is longer than the model's {model.context_tokens} tokens")
    except (_Usage, NotInstalled, FactsArgumentError) as error:
        hint = f" ({error.help})" if isinstance(error, FactsArgumentError) and error.help else ""
        print(f"kvpolicy fidelity: {error}{hint}", file=sys.stderr)
        return EXIT_USAGE
    loaded = load_policy(args.policy, engine)
    if loaded.policy is None:
        sys.stderr.write(render(loaded.diagnostics, "text", loaded.sources, checked=1))
        return EXIT_USAGE if loaded.unopenable else EXIT_ERROR
    try:
        # The policy first: what the engine refuses, it refuses before the reference has cost anything.
        policies = {"policy": measured_policy(loaded.flat), "reference": reference_policy(loaded.flat, model)}
    except FidelityError as error:
        print(f"kvpolicy fidelity: {args.policy}: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        measured, reference = _score(args, engine, policies, text)
        told: dict[str, Any] = {"policy": args.policy, "digest": loaded.digest, "text_name": text_name, "text": text}
        result = result_of(reference, measured, model=shape_of(model), top_k=args.top_k, **told)
    except FidelityError as error:
        print(f"kvpolicy fidelity: {error}", file=sys.stderr)
        return EXIT_ERROR
    return _finish(args, result)


def _score(args: argparse.Namespace, engine: str, policies: dict[str, str], text: str) -> list[Run]:
    """One run a policy (name -> YAML), one after the other. FidelityError."""
    runs = []
    with tempfile.TemporaryDirectory(prefix="kvpolicy-fidelity-") as folder:
        for name, document in policies.items():
            policy = Path(folder) / f"{name}.yaml"
            policy.write_text(document, encoding="utf-8")
            job = Job(args.model, str(policy), text, args.window, args.tokens, args.top_k, dict(args.engine_arg))
            try:
                runs.append(run_child(engine, job, _Progress(f"the {name} on {engine}")))
            except FidelityError as error:
                raise FidelityError(_without_places(str(error), str(policy), args.policy)) from None
    return runs


def _without_places(text: str, written: str, named: str) -> str:
    """An engine's words about the file it was given, which nobody wrote, as words about the policy."""
    return re.sub(rf" at {re.escape(written)}:\d+:\d+", "", text).replace(written, named)


class _Usage(Exception):
    """An argument that cannot be used."""


def _text(path: str | None) -> tuple[str, str]:
    """(text, what to call it)."""
    file = _DEFAULT_TEXT if path is None else Path(path)
    try:
        with file.open("rb") as opened:
            raw = opened.read(_MAX_TEXT_BYTES)
    except OSError as error:
        raise _Usage(f"cannot read '{path}': {error.strerror}") from None
    try:
        # Cut at a whole character: a text longer than the limit is measured as far as it goes.
        text = raw.decode("utf-8") if len(raw) < _MAX_TEXT_BYTES else raw.decode("utf-8", errors="ignore")
    except UnicodeDecodeError:
        raise _Usage(f"'{path}' is not UTF-8 text") from None
    if not text.strip():
        raise _Usage(f"'{path}' is empty")
    return text, _TEXT_NAME if path is None else file.name


class _Progress:
    """One line a run on stderr; on a terminal it counts."""

    _EVERY_S = 0.5

    def __init__(self, what: str) -> None:
        self._what, self._start, self._next = what, time.monotonic(), 0.0
        print(f"starting {what} ...", file=sys.stderr, flush=True)

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not sys.stderr.isatty() or not total or (now < self._next and done < total):
            return
        self._next = now + self._EVERY_S
        end = "\n" if done >= total else ""
        spent = f"{now - self._start:.0f} s"
        sys.stderr.write(f"\r\x1b[K{self._what}: {done:,} of {total:,} tokens, {spent}{end}")
        sys.stderr.flush()


def _finish(args: argparse.Namespace, result: Result) -> int:
    evidence = json.dumps(to_json(result), indent=2, ensure_ascii=False) + "\n"
    if args.output is not None:
        try:
            with open_output(args.output) as file:
                file.write(evidence)
        except OSError as error:
            print(f"kvpolicy fidelity: cannot write '{args.output}': {error.strerror}", file=sys.stderr)
            return EXIT_USAGE
    if args.output != "-":
        sys.stdout.write(evidence if args.format == "json" else render_result(result))
    return EXIT_ERROR if result.verdict.level == "bad" else EXIT_OK
