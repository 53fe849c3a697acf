"""Greedy outputs under each shipped policy are stock's, bit for bit, at the block size that the policy gets here.

Two times: on the tiny model in bf16 with the shipped policies as they are; on the real model in float32, several times
faster on a CPU, where a policy that asks for bf16 would be refused, so that a child takes that back. The pool is so
small that most of what is cached is evicted before it could be used again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvpolicy.language import load_policy
from tests.conftest import POLICIES
from tests.programs import run_all
from tests.stock import assert_outputs_of_stock
from tests.vllm.proofs.engines import assert_sound, start
from tools.environment import CHECKOUT, EngineEnv

pytestmark = pytest.mark.engine

VllmEnv = Callable[..., EngineEnv]
SHIPPED = sorted(path.stem for path in POLICIES.glob("*.yaml"))
TEXT = CHECKOUT / "LICENSE"
CPU_BLOCK_TOKENS, CPU_DEFAULT_BLOCK_TOKENS = 32, 128  # what its attention backend reads: multiples; and vLLM's choice
POOL_TOKENS = {"real": "512", "tiny": "1536"}  # the tiny model's tokens are bytes

CHILD = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {{name: {name}-of-any-dtype}}
extends: builtin:{name}
cache: {{kv_dtype: auto}}
"""

#: vLLM's order through our index: nobody is matched, so nothing is protected.
OUR_LRU = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {name: our-lru}
cache: {page_size: 32}
eviction: {policy: lru, core: kvpolicy}
"""


def block_tokens(name: str) -> int:
    """What a shipped policy gets on a CPU: the first size it accepts that can be read there."""
    policy = load_policy(f"builtin:{name}", engine="vllm").policy
    assert policy is not None
    size = policy.cache.page_size if policy.cache else None
    if size is None:
        return CPU_DEFAULT_BLOCK_TOKENS
    return next(tokens for tokens in (size.prefer, *size.accept) if tokens % CPU_BLOCK_TOKENS == 0)


def test_shipped_policies_ask_for_something() -> None:
    assert len(SHIPPED) >= 8
    assert {block_tokens(name) for name in SHIPPED} == {32, 64, 128}


def assert_equal_to_stock(told: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Everything told, by case."""
    seen = {case["case"]: case for case in told}
    for case, ours in seen.items():
        assert_sound(ours)
        name, _, tokens = case.rpartition(":")
        assert ours["witness"]["block_tokens"] == int(tokens), case
        if name == "stock":
            assert ours["kvpolicy"] is None
            continue
        stock = seen[f"stock:{tokens}"]
        if ours["kvpolicy"]["core"] == "kvpolicy":
            assert sum(ours["kvpolicy"]["evictions"].values()) >= 1, case
        assert max(ours["cached"]) > 0, case
        assert_outputs_of_stock(case, ours, stock)
    return seen


@pytest.fixture(scope="module")
def tiny_told(vllm_env: VllmEnv, tiny_model: Path) -> list[dict[str, Any]]:
    """Stock at each block size, every shipped policy, and last an engine that is broken twice."""
    cases = [f"stock:{tokens}" for tokens in sorted({block_tokens(name) for name in SHIPPED})]
    cases += [f"{name}:{block_tokens(name)}" for name in SHIPPED]
    broken = "chat:32+wrong-block@4+lost-block@14"
    arguments = (tiny_model, "bfloat16", POOL_TOKENS["tiny"], TEXT)
    return start(vllm_env(), "outputs.py", *arguments, *cases, broken).told()


def test_shipped_policies_as_they_are(tiny_told: list[dict[str, Any]]) -> None:
    seen = assert_equal_to_stock(tiny_told[:-1])
    effective = {
        case: {path: setting["effective"] for path, setting in one["kvpolicy"]["settings"].items()}
        for case, one in seen.items()
        if one["kvpolicy"]
    }
    assert effective["long_context:32"] == {"cache.page_size": 32, "cache.kv_dtype": "bf16"}
    assert effective["stock_lru:128"] == {}
    cores = {case: one["kvpolicy"]["core"] for case, one in seen.items() if one["kvpolicy"]}
    assert [case for case, core in cores.items() if core == "engine"] == ["stock_lru:128"]


def test_real_model(vllm_env: VllmEnv, real_model: Path, tmp_path: Path) -> None:
    cases = []
    for name in SHIPPED:
        (tmp_path / f"{name}.yaml").write_text(CHILD.format(name=name))
        cases.append(f"{tmp_path / name}.yaml:{block_tokens(name)}")
    our_lru = tmp_path / "our_lru.yaml"
    our_lru.write_text(OUR_LRU)
    cases = ["stock:32", "stock:64", "stock:128", *cases, f"{our_lru}:32"]
    arguments = ("outputs.py", real_model, "float32", POOL_TOKENS["real"], TEXT)
    # An engine is one busy process: two at a time fill a small machine.
    seen = assert_equal_to_stock(run_all(*[start(vllm_env(), *arguments, *cases[at::2]) for at in range(2)]))
    stock = seen["stock:32"]
    assert "20 euros" in stock["text"][0], "the real model answers from its prompt"
    for ours in (seen[f"{our_lru}:32"], seen[f"{tmp_path}/stock_lru.yaml:128"]):
        stock = seen[f"stock:{ours['witness']['block_tokens']}"]
        assert (ours["cached"], ours["logprobs"]) == (stock["cached"], stock["logprobs"])
        assert ours["witness"] == stock["witness"], "the same contents are left"


def test_the_detectors_detect(tiny_told: list[dict[str, Any]]) -> None:
    """One block of the shared prefix gets another's keys and values before request 4; one is lost before the last."""
    *_, broken = tiny_told
    sound = next(seen for seen in tiny_told if seen["case"] == "chat:32")
    assert len(sound["text"]) == 14
    assert broken["logprobs"][:3] == sound["logprobs"][:3]
    assert broken["cached"][:4] == sound["cached"][:4]
    assert broken["logprobs"][3] != sound["logprobs"][3]
    assert broken["output_ids"] != sound["output_ids"]
    assert_sound(sound)
    with pytest.raises(AssertionError):
        assert_sound(broken)
