"""A real server under everything at once: a load that does not fit its pool, swaps, bad policies, clients that go away.
In rounds; after each the server comes to rest, and is looked at.

    ./test -- tests/soak -m soak                      # half an hour on each engine, and each fault that must be seen
    ./test -- tests/soak -m soak -k "half and vllm"   # KVPOLICY_SOAK_S=600: ten minutes of it
"""

from __future__ import annotations

import json
import random
import socket
import statistics
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.live.asking import apply, post, rollback, tokens
from tests.programs import with_path
from tools.environment import EngineEnv
from tools.server import Server

__all__ = ["POOL_TOKENS", "Checkpoint", "Report", "Soak", "documents", "under_soak"]

POOL_TOKENS = 1024
#: Of prompts and their outputs that are asked for again and again: more than twice the pool.
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 24, 100, 3
#: Growth of the memory of all processes, from the first third to the last, that counts as flat.
FLAT_SHARE, FLAT_BYTES = 0.02, 24 << 20
REST_S = 20.0
#: At most so long until the next act, for a policy to have evicted something when it is looked at.
PAUSE_S = 0.5
#: So many prompts are looked at, and those taken at which the two likeliest tokens are farthest apart: where they are
#: near, which of them comes depends on what else is in the batch, in a server without a policy too.
CANDIDATES = 36

HEAD = {"apiVersion": "kvpolicy/v1", "kind": "KVPolicy"}
RULES = [
    {"name": "kept", "match": "request.priority == 1", "retain": {"weight": 8, "ttl": "2s", "budget": "30%"}},
    {"name": "hit", "match": "hits >= 1", "retain": {"weight": 2, "budget": "20%"}},
]
EVICTIONS: dict[str, dict[str, Any]] = {
    "plain": {"policy": "lru"},
    "rules": {"policy": "lru", "rules": RULES},
    "held": {
        "policy": "lru",
        "rules": [{"name": "all", "match": "hits >= 0", "retain": {"weight": 2, "budget": "100%"}}],
    },
    "tenants": {"policy": "lru", "tenants": {"by": "cache_salt", "floor": "5%", "cap": "60%"}},
    "score": {"score": "log1p(hits) / (1 + idle_requests)", "rules": RULES[:1]},
    "gdsf": {"policy": "gdsf"},
    "sieve": {"policy": "sieve", "rules": RULES[1:]},
    "adaptive": {"policy": "adaptive"},
}


def documents(page_size: int) -> dict[str, dict[str, Any]]:
    """Policies that can take each other's place in a running server, flattened."""
    return {
        name: {**HEAD, "metadata": {"name": name}, "cache": {"page_size": page_size}, "eviction": eviction}
        for name, eviction in EVICTIONS.items()
    }


