"""One stream of requests through a scheduler, with the victim digest after every eviction call.

    python replay.py MODEL POLICY record STREAM.json     # runs the stream by this machine's clock, and writes it down
    python replay.py MODEL POLICY replay STREAM.json [CHANGED]

`replay` gives every request the arrival stamp that was recorded, as the other ranks of a server get it, whatever the
clock of its own process says. Afterwards the first part is run again, with request number CHANGED one page longer if
that is given. Requests go one at a time and scheduling does not overlap with the model, so that every process makes the
same batches: real ranks are kept in step by their broadcast, two servers are not.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from subject import Subject, tell

POOL_TOKENS, PAGE = 1024, 16
REQUESTS, AGAIN = 220, 60


def make_stream() -> list[dict[str, Any]]:
    """Conversations that come back, tenants, priorities, chunks and flushes."""
    rng = random.Random(7)
    stems = [[rng.randrange(3, 250) for _ in range(rng.randrange(16, 160))] for _ in range(24)]
    stream = []
    for number in range(REQUESTS):
        stem = stems[min(int(rng.expovariate(0.12)), len(stems) - 1)]
        own = [rng.randrange(3, 250) for _ in range(rng.randrange(0, 120))]
        priority, salt = rng.choice([None, None, -1, 1, 9]), rng.choice([None, "gold", "noisy"])
        new, flush = rng.randrange(1, 4), number == 150
        stream.append({"tokens": stem + own + [5], "new": new, "priority": priority, "salt": salt, "flush": flush})
    return stream


class Stamps:
    """Stands in for the stamping of this process's clock: notes the stamps, or gives the recorded ones."""

    def __init__(self) -> None:
        from kvpolicy_sglang import cache_time

        self.stock = cache_time.stamp
        self.next_ms: int | None = None
        self.last_ms = 0
        cache_time.stamp = self

    def __call__(self, tokenized: Any) -> None:
        from kvpolicy_sglang.cache_time import ARRIVAL_KEY

        self.stock(tokenized, self.next_ms)
        self.last_ms = tokenized.sampling_params.custom_params[ARRIVAL_KEY]


def send(subject: Subject, stamps: Stamps, item: dict[str, Any]) -> None:
    if item["flush"]:
        subject.flush()
    stamps.next_ms = item.get("arrival_ms")
    subject.generate(item["tokens"], item["new"], priority=item["priority"], cache_salt=item["salt"])
    item["arrival_ms"] = stamps.last_ms


def main() -> None:
    model, policy, mode, file, *changed = sys.argv[1:]
    stream = make_stream() if mode == "record" else json.loads(Path(file).read_text())
    stamps = Stamps()
    with Subject(model, policy, POOL_TOKENS, chunked_prefill_size=64, disable_overlap_schedule=True) as subject:
        for item in stream:
            send(subject, stamps, item)
        state = subject.state()
        if mode == "record":
            Path(file).write_text(json.dumps(stream))
        again = [dict(item) for item in stream[:AGAIN]]
        if changed:
            number = int(changed[0])
            again[number]["tokens"] += [4] * PAGE
        for item in again:
            send(subject, stamps, item)
        tell({"digests": state["witness"]["digests"], "with again": subject.witness()["digests"], "state": state})


if __name__ == "__main__":
    main()
