"""Run the tests of a policy: every event in turn, every expectation where it stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from kvpolicy.language import LoadResult
from kvpolicy.language.policy_tests import UNPROTECTED, Event, Expectation, PolicyTest
from kvpolicy.language.spans import source_index
from kvpolicy.language.tree import Scalar
from kvpolicy.language.validate import find
from kvpolicy.policytest.cache import Path, SmallCache, Violation
from kvpolicy.replay.simulator import Eviction

__all__ = ["Failure", "Outcome", "run_test", "run_tests"]


@dataclass(frozen=True, slots=True)
class Failure:
    """One expectation that does not hold. ``after`` is the last event before it."""

    line: int
    col: int
    after: str
    expected: str
    got: str


@dataclass(slots=True)
class Outcome:
    """One test, run one way."""

    file: str
    line: int
    name: str
    granularity: str
    failures: list[Failure] = field(default_factory=list)


def run_tests(result: LoadResult, eviction: Eviction) -> Iterator[Outcome]:
    """All tests of a checked policy, each by its granularities."""
    assert result.policy is not None
    for number, test in enumerate(result.policy.tests):
        for granularity in test.granularities:
            outcome = Outcome(result.file, result.locate(("tests", number, "name"))[1], test.name, granularity)
            places = [_Place(result, ("tests", number, "steps", step)) for step in range(len(test.steps))]
            outcome.failures = list(run_test(test, eviction, granularity, places))
            yield outcome


class _Place:
    """Where a step stands in the file."""

    def __init__(self, result: LoadResult, path: tuple[str | int, ...]) -> None:
        self._result, self._path = result, path

    def of(self, *below: str | int, offset: int = 0) -> tuple[int, int]:
        """(line, column) of a part of the step."""
        assert self._result.tree is not None
        node, key, _ = find(self._result.tree, (*self._path, *below))
        if below and key is not None:
            node = key
        index = source_index(node, offset) if offset and isinstance(node, Scalar) else node.index
        return node.source.position(index)


def run_test(test: PolicyTest, eviction: Eviction, granularity: str, places: list[_Place]) -> Iterator[Failure]:
    """What does not hold. A broken invariant ends the test."""
    cache = _fresh(test, eviction, granularity)
    last = "nothing yet"
    done: list[tuple[Event, int]] = []  # with their lines
    for step, place in zip(test.steps, places, strict=True):
        line, col = place.of()
        try:
            if isinstance(step, Event):
                last = step.text
                done.append((step, line))
                hit = cache.run(step)
                if step.hit is not None and (wrong := _hit(step, hit, test.lengths())) is not None:
                    line, col = place.of(offset=step.hit_offset)
                    yield Failure(line, col, last, wrong, f"hit {hit} tokens{_why(cache, step, done)}")
            else:
                assert isinstance(step, Expectation)
                for where, expected, got in _Expecting(test, eviction, granularity, cache, done).check(step):
                    yield Failure(*place.of(*where), last, expected, got)
        except Violation as violation:
            yield Failure(line, col, last, "the invariants of a cache hold", str(violation))
            return
    try:
        for _ in cache.drain():
            pass
    except Violation as violation:
        yield Failure(*places[-1].of(), last, "everything can be evicted at the end", str(violation))


def _fresh(test: PolicyTest, eviction: Eviction, granularity: str) -> SmallCache:
    return SmallCache(eviction, test.pool, test.page_size, granularity, test.lengths())


def _hit(event: Event, hit: int, lengths: dict[str, int]) -> str | None:
    """What was expected instead, if it was."""
    if isinstance(event.hit, int):
        return None if hit == event.hit else f"hit {event.hit} tokens"
    names = [segment.name for segment in event.path]
    if event.hit == "none":
        names = []
    elif event.hit != "all":
        names = names[: len(names) - names[::-1].index(str(event.hit))]
    tokens = sum(lengths[name] for name in names)
    return None if hit == tokens else f"hit {tokens} tokens ({event.hit})"


def _why(cache: SmallCache, event: Event, done: list[tuple[Event, int]]) -> str:
    """The last eviction, before this event, of something on the event's path."""
    names = tuple(segment.name for segment in event.path)
    for victim in reversed(cache.victims):
        if victim.during < len(done) and victim.path == names[: len(victim.path)]:
            return f"; {_lost(victim.path, victim.rule, done[victim.during - 1])}"
    return ""


