"""What ``policy: reuse_rate`` means, by brute force: every wait kept as a row, every rate from its definition."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor, log2
from typing import Any

from tree import Node

from kvpolicy.eviction import PolicyClock

BUCKETS, TICKS, MIDDLE = 80, 8, 24


def bucket_of(ticks: int) -> int:
    """Quarter octaves from 4 ticks up, each octave cut into four equal parts."""
    octave = floor(log2(ticks + 4)) - 2
    return 4 * octave + ((ticks + 4) * 4 // 2 ** (octave + 2)) - 4


def start_of(bucket: int) -> int:
    return int((4 + bucket % 4) * 2 ** (bucket // 4) - 4)


def clipped(bucket: int) -> int:
    return max(0, min(bucket, BUCKETS - 1))


@dataclass(slots=True)
class Known:
    """One content: resident, or a ghost of ``tokens``."""

    key: int | None
    used: int
    pace: int
    uses: int = 0
    tokens: int = 0
    below: tuple[int, ...] = ()

    @property
    def klass(self) -> int:
        return 0 if self.uses == 0 else 1 if self.uses == 1 else 2 if self.uses < 4 else 3

    @property
    def shift(self) -> int:
        return (self.pace - MIDDLE * 16) * 3 // 80


class NaiveRate:
    def __init__(self, clock: PolicyClock) -> None:
        self.clock = clock
        self.known: dict[Node, Known] = {}
        self.ghosts: dict[int, Known] = {}
        self.rows: list[tuple[int, int, float, bool]] = []  # class, bucket, tokens, reused
        self.pace = MIDDLE * 16
        self.waits = self.tokens = self.most = 0
        self.look_at = 8
        self.learn()

    def key(self, node: Node) -> Any:
        known = self.known[node]
        age = bucket_of((self.clock.request_seq - known.used) * TICKS) - known.shift
        return (self.rates[known.klass][clipped(age)] * 2 ** (-known.shift / 4), node.kvp.touch_seq, node.kvp.order)

    def inserted(self, node: Node, key: int | None) -> None:
        ghost = None if key is None else self.ghosts.pop(key, None)
        if ghost is None:
            above = self.known.get(node.parent) if node.parent is not None else None
            self.known[node] = Known(key, self.clock.request_seq, self.pace if above is None else above.pace)
        else:
            self.known[node] = ghost
            self.use(ghost, min(ghost.tokens, node.size))
        self.most = max(self.most, len(self.known))

    def touched(self, node: Node) -> None:
        self.use(self.known[node], node.size)

    def split(self, upper: Node, lower: Node) -> None:
        known = self.known[lower]
        self.known[upper], self.known[lower] = known, replace(known, key=None)
        known.below = ()

    def removed(self, node: Node) -> None:
        """As a victim."""
        known = self.known.pop(node)
        known.tokens = node.size + sum(
            self.ghosts.pop(key).tokens for key in dict.fromkeys(known.below) if key in self.ghosts
        )
        known.below = ()
        if known.key is None:
            self.forget(known)
            return
        self.ghosts[known.key] = known
        if node.parent in self.known and len(self.known[node.parent].below) < 16:
            self.known[node.parent].below += (known.key,)
        if len(self.ghosts) > max(4 * self.most, 1024):
            self.forget(self.ghosts.pop(next(iter(self.ghosts))))

    def use(self, known: Known, tokens: int) -> None:
        wait = bucket_of((self.clock.request_seq - known.used) * TICKS)
        self.rows.append((known.klass, clipped(wait - known.shift), float(tokens), True))
        self.pace += (16 * wait - self.pace) // 100
        known.pace += (16 * wait - known.pace) * 5 // 16
        known.used = self.clock.request_seq
        known.uses += 1
        self.count(tokens)

    def forget(self, known: Known) -> None:
        self.rows.append((known.klass, self.age(known), float(known.tokens), False))
        self.count(known.tokens)

    def age(self, known: Known) -> int:
        return clipped(bucket_of((self.clock.request_seq - known.used) * TICKS) - known.shift)

    def count(self, tokens: int) -> None:
        self.waits += 1
        self.tokens += tokens
        if self.waits >= self.look_at:
            self.look_at = self.waits + min(self.waits, max(1024, len(self.ghosts)))
            self.learn()
            self.rows = [(klass, at, 0.97 * tokens, reused) for klass, at, tokens, reused in self.rows]

    def learn(self) -> None:
        ghosts = [(ghost.klass, self.age(ghost), float(ghost.tokens), False) for ghost in self.ghosts.values()]
        weight = 4 * max(self.tokens / max(self.waits, 1), 1.0)
        assumed = [min(0.3, (start_of(b + 1) - start_of(b)) / 4 / (start_of(b + 1) + 8)) for b in range(BUCKETS)]
        rows = self.rows + ghosts
        common = chances(rows, assumed, weight)
        self.rates = [rates(chances([r for r in rows if r[0] == klass], common, weight)) for klass in range(4)]


def chances(rows: list[tuple[int, int, float, bool]], assumed: list[float], weight: float) -> list[float]:
    found = []
    for at in range(BUCKETS):
        reused = sum(tokens for _, b, tokens, hit in rows if b == at and hit)
        waiting = reused + sum(tokens for _, b, tokens, _ in rows if b > at)
        waiting += sum(tokens / 2 for _, b, tokens, hit in rows if b == at and not hit)
        found.append((reused + weight * assumed[at]) / (waiting + weight))
    return found


def rates(chances: list[float]) -> list[float]:
    """For each start, the best end of all."""
    found = []
    for start in range(BUCKETS):
        waiting, hit, held, best = 1.0, 0.0, 0.0, 0.0
        for at in range(start, BUCKETS):
            hit += waiting * chances[at]
            held += waiting * (1 - chances[at] / 2) * (start_of(at + 1) - start_of(at)) / TICKS
            waiting *= 1 - chances[at]
            best = max(best, hit / held)
        found.append(best)
    return found
