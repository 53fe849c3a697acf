"""The KL of two engines' top-k lists against what the whole distributions say."""

from __future__ import annotations

import math
import random

import pytest

from kvpolicy.fidelity.measures import Listed, kl_lower_bound, listed, same_top


def whole(probabilities: list[float], actual: int = 0) -> Listed:
    """Every token listed."""
    return top(probabilities, len(probabilities), actual)


def top(probabilities: list[float], k: int, actual: int = 0) -> Listed:
    ids = sorted(range(len(probabilities)), key=lambda token: (-probabilities[token], token))[:k]
    return listed(actual, math.log(probabilities[actual]), ids, [math.log(probabilities[token]) for token in ids])


def kl(p: list[float], q: list[float]) -> float:
    return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def distribution(random: random.Random, size: int, sharpness: float) -> list[float]:
    logits = [random.gauss(0, sharpness) for _ in range(size)]
    total = math.fsum(map(math.exp, logits))
    return [math.exp(logit) / total for logit in logits]


def near(random: random.Random, p: list[float], noise: float) -> list[float]:
    logits = [math.log(each) + random.gauss(0, noise) for each in p]
    total = math.fsum(map(math.exp, logits))
    return [math.exp(logit) / total for logit in logits]


GOLDEN = [
    # p, q, KL in nats by hand
    ([0.5, 0.5], [0.5, 0.5], 0.0),
    ([0.5, 0.5], [0.25, 0.75], 0.5 * math.log(2) + 0.5 * math.log(2 / 3)),
    ([0.9, 0.1], [0.1, 0.9], 0.8 * math.log(9)),
    ([0.7, 0.2, 0.1], [0.1, 0.2, 0.7], 0.6 * math.log(7)),
]


@pytest.mark.parametrize(("p", "q", "nats"), GOLDEN)
def test_whole_lists_give_the_kl_itself(p: list[float], q: list[float], nats: float) -> None:
    assert kl_lower_bound(whole(p), whole(q)) == pytest.approx(nats, abs=1e-6)


def test_unlisted_tokens_are_one_rest() -> None:
    """By hand: both list tokens 0 and 1; 2, 3 and 4 are a rest of 0.3 against 0.2."""
    p, q = [0.4, 0.3, 0.1, 0.1, 0.1], [0.5, 0.3, 0.1, 0.06, 0.04]
    expected = 0.4 * math.log(0.4 / 0.5) + 0.3 * math.log(0.3 / 0.2)
    assert kl_lower_bound(top(p, 2), top(q, 2)) == pytest.approx(expected, abs=1e-12)


def test_lists_without_a_common_token_are_far_apart() -> None:
    """P lists 0 (0.9), Q lists 1 (0.9); the text's token 2 is in both. Q's mass on 0 is at most its rest, 0.09."""
    p, q = [0.9, 0.05, 0.01, 0.04], [0.05, 0.9, 0.01, 0.04]
    bound = kl_lower_bound(top(p, 1, actual=2), top(q, 1, actual=2))
    # Q can put 0.09 * a share on token 0 and P 0.09 * b on token 1: searched over a grid, the least of them all.
    steps = [step / 2000 for step in range(1, 2000)]
    least = min(
        0.9 * math.log(0.9 / (0.09 * a)) + 0.09 * b * math.log(0.1 * b) + 0.09 * (1 - b) * math.log((1 - b) / (1 - a))
        for a in steps[::8]
        for b in steps[::8]
    )
    assert bound == pytest.approx(least, rel=0.01)
    assert 1.5 < bound <= kl(p, q)


@pytest.mark.parametrize("k", [1, 3, 10, 40])
@pytest.mark.parametrize("noise", [0.01, 0.3, 3.0])
def test_never_above_the_true_kl_and_close_with_long_lists(k: int, noise: float) -> None:
    generator = random.Random(k * 1000 + int(noise * 100))
    for _ in range(60):
        p = distribution(generator, 60, 2.0)
        q = near(generator, p, noise)
        actual, true = generator.randrange(60), kl(p, q)
        bound = kl_lower_bound(top(p, k, actual), top(q, k, actual))
        assert -1e-9 <= bound <= true + 1e-6
        assert kl_lower_bound(whole(p), whole(q)) == pytest.approx(true, abs=1e-6)
        if k == 40:
            assert bound > 0.6 * true - 1e-6


def test_longer_lists_bound_no_less_on_average() -> None:
    generator = random.Random(5)
    pairs = [(p := distribution(generator, 80, 2.0), near(generator, p, 0.5)) for _ in range(100)]
    means = [sum(kl_lower_bound(top(p, k), top(q, k)) for p, q in pairs) / len(pairs) for k in (1, 4, 16, 80)]
    assert means == sorted(means)


def test_rounded_logprobs_that_add_up_to_more_than_one_are_no_fault() -> None:
    p = listed(0, math.log(0.6) + 1e-6, [0, 1], [math.log(0.6) + 1e-6, math.log(0.4) + 1e-6])
    assert kl_lower_bound(p, p) == 0.0


def test_a_tie_agrees_with_either_side() -> None:
    tie, first, second = whole([0.4, 0.4, 0.2]), whole([0.5, 0.3, 0.2]), whole([0.3, 0.5, 0.2])
    assert same_top(tie, first)
    assert same_top(tie, second)
    assert not same_top(first, second)


def test_against_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    generator = numpy.random.default_rng(3)
    for _ in range(50):
        p, q = (generator.dirichlet(numpy.full(50, 0.2)) + 1e-6 for _ in range(2))
        p, q = p / p.sum(), q / q.sum()
        true = float((p * numpy.log(p / q)).sum())
        assert kl_lower_bound(whole(p.tolist()), whole(q.tolist())) == pytest.approx(true, abs=1e-5)
        assert kl_lower_bound(top(p.tolist(), 8), top(q.tolist(), 8)) <= true + 1e-6
