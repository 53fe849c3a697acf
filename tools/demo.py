"""Shows a policy at work in a real SGLang or vLLM on this CPU: `./demo [--engine vllm] [--policy FILE]`.

Installs what is missing, starts the server with the policy, asks real questions of a real 135M-parameter model, floods
the pool with one-off prompts between them, and prints what was cached, what was evicted, and why.
Needs Python 3.11 with pip, nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tools.environment import CHECKOUT, Environment, load_pins, say
from tools.models import REAL, ensure_model
from tools.server import VLLM_BLOCK_TOKENS, Server, run_server

POOL_TOKENS = 768  # small, so that a few prompts fill it
FLOOD_POOLS = 3  # how many times over the one-off prompts fill it


class Engine(NamedTuple):
    """One engine as the demo starts it."""

    title: str
    flags: tuple[str, ...]
    status: str  # where its server tells of the policy


ENGINES = {
    "sglang": Engine(
        "SGLang",
        ("--max-total-tokens", str(POOL_TOKENS), "--enable-cache-report", "--log-level", "warning"),
        "block kvpolicy of /server_info",
    ),
    "vllm": Engine(
        "vLLM",
        ("--num-gpu-blocks-override", str(POOL_TOKENS // VLLM_BLOCK_TOKENS + 1), "--max-model-len", "512"),
        "GET /kvpolicy",
    ),
}

SYSTEM = """You are the assistant of the harbour office of Lindholm. Answer in one sentence, from these facts only.
The ferry to Aland leaves at 8 in the morning and at 6 in the evening. The crossing takes 3 hours.
A ticket costs 20 euros, and children travel free. Dogs are allowed on deck.
The harbour office is open from 7 to 19. The lost property room is next to pier 2."""

QUESTIONS = (
    "How much does a ticket cost?",
    "How long does the crossing take?",
    "Where is the lost property room?",
)


def one_off_prompts() -> Iterator[str]:
    """Real text of this repository in pieces of about 200 tokens; no two begin alike, so none is another's prefix."""
    words = (CHECKOUT / "LICENSE").read_text().split()
    size = 150
    for number in itertools.count(1):
        start = number * size % len(words)
        yield f"{number}. note to be filed: {' '.join(words[start : start + size])}\nIn short:"


class Demo:
    """One conversation with one server; every answer becomes a line of the table."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def ask(self, question: str) -> int:
        """One chat turn; the cached tokens of its prompt."""
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        answer = self.server.chat(messages, max_tokens=24)
        usage = answer["usage"]
        cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))
        text = " ".join(answer["choices"][0]["message"]["content"].split())
        say(f"{usage['prompt_tokens']:>5} prompt tokens, {cached:>4} from the cache   {question} -> {text}")
        return cached

    def flood(self) -> int:
        """One-off prompts until they have filled the pool FLOOD_POOLS times; their tokens."""
        tokens = 0
        prompts = one_off_prompts()
        while tokens < FLOOD_POOLS * POOL_TOKENS:
            answer = self.server.generate(next(prompts), max_new_tokens=1)
            tokens += answer["meta_info"]["prompt_tokens"]
            say(f"{answer['meta_info']['prompt_tokens']:>5} prompt tokens, {answer['meta_info']['cached_tokens']:>4} "
                f"from the cache   a one-off prompt ({tokens} tokens so far)")  # fmt: skip
        return tokens


def explain(status: dict[str, Any], cached: int, where: str) -> None:
    """What the server itself says of its policy, and where it says so."""
    print(f"\nThe server's own account ({where}):")
    print(f"  policy      {status['name']} ({status['source']})")
    print(f"  digest      {status['digest'][:16]}, the same in every process")
    print(f"  core        {status['core']} ({status['core_reason']})")
    for path, setting in status["settings"].items():
        print(f"  {path}: asked for {setting['requested']}, runs {setting['effective']} ({setting['origin']})")
    units, tokens = status["evictions"], status["evicted_tokens"]
    print(f"  evicted     {sum(tokens.values())} tokens in {sum(units.values())} units; ", end="")
    print(f"{status['evict_calls']} calls took {status['evict_seconds'] * 1000:.1f} ms")
    for rule, count in sorted(units.items()):
        why = "under no rule: these go first" if rule == "none" else f"protected by rule {rule}: nothing else was left"
        print(f"              {count} units, {tokens[rule]} tokens {why}")
    print(f"  fallbacks   {status['fallbacks'] or 'none'}")
    if cached:
        print(
            f"\nThe flood was {FLOOD_POOLS} times the pool, and {cached} tokens of the system prompt were still there."
        )
    else:
        print(f"\nThe flood was {FLOOD_POOLS} times the pool, and nothing of the system prompt survived it.")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=ENGINES, default="sglang", help="(default: %(default)s)")
    parser.add_argument("--policy", default="policies/long_context.yaml", help="a policy file (default: %(default)s)")
    arguments = parser.parse_args()
    policy, engine = Path(arguments.policy), ENGINES[arguments.engine]
    if not policy.exists():
        parser.error(f"{policy} does not exist")
    version = load_pins()[arguments.engine]["demo"]
    environment = Environment.default()
    if arguments.engine == "vllm":
        environment.ensure([], vllm_versions=[version], test_tools=False)
        started = environment.vllm(version, {"VLLM_LOGGING_LEVEL": "WARNING"})
    else:
        environment.ensure([version], vllm_versions=[], test_tools=False)
        started = environment.sglang(version)
    model = ensure_model(environment, REAL)

    say(f"starting {engine.title} {version} on this CPU with --kv-policy {policy}, a pool of {POOL_TOKENS} tokens ...")
    with tempfile.TemporaryDirectory(prefix="kvpolicy-demo-") as folder:
        log = Path(folder) / "server.log"
        with run_server(started, model, *engine.flags, policy=policy, log_path=log, fresh=True) as server:
            say(f"ready at {server.url}")
            demo = Demo(server)
            demo.ask(QUESTIONS[0])
            demo.ask(QUESTIONS[1])
            demo.flood()
            cached = demo.ask(QUESTIONS[2])
            explain(server.status(), cached, engine.status)
            say("stopping the server ...")
        say("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
