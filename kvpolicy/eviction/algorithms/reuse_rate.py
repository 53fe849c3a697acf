"""Reuse rate: what promises the fewest hits for the time it is held goes first, learned from what came back when.

For a unit last used ``a`` requests ago, the best that holding it any longer can give is

    rate(a) = max over t > a of  P(reused within (a, t]) / E[requests held within (a, t]]

the Gittins index of its wait for reuse. Where reuse grows less likely with every request this is lru; where prompts
come back after 10 to 20 requests and seldom after 60, one that came a moment ago, or 60 requests ago, goes before one
that is due.

Sources: J. C. Gittins, "Bandit processes and dynamic allocation indices", JRSS B 41(2), 1979; hit density as what an
eviction should keep: N. Beckmann, H. Chen, A. Cidon, "LHD", NSDI 2018; chances under evictions, which only cut the
waiting short: E. L. Kaplan, P. Meier, "Nonparametric estimation from incomplete observations", JASA 53, 1958.

What is learned:

- *Classes* by number of uses so far (0, 1, 2-3, 4 and more): of what was used before, more is used again.
- *Pace*: each content's wait is measured against the smoothed length of its earlier waits, so that one distribution
  serves sessions that return every 10 and every 100 requests.
- *Ghosts*: what was evicted keeps its uses, pace and last use for a while under ``content_key``. If it returns, its
  wait counts like that of a hit. A unit takes over the ghosts below it when it is evicted: what returns, returns in one
  piece.

Ages are requests, not seconds: they need no carrier of time, and on the shipped traces they predict as well.

The units of a run share one :class:`Content`: they came together, new, and are used together. So they are counted as if
they came and went one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvpolicy.eviction.algorithms.spec import Algorithm
from kvpolicy.eviction.base import Handle, KeyChange, Order, PolicyClock, UnitMeta
from kvpolicy.eviction.sample import SampledOrder

__all__ = ["Content", "ReuseRate"]

CLASSES = 4
#: Waits fall into buckets of a quarter of an octave: bucket b starts at ``_start(b)`` ticks.
BUCKETS = 80
#: Ticks a request, so that short waits are told apart too.
_TICKS = 8
#: The bucket in which waits of typical length are put, and how much of a content's own pace counts: 3 in 5. The
#: smoothed pace is kept in 16ths of a bucket; a new wait counts 5 in 16.
_MIDDLE, _OWN, _WHOLE = 24, 3, 5
_FINE, _NEWEST = 16, 5
#: Units of evidence that the assumption made before anything is learned weighs.
_PRIOR_EVENTS = 4
#: Waits between two looks at what was learned: twice as many each time, up to this many or the number of ghosts.
_FIRST_LOOK, _LOOK = 8, 1024
#: What is left of the evidence at each look.
_KEPT = 0.97
#: Ghosts for each unit of the most that were ever resident at once, and at least.
_GHOSTS_A_UNIT, _MIN_GHOSTS = 4, 1024
#: Ghosts that a unit takes over at most: more stand on what many prompts share, and return each on its own.
_MOST_BELOW = 16


class Content:
    """What is known of one unit, of each unit of a run, or of what was evicted of it."""

    __slots__ = ("below", "drawn", "key", "klass", "pace", "shift", "tokens", "used_seq", "uses")

    def __init__(self, key: int | None, used_seq: int, pace: int) -> None:
        self.key = key
        self.used_seq = used_seq  # the request that used it last
        self.uses = 0  # after the first
        self.klass = 0
        self.pace = pace  # smoothed bucket of its waits, in 16ths
        self.shift = 0  # buckets by which its waits are longer than typical
        self.tokens = 0  # of a ghost
        self.below: list[int] | None = None  # keys of ghosts that stood on it; of a run, on its last unit
        #: Units of a run that are followed one by one, by creation order (see adaptive.py); ``None``: of no run.
        self.drawn: list[tuple[int, Content]] | None = None

    def twin(self, key: int | None) -> Content:
        """Another unit of the same uses."""
        other = Content(key, self.used_seq, self.pace)
        other.uses, other.klass, other.shift = self.uses, self.klass, self.shift
        return other

    def follow(self, other: Content) -> None:
        """Take over the uses of ``other``, of the same run."""
        self.used_seq, self.pace = other.used_seq, other.pace
        self.uses, self.klass, self.shift = other.uses, other.klass, other.shift


class ReuseRate(Algorithm):
    """``rates[class][bucket]``: hits a request, for a content of typical pace."""

    needs_metadata = True
    needs_content_key = True
    names_units = True
    change = KeyChange.DYNAMIC

    def __init__(self, clock: PolicyClock) -> None:
        super().__init__(clock)
        self.clear()

    def clear(self) -> None:
        self.rates: list[list[float]] = []
        self.reused = [[0.0] * BUCKETS for _ in range(CLASSES)]  # tokens, by class and wait
        self.lost = [[0.0] * BUCKETS for _ in range(CLASSES)]  # tokens never seen again, by class and last age known
        self.ghosts: dict[int, Content] = {}  # oldest eviction first
        self.pace = _MIDDLE * _FINE  # of all
        self._resident = self._most_resident = 0
        self._waits, self._look_at, self._tokens = 0, _FIRST_LOOK, 0
        self._learn()

    def make_order(self) -> Order[Handle]:
        return SampledOrder(self.rank, self.clock, self.ranks)

    make_member_order = make_order

    def rank(self, handle: Handle) -> Any:
        meta = handle.kvp
        return (self.rate(meta.state), meta.touch_seq, meta.order)

    def ranks(self, handles: Sequence[Handle]) -> list[Any]:
        """The same of many."""
        metas = [handle.kvp for handle in handles]
        rates = self.rates_of([meta.state for meta in metas])
        return [(rate, meta.touch_seq, meta.order) for rate, meta in zip(rates, metas, strict=True)]

    def rates_of(self, contents: Sequence[Content]) -> list[float]:
        """:meth:`rate` of many. In one piece: it runs for every candidate of every victim."""
        seq, rates, ages, last = self.clock.request_seq, self.rates, _AGES, len(_AGES)
        found = []
        for content in contents:
            requests, shift = seq - content.used_seq, content.shift
            at = (ages[requests] if requests < last else _bucket(requests * _TICKS)) - shift
            rate = rates[content.klass][0 if at < 0 else at if at < BUCKETS else BUCKETS - 1]
            found.append(rate * _SCALE[shift])
        return found

    def score_of(self, handle: Handle) -> float | None:
        return self.rate(handle.kvp.state)

    def rate(self, content: Content) -> float:
        """Hits a request that holding the content promises."""
        shift: int = content.shift
        at = _bucket((self.clock.request_seq - content.used_seq) * _TICKS) - shift
        rate = self.rates[content.klass][0 if at < 0 else at if at < BUCKETS else BUCKETS - 1]
        return rate * _SCALE[shift]

    # -- what happens to units --

    def alike(self, content_keys: Sequence[int]) -> int:
        """What was evicted and returns has uses of its own."""
        ghosts = self.ghosts
        if ghosts.keys().isdisjoint(content_keys):
            return len(content_keys)
        return max(1, next(at for at, key in enumerate(content_keys) if key in ghosts))

    def inserted(self, handle: Handle) -> None:
        meta = handle.kvp
        self._came(1)
        content = None if meta.content_key is None else self.ghosts.pop(meta.content_key, None)
        if content is None:
            content = self._new(meta)
        else:
            self._used(content, min(content.tokens, meta.size_tokens))
        meta.state = content

    def inserted_run(self, handle: Handle, following: Sequence[int]) -> None:
        meta = handle.kvp
        self._came(meta.units)
        meta.state = self._new(meta)

    def touched(self, handle: Handle) -> None:
        meta = handle.kvp
        if meta.units == 1:
            self._used(meta.state, meta.size_tokens)
        else:
            self._used_together(meta)

    def split(self, upper: Handle, lower: Handle) -> None:
        above: Content = lower.kvp.state  # the key names where the unit began
        below = above.twin(None)
        below.below, above.below = above.below, None
        upper.kvp.state, lower.kvp.state = above, below
        self._resident += 1

    def divided(self, upper: Handle, lower: Handle) -> None:
        below: Content = lower.kvp.state  # and the ghosts that stand on its end
        upper.kvp.state = above = below.twin(below.key)
        below.key = lower.kvp.content_key
        if below.drawn is not None:
            end = upper.kvp.order
            above.drawn = [(order, unit) for order, unit in below.drawn if order <= end]
            below.drawn = [(order, unit) for order, unit in below.drawn if order > end]

    def trimmed(self, handle: Handle, units: int, content_key: int | None) -> None:
        meta = handle.kvp
        content: Content = meta.state
        ghost = content.twin(content_key)
        ghost.below, content.below = content.below, None
        if content.drawn is not None:
            while content.drawn and content.drawn[-1][0] > meta.order:
                order, unit = content.drawn.pop()
                if order == meta.order + 1:
                    unit.below, ghost = ghost.below, unit
        self._gone(ghost, units, meta.size_tokens, content)

    def removed(self, handle: Handle, evicted: bool) -> None:
        meta = handle.kvp
        content: Content = meta.state
        if content.drawn is not None:
            for order, unit in content.drawn[:1]:
                if order == meta.order - meta.units + 1:
                    unit.below, content = content.below, unit
            content.drawn = None
        parent = None if meta.parent is None else meta.parent.kvp
        above = None if parent is None else parent.state
        self._gone(content, meta.units, meta.size_tokens, above, evicted)

    def _came(self, units: int) -> None:
        self._resident += units
        self._most_resident = max(self._most_resident, self._resident)

    def _new(self, meta: UnitMeta) -> Content:
        """What is known of a unit, or of each of a run, that nobody remembers."""
        above = None if meta.parent is None else meta.parent.kvp
        content = Content(meta.content_key, self.clock.request_seq, self.pace if above is None else above.state.pace)
        content.shift = (content.pace - _MIDDLE * _FINE) * _OWN // (_FINE * _WHOLE)
        return content

    def _take_over_ghosts(self, content: Content, tokens: int) -> None:
        """The unit goes: it stands for what went from below it, too."""
        content.tokens = tokens
        for key in content.below or ():
            ghost = self.ghosts.pop(key, None)
            if ghost is not None:
                content.tokens += ghost.tokens
        content.below = None

    def _gone(
        self, content: Content, units: int, size_tokens: int, above: Content | None, evicted: bool = True
    ) -> None:
        """So many units below ``above`` went, the last one first; the first one's ``content`` stands for all of
        them."""
        self._resident -= units
        self._take_over_ghosts(content, size_tokens)
        if not evicted or content.key is None:
            for _ in range(units):
                self._forget(content)
                content.tokens = size_tokens
            return
        self.ghosts[content.key] = content
        if above is not None:
            if above.below is None:
                above.below = []
            if len(above.below) < _MOST_BELOW:
                above.below.append(content.key)
        if len(self.ghosts) > max(_GHOSTS_A_UNIT * self._most_resident, _MIN_GHOSTS):
            self._forget(self.ghosts.pop(next(iter(self.ghosts))))
        content.tokens += (units - 1) * size_tokens

    # -- what is learned --

    def _used(self, content: Content, tokens: int) -> None:
        """One wait has ended. In one piece: it runs at every touch."""
        seq = self.clock.request_seq
        ticks = (seq - content.used_seq) * _TICKS + 4
        octave = ticks.bit_length() - 3
        wait = 4 * octave + ((ticks >> octave) & 3)
        at = wait - content.shift
        self.reused[content.klass][0 if at < 0 else at if at < BUCKETS else BUCKETS - 1] += tokens
        wait *= _FINE
        self.pace += (wait - self.pace) // 100
        content.pace = pace = content.pace + (wait - content.pace) * _NEWEST // _FINE
        content.shift = (pace - _MIDDLE * _FINE) * _OWN // (_FINE * _WHOLE)
        content.used_seq = seq
        content.uses = uses = content.uses + 1
        content.klass = uses.bit_length() if uses < 4 else CLASSES - 1
        self._waits += 1
        self._tokens += tokens
        if self._waits >= self._look_at:
            self._look()

    def _used_together(self, meta: UnitMeta) -> None:
        """As if each unit of the run were used, from its end on."""
        content: Content = meta.state
        wait = _bucket((self.clock.request_seq - content.used_seq) * _TICKS)
        row, at = self.reused[content.klass], _within(wait - content.shift)
        self._used(content, meta.size_tokens)
        counted = 1
        for order, unit in reversed(content.drawn or ()):
            self._count_waits(row, at, wait, meta.size_tokens, meta.order + 1 - order - counted)
            counted = meta.order + 1 - order
            unit.follow(content)
            self._drawn_used(unit, meta.size_tokens)
        self._count_waits(row, at, wait, meta.size_tokens, meta.units - counted)

    def _count_waits(self, row: list[float], at: int, wait: int, tokens: int, units: int) -> None:
        while units > 0:
            count = min(units, self._look_at - self._waits)
            row[at] += tokens * count
            for _ in range(count):
                self.pace += (wait * _FINE - self.pace) // 100
            self._waits += count
            self._tokens += tokens * count
            units -= count
            if self._waits >= self._look_at:
                self._look()

    def _drawn_used(self, unit: Content, tokens: int) -> None:
        """A unit that is followed by itself was used."""

    def _forget(self, content: Content) -> None:
        age = _bucket((self.clock.request_seq - content.used_seq) * _TICKS) - content.shift
        self.lost[content.klass][_within(age)] += content.tokens
        self._waits += 1
        self._tokens += content.tokens
        if self._waits >= self._look_at:
            self._look()

    def _look(self) -> None:
        self._look_at = self._waits + min(self._waits, max(_LOOK, len(self.ghosts)))
        self._learn()
        for table in (self.reused, self.lost):
            for row in table:
                row[:] = [_KEPT * tokens for tokens in row]

    def _learn(self) -> None:
        """Rates from what is known now. A class that little is known of goes by all, all by lru's falling chances."""
        waiting = [[0.0] * BUCKETS for _ in range(CLASSES)]  # the ghosts
        for ghost in self.ghosts.values():
            age = _bucket((self.clock.request_seq - ghost.used_seq) * _TICKS) - ghost.shift
            waiting[ghost.klass][_within(age)] += ghost.tokens
        unseen = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(self.lost, waiting, strict=True)]
        weight = _PRIOR_EVENTS * max(self._tokens / max(self._waits, 1), 1.0)
        common = _chances(
            list(map(sum, zip(*self.reused, strict=True))), list(map(sum, zip(*unseen, strict=True))), _ASSUMED, weight
        )
        self.rates = [_rates(_chances(*rows, common, weight)) for rows in zip(self.reused, unseen, strict=True)]