def _lost(path: Path, rule: str, during: tuple[Event, int]) -> str:
    event, line = during
    of = "unprotected" if rule == UNPROTECTED else f"protected by {rule}"
    return f"{_shown(path)} was evicted, {of}, by `{event.text}` (line {line})"


def _shown(path: Path) -> str:
    return "/".join(path)


class _Expecting:
    """Compares one expectation with the cache: (where in the step, expected, got)."""

    def __init__(
        self, test: PolicyTest, eviction: Eviction, granularity: str, cache: SmallCache, done: list[tuple[Event, int]]
    ) -> None:
        self._test, self._eviction, self._granularity = test, eviction, granularity
        self._cache, self._done = cache, done

    def check(self, step: Expectation) -> Iterator[tuple[tuple[str | int, ...], str, str]]:
        cache = self._cache
        for index, path in enumerate(step.resident):
            if not cache.is_complete(path):
                yield ("resident", index), f"{_shown(path)} is in the cache", self._state(path)
        for index, path in enumerate(step.evicted):
            if path not in cache.held or not cache.is_gone(path):
                yield ("evicted", index), f"{_shown(path)} was evicted", self._state(path)
        for index, path in enumerate(step.absent):
            if not cache.is_gone(path):
                yield ("absent", index), f"{_shown(path)} is not in the cache", self._state(path)
        for name, rule in step.protected.items():
            path = tuple(part.partition(":")[0] for part in name.split("/"))
            if cache.rules_of(path) != {rule}:
                yield ("protected", name), f"{_shown(path)} is protected by {rule}", self._protection(path)
        for index, path in enumerate(step.unprotected):
            if cache.rules_of(path) != {UNPROTECTED}:
                expected = f"{_shown(path)} is in the cache and unprotected"
                yield ("unprotected", index), expected, self._protection(path)
        if step.next:
            order = self._next(len(step.next))
            if order != list(step.next):
                yield ("next",), f"next to go: {_listed(step.next)}", f"next to go: {_listed(order)}"
        lost, held = cache.evicted_tokens(), cache.tenant_tokens()
        for name, amount in step.evicted_tokens.items():
            if not amount.holds(lost.get(name, 0)):
                whose = "unprotected tokens" if name == UNPROTECTED else f"tokens protected by {name}"
                yield ("evicted_tokens", name), f"{amount} {whose} evicted", str(lost.get(name, 0))
        for name, amount in step.tenant_tokens.items():
            if not amount.holds(held.get(name, 0)):
                yield ("tenant_tokens", name), f"{name} holds {amount} tokens", str(held.get(name, 0))
        if step.resident_tokens is not None and not step.resident_tokens.holds(tokens := sum(held.values())):
            yield ("resident_tokens",), f"{step.resident_tokens} tokens in the cache", str(tokens)

    def _state(self, path: Path) -> str:
        cache = self._cache
        tokens = sum(self._test.lengths()[name] for name in path)
        there = cache.resident_tokens(path)
        if cache.is_complete(path):
            return f"{_shown(path)} is in the cache"
        text = f"{there} of its {tokens} tokens are"
        if path not in cache.held:
            return f"{text}; it was never there as a whole"
        for victim in reversed(cache.victims):
            shared = min(len(path), len(victim.path))
            if victim.path[:shared] == path[:shared]:
                return f"{text}; {_lost(victim.path, victim.rule, self._done[victim.during - 1])}"
        return text

    def _protection(self, path: Path) -> str:
        rules = self._cache.rules_of(path)
        if not rules:
            return self._state(path)
        return "unprotected" if rules == {UNPROTECTED} else f"protected by {', '.join(sorted(rules))}"

    def _next(self, count: int) -> list[Path]:
        """The next victims, parts of one segment counted once. Evicting for real on a copy: the same events again."""
        copy = _fresh(self._test, self._eviction, self._granularity)
        for event, _ in self._done:
            copy.run(event)
        found: list[Path] = []
        for path, _ in groupby(victim.path for victim in copy.drain()):
            found.append(("flood",) if path[-1] == "flood" else path)
            if len(found) > 1 and found[-2] == found[-1]:
                found.pop()
            elif len(found) > count:
                return found[:count]
        return found


def _listed(paths: tuple[Path, ...] | list[Path]) -> str:
    return ", ".join(_shown(path) for path in paths) or "nothing"
