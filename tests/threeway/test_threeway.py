"""One request sequence through replay, a real SGLang and a real vLLM: the same page size, capacity and policy.

Cached tokens are compared request by request. Where an engine differs from replay's page mode it does so by mechanisms
that docs/engines.md explains, and exactly so: replay with those mechanisms (mechanisms.py) gives the engine's number
for every request, and without any one of them it does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvpolicy.replay.policies import from_result, load
from tests.programs import run_all
from tests.proofs import engines as sglang
from tests.threeway.mechanisms import COPIES, LAST_TOKEN, NODES, ROOM, replayed
from tests.vllm.proofs import engines as vllm
from tools.environment import CHECKOUT, EngineEnv

pytestmark = pytest.mark.engine

HERE = Path(__file__).resolve().parent
PAGE = CHECKOUT / "docs/engines.md"

HEAD = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {name: threeway}
cache: {page_size: 32}
eviction:
  policy: lru
"""
POLICIES = {
    "lru": HEAD,  # on vLLM its own free queue
    "lru, our index": HEAD + "  core: kvpolicy\n",
    "rules": HEAD
    + """\
  rules:
    - name: opted-out
      match: request.priority == -1
      admit: never
    - name: opening
      match: depth_tokens <= 96 and hits >= 1
      retain: {weight: 8, ttl: 60s, budget: 12.5%}
    - name: asked-for
      match: request.priority == 3
      retain: {weight: 4, ttl: 60s, budget: 25%}
""",
}
#: (engine, policy) -> what makes it differ from replay's page mode.
EXPLAINED = {
    ("SGLang 0.5.20", "lru"): {NODES},
    ("SGLang 0.5.20", "rules"): {NODES},
    ("vLLM 0.32.0", "lru"): {ROOM, LAST_TOKEN, COPIES},
    ("vLLM 0.32.0", "lru, our index"): {ROOM, LAST_TOKEN},
    ("vLLM 0.32.0", "rules"): {ROOM, LAST_TOKEN},
}
#: mechanism -> the request that the page tells of: (engine, policy), its number from 1, tokens with and without.
EXAMPLES = {
    NODES: (("SGLang 0.5.20", "lru"), 38, 0, 64),
    ROOM: (("vLLM 0.32.0", "lru, our index"), 12, 32, 0),
    LAST_TOKEN: (("vLLM 0.32.0", "lru, our index"), 3, 128, 160),
    COPIES: (("vLLM 0.32.0", "lru"), 125, 0, 32),
}
Told = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("policies")
    paths = {name: folder / f"{number}.yaml" for number, name in enumerate(POLICIES)}
    for name, path in paths.items():
        path.write_text(POLICIES[name])
    return paths


@pytest.fixture(scope="module")
def told(
    sglang_env: Callable[..., EngineEnv],
    vllm_env: Callable[..., EngineEnv],
    tiny_model: Path,
    policies: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Told:
    """What both engines answered, under each policy."""
    on_sglang = sglang.with_witness(sglang_env("0.5.20"), tmp_path_factory.mktemp("plugins") / "witness")
    wanted = {
        engine: [policies[policy] for of, policy in EXPLAINED if of == engine]
        for engine in ("SGLang 0.5.20", "vLLM 0.32.0")
    }
    answers = run_all(
        sglang.start(on_sglang, HERE / "on_sglang.py", tiny_model, *wanted["SGLang 0.5.20"]),
        vllm.start(vllm_env("0.32.0"), HERE / "on_vllm.py", tiny_model, *wanted["vLLM 0.32.0"]),
    )
    return dict(zip(EXPLAINED, answers, strict=True))


def replay(policies: dict[str, Path], policy: str, mechanisms: set[str], seen: dict[str, Any]) -> list[int]:
    return replayed(from_result(load(str(policies[policy])), policy), frozenset(mechanisms), seen)


def differences(one: list[int], other: list[int]) -> list[tuple[int, int, int]]:
    """`(request, tokens here, tokens there)` where they differ."""
    return [(at, a, b) for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]


@pytest.mark.parametrize("case", EXPLAINED, ids=" ".join)
def test_every_difference_is_explained(told: Told, policies: dict[str, Path], case: tuple[str, str]) -> None:
    seen, mechanisms = told[case], EXPLAINED[case]
    (vllm.assert_sound if case[0].startswith("vLLM") else sglang.assert_sound)(seen)
    assert differences(seen["cached"], replay(policies, case[1], mechanisms, seen)) == []
    for mechanism in mechanisms:  # the comparison would see it if one of them were not so
        assert differences(seen["cached"], replay(policies, case[1], mechanisms - {mechanism}, seen)), mechanism


def test_the_rules_do_something(told: Told) -> None:
    for engine in ("SGLang 0.5.20", "vLLM 0.32.0"):
        assert differences(told[engine, "lru"]["cached"], told[engine, "rules"]["cached"])


def test_the_page_tells_it(told: Told, policies: dict[str, Path]) -> None:
    """The table of docs/engines.md, and a section for each mechanism."""
    rows = []
    for (engine, policy), mechanisms in EXPLAINED.items():
        seen = told[engine, policy]
        pages = replay(policies, policy, set(), seen)
        rows.append(
            f"| {policy} | {engine} | {sum(pages)} | {sum(seen['cached'])} | {len(differences(seen['cached'], pages))} "
            f"| {', '.join(sorted(mechanisms))} |"
        )
    text = PAGE.read_text()
    found = re.search(r"<!-- sequence -->\n(.*?)\n<!-- /sequence -->", text, re.DOTALL)
    assert found, "the page has no table"
    assert found[1].splitlines()[2:] == rows, "\n".join(rows)
    assert set(EXAMPLES) == {mechanism for mechanisms in EXPLAINED.values() for mechanism in mechanisms}
    for mechanism, (case, number, tokens, without) in EXAMPLES.items():
        _, _, section = text.partition(f"\n### {mechanism.capitalize()}\n")
        words = " ".join(section.partition("\n#")[0].split())
        assert f"request {number}" in words, mechanism
        assert re.search(rf"finds {tokens} tokens( on SGLang)? instead of {without}\b", words), mechanism
        seen = told[case]
        missing = replay(policies, case[1], EXPLAINED[case] - {mechanism}, seen)
        assert (number - 1, tokens, without) in differences(seen["cached"], missing), mechanism