def under_soak(engine: EngineEnv, folder: Path, fault: str = "") -> EngineEnv:
    """`engine` whose servers have the witness, and say their policy to this machine's callers."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text("import witness\nwitness.install()\n")
    here = Path(__file__).resolve().parent
    return with_path(engine, folder, here, KVPOLICY_APPLY="loopback", KVPOLICY_WHY="1", KVPOLICY_SOAK_FAULT=fault)


@dataclass(frozen=True)
class Checkpoint:
    """The server at rest."""

    rss_bytes: int  # of all its processes
    used_tokens: int  # of the pool, though nothing runs
    pool_tokens: int
    remembered: int
    most_remembered: int
    fallbacks: dict[str, int]
    violation: str | None
    live_state: str
    is_alive: bool = True


@dataclass
class Report:
    """What happened, and what was found."""

    did: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    wrong: list[str] = field(default_factory=list)  # outputs and answers that are not as expected
    broken: list[str] = field(default_factory=list)  # invariants, between two acts
    checkpoints: list[Checkpoint] = field(default_factory=list)

    def problems(self, wrong_before: int = 0) -> list[str]:
        """Empty: nothing is lost, and nothing leaks. So many outputs may differ as differ without swaps."""
        found = list(self.wrong) if len(self.wrong) > wrong_before else []
        found += self.broken
        for at, point in enumerate(self.checkpoints):
            for problem in _lost(point):
                found.append(f"round {at}: {problem}")
        if leak := leaked_bytes([point.rss_bytes for point in self.checkpoints]):
            found.append(f"memory grew by {leak >> 20} MiB")
        return found


def _lost(point: Checkpoint) -> list[str]:
    found = []
    if not point.is_alive:
        return ["the server ended"]
    if point.used_tokens:
        found.append(f"{point.used_tokens} tokens of the pool are in use while nothing runs")
    if point.remembered > point.most_remembered:
        found.append(f"{point.remembered} evictions are remembered, at most {point.most_remembered} may be")
    if point.fallbacks:
        found.append(f"calls of the policy failed: {point.fallbacks}")
    if point.violation:
        found.append(f"an index is broken: {point.violation}")
    if point.live_state == "preparing":
        found.append("a swap was left half done")
    return found


def leaked_bytes(rss_bytes: Sequence[int]) -> int:
    """How much more there is in the last third than in the second, beyond what counts as flat. The first warms up."""
    third = len(rss_bytes) // 3
    if third < 2:
        return 0
    middle = statistics.median(rss_bytes[third : 2 * third])
    growth = int(statistics.median(rss_bytes[2 * third :]) - middle)
    return growth if growth > max(FLAT_BYTES, FLAT_SHARE * middle) else 0


class Soak:
    """Drives one server. Not for several threads."""

    def __init__(self, server: Server, engine: str, page_size: int, seed: int = 1) -> None:
        self.server, self.engine = server, engine
        self.documents = documents(page_size)
        self.rng = random.Random(seed)
        self.prompts: list[list[int]] = []
        self.is_ever_off = True  # which forgets what was evicted
        self.report = Report()
        self.expected: list[Any] = []
        self._stop = threading.Event()
        self._to_do: list[Callable[[], None]] = []

    def learn(self) -> None:
        """What is answered while nothing else happens."""
        self.prompts = sorted(map(self._prompt, range(CANDIDATES)), key=self._margin)[-PROMPTS:]
        self.expected = [self._ask(at) for at in range(PROMPTS)]

    def run(self, seconds: float, round_s: float) -> Report:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.server.process.poll() is None:
            until_s = min(deadline, time.monotonic() + round_s)
            with self._under_load():
                while time.monotonic() < until_s:
                    self._act()
                    self._look()
                    time.sleep(self.rng.uniform(0, PAUSE_S))
            self.report.checkpoints.append(self.at_rest())
        return self.report

    def load(self, seconds: float) -> Report:
        """Nothing but the load: what differs without swaps, and with a server without a policy too."""
        with self._under_load():
            time.sleep(seconds)
        return self.report

    def swaps(self, count: int, seconds: float) -> tuple[float, list[float]]:
        """So many swaps under load, evenly over the time if they fit, each with a look at the indexes; the seconds that
        all took, and each alone."""
        start_s, each_s = time.monotonic(), []
        with self._under_load():
            for at in range(count):
                asked_s = time.monotonic()
                self._swap()
                each_s.append(time.monotonic() - asked_s)
                self._look()
                time.sleep(max(0.0, start_s + (at + 1) * seconds / count - time.monotonic()))
            took_s = time.monotonic() - start_s
        self.report.checkpoints.append(self.at_rest())
        return took_s, each_s

    # -- one round --

    @contextmanager
    def _under_load(self) -> Iterator[None]:
        self._stop.clear()
        threads = [threading.Thread(target=self._load, args=(number,)) for number in range(3)]
        threads += [threading.Thread(target=self._leave_early)]
        for thread in threads:
            thread.start()
        try:
            yield
        except OSError as error:
            self.report.wrong.append(f"the server did not answer: {error}")
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def _load(self, number: int) -> None:
        rng = random.Random(self.rng.random() + number)
        while not self._stop.is_set():
            at = rng.randrange(PROMPTS)
            try:
                output = self._ask(at, rng.choice(["a", "b", None]), rng.choice([0, 1]))
            except OSError as error:
                if self.server.process.poll() is None:
                    self.report.wrong.append(f"a request failed: {error}")
                return
            self.report.answers += 1
            if output != self.expected[at]:
                self.report.wrong.append(f"prompt {at}: {output} instead of {self.expected[at]}")

    def _leave_early(self) -> None:
        """Requests that fill the pool, whose clients go before they are answered."""
        rng = random.Random(self.rng.random())
        while not self._stop.is_set():
            path, body = self._long_request(rng.randrange(1 << 30))
            with suppress(OSError):
                self._cut_off(path, body, rng.uniform(0.05, 0.4))
            self.report.did["left a request"] += 1

    def _act(self) -> None:
        """One change of the policy, or something that must not change it."""
        if not self._to_do:
            self._to_do = [self._swap] * 9 + [self._back] * 3 + [self._off] * 2 + [self._bad] * 3 + [self._killed] * 3
            self.rng.shuffle(self._to_do)
            self._to_do[-6:] = [self._stale, self._killed, self._bad, self._off, self._back, self._swap]
        act = self._to_do.pop()
        if act != self._off or self.is_ever_off:
            act()

    def _look(self) -> None:
        """At the indexes, while requests run."""
        if broken := self.server.status()["soak"]["violation"]:
            self.report.broken.append(f"an index is broken: {broken}")

    def _swap(self) -> None:
        name = self.rng.choice(list(self.documents))
        self._expect("swap", apply(self.server, self.documents[name]), 200)

    def _back(self) -> None:
        if self.report.did["swap"]:
            self._expect("rollback", rollback(self.server), 200)

    def _off(self) -> None:
        self._expect("off", post(self.server, "/kvpolicy/apply", {"off": True}), 200)

    def _bad(self) -> None:
        """None of these may be more than an answer."""
        plain = self.documents["plain"]
        eviction = plain["eviction"]
        body, status = self.rng.choice(
            (
                (self.rng.randbytes(300), 400),
                (b"{" * 50_000, 400),
                (b"[]", 400),
                ({"policy": {**plain, "extends": "/etc/passwd"}}, 400),
                ({"policy": {**plain, "eviction": {"policy": "nonsense"}}}, 400),
                ({"policy": {**plain, "eviction": {**eviction, "score": "hits +"}}}, 400),
                ({"policy": {**plain, "cache": {"page_size": 64}}}, 422),
                (b" " * 300_000, 413),
            )
        )
        self._unchanged("bad policy", body, status)

    def _stale(self) -> None:
        self._unchanged("stale digest", {"policy": self.documents["score"], "expect_digest": "0" * 12}, 409)

    def _unchanged(self, what: str, body: Any, status: int) -> None:
        digest = self.server.status()["digest"]
        self._expect(what, post(self.server, "/kvpolicy/apply", body), status)
        if self.server.status()["digest"] != digest:
            self.report.wrong.append(f"{what} changed the policy")

    def _killed(self) -> None:
        """The client of a swap goes away: the old policy stays, or the new one came; nothing between."""
        body = {"policy": self.documents[self.rng.choice(list(self.documents))], "source": "killed"}
        self._cut_off("/kvpolicy/apply", body, self.rng.uniform(0, 0.03))
        self.report.did["killed a swap"] += 1
        deadline = time.monotonic() + REST_S
        while post(self.server, "/kvpolicy/apply", {"off": True, "expect_digest": "0" * 12})[1].get("error", "") == (
            "another change is under way"
        ):
            if time.monotonic() > deadline:
                self.report.wrong.append("a swap whose client went away never ends")
                return
            time.sleep(0.01)

    def _expect(self, what: str, answer: tuple[int, dict[str, Any]], status: int) -> None:
        self.report.did[what] += 1
        if answer[0] != status:
            self.report.wrong.append(f"{what}: {answer[0]} instead of {status}: {json.dumps(answer[1])[:300]}")

    # -- at rest --

    def at_rest(self) -> Checkpoint:
        """The server, once nothing runs on it."""
        deadline = time.monotonic() + REST_S
        try:
            while True:
                block = self.server.status()
                occupancy = block.get("occupancy") or {"used_tokens": 0, "pool_tokens": 0}
                if occupancy["used_tokens"] == 0 or time.monotonic() > deadline:
                    break
                time.sleep(0.1)
        except (OSError, urllib.error.URLError):
            return Checkpoint(0, 0, 0, 0, 0, {}, None, "", is_alive=False)
        why = block.get("why") or {"remembered_units": 0, "most_units": 0}
        return Checkpoint(
            rss_bytes(self.server.process.pid),
            occupancy["used_tokens"],
            occupancy["pool_tokens"],
            why["remembered_units"],
            why["most_units"],
            block["fallbacks"],
            block["soak"]["violation"],
            block["live"]["state"],
        )

    # -- requests --

    def _prompt(self, seed: int) -> list[int]:
        """Some begin alike."""
        head = tokens(1000 + seed % 5, PROMPT_TOKENS // 2)
        return [*head, *tokens(seed, PROMPT_TOKENS - len(head))]

    def _ask(self, at: int, salt: str | None = None, priority: int = 0) -> Any:
        request: dict[str, Any] = {} if salt is None else {"cache_salt": salt}
        if self.engine == "vllm":
            request["vllm_xargs"] = {"kvpolicy_priority": priority}
        else:
            request["priority"] = priority
        return self.server.generate(self.prompts[at], NEW_TOKENS, **request)["output_ids"]

    def _margin(self, prompt: list[int]) -> float:
        """How far apart the two likeliest tokens are, where they are nearest."""
        if self.engine == "vllm":
            body = {"model": "default", "prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0, "logprobs": 2}
            answer = self.server._request("/v1/completions", {**body, "ignore_eos": True})
            tops = [sorted(top.values())[-2:] for top in answer["choices"][0]["logprobs"]["top_logprobs"]]
        else:
            answer = self.server.generate(prompt, NEW_TOKENS, return_logprob=True, top_logprobs_num=2)
            tops = [sorted(each[0] for each in top)[-2:] for top in answer["meta_info"]["output_top_logprobs"]]
        return min(top[-1] - top[0] for top in tops)

    def _long_request(self, seed: int) -> tuple[str, dict[str, Any]]:
        prompt = tokens(seed, POOL_TOKENS // 4)
        if self.engine == "vllm":
            body = {"model": "default", "prompt": prompt, "max_tokens": 200, "ignore_eos": True, "stream": True}
            return "/v1/completions", body
        sampling = {"max_new_tokens": 200, "ignore_eos": True}
        return "/generate", {"input_ids": prompt, "sampling_params": sampling, "stream": True}

    def _cut_off(self, path: str, body: Any, after_s: float) -> None:
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=30) as connection:
            connection.sendall(head.encode() + data)
            time.sleep(after_s)


def rss_bytes(group: int) -> int:
    """What the processes of that group hold in memory, pages that they share counted for each."""
    total = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == group:
                    total += int(fields[21]) * 4096
    return total
