"""Makes examples/from_log/server.log.gz: what a real SGLang logs of a small day at a help desk.

    python3.11 -m tools.request_log

The server is unmodified, runs on this CPU without a policy, and serves a random two-layer model whose tokens are bytes:
its answers mean nothing, its log is like any other's. Five desks, each with instructions of its own; customers come
back for up to three more questions; in between a batch job files notes that nobody asks for again.
"""

from __future__ import annotations

import gzip
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.environment import CHECKOUT, Environment, load_pins, say
from tools.models import TINY, ensure_model
from tools.server import run_server

TARGET = CHECKOUT / "examples/from_log/server.log.gz"
FLAGS = ("--log-requests", "--log-requests-level", "3", "--log-requests-format", "json", "--max-total-tokens", "8192")
DESKS = ("Lindholm", "Aland", "Visby", "Kotka", "Umea")
REQUESTS = 480
MAX_TURNS = 4
ANSWER_TOKENS = 24
QUESTIONS = (
    "When does the ferry leave?", "What does a ticket cost?", "Is the harbour office open today?",
    "Where is the lost property room?", "May I take my dog along?", "How long does the crossing take?",
)  # fmt: skip


def words_of(text: str, draw: random.Random, characters: int) -> str:
    """A piece of real text from a random place."""
    start = draw.randrange(len(text) - characters)
    return " ".join(text[start : start + characters].split())


def day(seed: int) -> Iterator[list[dict[str, str]]]:
    """The requests in order, as chat messages."""
    draw = random.Random(seed)
    text = (CHECKOUT / "LICENSE").read_text()
    desks = [f"You answer for desk {name}. {words_of(text, draw, 800)}" for name in DESKS]
    talks: list[list[dict[str, str]]] = []
    for number in range(REQUESTS):
        kind = draw.random()
        if kind < 0.4:
            note = f"{number}: file this note. {words_of(text, draw, draw.randrange(500, 900))}"
            yield [{"role": "user", "content": note}]
            continue
        if kind < 0.65 or not talks:  # the first desks are asked more often than the last
            desk = min(int(draw.expovariate(0.6)), len(desks) - 1)
            talk = [{"role": "system", "content": desks[desk]}]
            talks.append(talk)
        else:
            talk = draw.choice(talks)
        asked = f"Customer {number}: {draw.choice(QUESTIONS)} {words_of(text, draw, 60)}"
        talk.append({"role": "user", "content": asked})
        yield talk
        talk.append({"role": "assistant", "content": words_of(text, draw, 40)})
        if len(talk) > 2 * MAX_TURNS:
            talks.remove(talk)


def main() -> int:
    version = load_pins()["sglang"]["demo"]
    environment = Environment.default()
    environment.ensure([version], test_tools=False)
    model = ensure_model(environment, TINY)
    with tempfile.TemporaryDirectory(prefix="kvpolicy-log-") as folder:
        log = Path(folder) / "server.log"
        say(f"starting SGLang {version} ...")
        with run_server(environment.sglang(version), model, *FLAGS, log_path=log, fresh=True) as server:
            for number, messages in enumerate(day(seed=7)):
                server.chat(messages, max_tokens=ANSWER_TOKENS, ignore_eos=True)
                if number % 50 == 0:
                    say(f"{number} requests")
        lines = [line for line in log.read_text(errors="replace").splitlines() if '"event": "request.' in line]
    data = "".join(f"{line}\n" for line in lines).encode()
    TARGET.write_bytes(gzip.compress(data, 9, mtime=0))
    say(f"{len(lines)} lines, {len(data):,} bytes; {TARGET.stat().st_size:,} compressed: {TARGET.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