def _chances(reused: Sequence[float], unseen: Sequence[float], assumed: Sequence[float], weight: float) -> list[float]:
    """Kaplan and Meier's estimate: of what waits still when a bucket begins, the share that is reused within it."""
    chances = [0.0] * BUCKETS
    waiting = 0.0
    for at in range(BUCKETS - 1, -1, -1):
        waiting += reused[at] + unseen[at] / 2  # seen until the middle of the bucket, as far as is known
        chances[at] = (reused[at] + weight * assumed[at]) / (waiting + weight)
        waiting += unseen[at] / 2
    return chances


def _rates(chances: Sequence[float]) -> list[float]:
    """The Gittins index at the start of each bucket: the steepest slope from there to any later point of the curve of
    (requests held, chance of reuse so far), hence a walk along its upper hull."""
    held, hit, waiting = [0.0], [0.0], 1.0
    for at, chance in enumerate(chances):
        held.append(held[-1] + waiting * (1 - chance / 2) * (_STARTS[at + 1] - _STARTS[at]) / _TICKS)
        hit.append(hit[-1] + waiting * chance)
        waiting *= 1 - chance
    rates = [0.0] * BUCKETS
    hull = [BUCKETS]

    def slope(a: int, b: int) -> float:
        return (hit[b] - hit[a]) / max(held[b] - held[a], 1e-12)

    for at in range(BUCKETS - 1, -1, -1):
        while len(hull) > 1 and slope(at, hull[-2]) >= slope(at, hull[-1]):
            hull.pop()
        rates[at] = slope(at, hull[-1])
        hull.append(at)
    return rates


def _bucket(ticks: int) -> int:
    ticks += 4
    octave = ticks.bit_length() - 3
    return 4 * octave + ((ticks >> octave) & 3)


def _start(bucket: int) -> int:
    octave, quarter = divmod(bucket, 4)
    return ((4 + quarter) << octave) - 4


def _within(bucket: int) -> int:
    return 0 if bucket < 0 else bucket if bucket < BUCKETS else BUCKETS - 1


#: The bucket of a wait of so many requests.
_AGES = [_bucket(requests * _TICKS) for requests in range(4096)]
_STARTS = [_start(bucket) for bucket in range(BUCKETS + 1)]
#: Before anything is learned: chances that fall with age, from a quarter of an octave's worth down.
_ASSUMED = [min(0.3, 0.25 * (_STARTS[at + 1] - _STARTS[at]) / (_STARTS[at + 1] + 8)) for at in range(BUCKETS)]
#: What a rate is multiplied by for waits that are so many buckets longer than typical.
_SCALE: dict[int, float] = {shift: 2.0 ** (-shift / 4) for shift in range(-2 * BUCKETS, 2 * BUCKETS)}
