"""Write a commented policy to start from, and beside it the schema that its modeline names. Never overwrites a file."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from kvpolicy.cli.main import EXIT_ERROR, EXIT_OK, EXIT_USAGE

__all__ = ["add_arguments", "run", "scaffold"]

_SCHEMA_FILE = "kvpolicy.schema.json"

_TEMPLATE = """\
# yaml-language-server: $schema=./{schema}
# A KV-cache policy. `kvpolicy check {file}` checks it, `kvpolicy explain CODE` explains a finding, and
# `sglang serve MODEL --kv-policy {file}` runs it. Everything that is left out stays the engine's default.
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata:
  name: {name}
  description: Shared prompts stay for ten minutes; the rest goes by recency.

# extends: builtin:chat              # start from a shipped policy (`kvpolicy list`) or from a file beside this one

cache:                               # takes effect at start
  page_size: {{prefer: 16, accept: [1, 16, 32, 64]}}   # tokens; any of `accept` is fine if the engine needs it
  kv_dtype: auto                     # or bf16, fp8_e4m3, ...
  on_conflict: error                 # an engine flag that contradicts this file: error (do not start) | warn

# backend:
#   attention: {{prefer: fa3, accept: [fa3, flashinfer, triton]}}

eviction:                            # what goes first when the cache is full
  policy: lru                        # a built-in order, or instead a formula, smallest first:
  # score: 200 * log1p(hits) - idle_requests
  rules:                             # top to bottom, the first match wins
    - name: shared-prompt
      match: depth_tokens <= 4096 and hits >= 2
      retain: {{weight: 8, ttl: 600s, budget: 20%}}     # goes after everything else, within a fifth of the pool
    - name: opted-out
      match: request.priority < 0
      admit: never                   # leaves nothing in the cache
  # tenants: {{by: cache_salt, floor: 5%, cap: 40%, max_floors: 8}}
"""

_TESTS = """
# What the policy does on small caches; `kvpolicy test {file} --coverage` runs them (docs/testing.md).
tests:
  - name: a prompt that requests share survives a flood of one-off prompts
    pool: 4Ki                        # tokens; shares of the pool mean the same in a small one
    page_size: 16
    segments: {{shared: 256, user: 128}}                # tokens; `user` holds for user1, user2, ... too
    steps:
      - shared/user1                 # a request: equal paths are equal tokens
      - +1s shared/user2 hit shared  # a second later; what it finds in the cache
      - +1s shared/user3
      - protected: {{shared: shared-prompt}}
        unprotected: [shared/user3]
      - +1s flood 40x256             # 40 prompts of 256 tokens that nobody repeats
      - resident: [shared]
        evicted: [shared/user1, shared/user3]
        evicted_tokens: {{shared-prompt: 0}}
      - +600s flood 16x256           # its ttl is over
      - evicted: [shared]

  - name: what is longer than a shared prompt is not protected
    pool: 16Ki
    page_size: 16
    steps:
      - document:4112 x5
      - unprotected: [document]

  - name: a request that opted out leaves nothing behind
    pool: 1Ki
    steps:
      - probe:64 priority=-1
      - absent: [probe]
      - probe priority=1 hit none
      - resident: [probe]
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", default="policy.yaml", help="the file to write (default: policy.yaml); - for stdout"
    )
    parser.add_argument("--test", action="store_true", help="with tests of its rules, for `kvpolicy test`")
    parser.add_argument("--name", help="the policy's name (default: the file's)")


def run(args: argparse.Namespace) -> int:
    from kvpolicy.language.fields import NAME_PATTERN, usable_name
    from kvpolicy.language.schema import json_schema
    from kvpolicy.language.shipped_policies import shipped

    path = Path(args.file)
    name = args.name or usable_name(path.stem)
    if not re.fullmatch(NAME_PATTERN, name):
        print(
            f"kvpolicy init: '{name}' is not a usable name (letters, digits, '.', '_' and '-', at most 63)",
            file=sys.stderr,
        )
        return EXIT_USAGE
    if (shadowed := args.file.replace("-", "_")) in shipped():
        print(
            f"kvpolicy init: {args.file} is a shipped policy, which a file of that name would hide: "
            f"write {args.file}.yaml, or start from it with `extends: builtin:{shadowed}`",
            file=sys.stderr,
        )
        return EXIT_USAGE
    text = scaffold(name, args.file if args.file != "-" else "policy.yaml", with_tests=args.test)
    if args.file == "-":
        sys.stdout.write(text)
        return EXIT_OK
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        print(f"kvpolicy init: {path} exists and is not overwritten; give another file name", file=sys.stderr)
        return EXIT_ERROR
    except OSError as error:
        print(f"kvpolicy init: cannot write {path}: {error.strerror}", file=sys.stderr)
        return EXIT_USAGE
    schema = path.parent / _SCHEMA_FILE
    if not schema.exists():
        schema.write_text(json.dumps(json_schema(), indent=2) + "\n", encoding="utf-8")
        print(f"wrote {path}, and {schema} for your editor")
    else:
        print(f"wrote {path}")
    return EXIT_OK


def scaffold(name: str, file: str, *, with_tests: bool = False) -> str:
    """The commented policy, with the modeline that yaml-language-server reads."""
    return (_TEMPLATE + (_TESTS if with_tests else "")).format(schema=_SCHEMA_FILE, name=name, file=file)
