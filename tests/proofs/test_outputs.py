"""Greedy outputs under each shipped policy are stock's, bit for bit, with the same page size, KV dtype and backend.

The policies are the shipped ones, extended by the page size, dtype and backend of the comparison; nothing comes from
flags. The pool is so small that most of what is cached is evicted before it could be used again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvpolicy.language import load_policy
from tests.conftest import POLICIES
from tests.programs import run_all
from tests.proofs.engines import STRICT, assert_no_complaint, assert_sound, start, with_witness
from tests.stock import assert_outputs_of_stock
from tools.environment import CHECKOUT, EngineEnv

pytestmark = pytest.mark.engine

SHIPPED = sorted(path.stem for path in POLICIES.glob("*.yaml"))

CHILD = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {{name: {name}-{page}}}
extends: builtin:{name}
cache: {{page_size: {page}, kv_dtype: bf16}}
backend: {{attention: torch_native}}
"""


#: By page size: every shipped policy at 16; at 1, where no token is lost to a page, one of each kind of index.
#: 32 and 64, which some policies prefer, cost five minutes and differ in nothing.
POLICIES_BY_PAGE = {1: ["adaptive", "multi_tenant", "stock_lru"], 16: SHIPPED}
POOL_TOKENS = "512"
STOCK: dict[int, Any] = {}  # what stock told in this run, by page: the negative control uses it again


def test_shipped_policies_ask_for_something() -> None:
    assert len(SHIPPED) >= 7
    assert sum(load_policy(f"builtin:{name}").policy.cache is not None for name in SHIPPED) >= 4


@pytest.fixture
def in_engine(sglang_env: Callable[..., EngineEnv], real_model: Path, tmp_path: Path) -> Callable[..., list[Any]]:
    """`in_engine(page, names, **env)` -> what outputs.py told: stock first, then each shipped policy."""

    def measure(page: int, names: list[str], **env: str) -> list[Any]:
        cases = [f"stock:{page}"]
        for name in names:
            path = tmp_path / f"{name}.yaml"
            path.write_text(CHILD.format(name=name, page=page))
            cases.append(str(path))
        engine = with_witness(sglang_env("0.5.20"), tmp_path / "witness", **env)
        half = (len(cases) + 1) // 2  # an engine is one busy process: two at a time fill a small machine
        programs = [
            start(engine, "outputs.py", real_model, CHECKOUT / "LICENSE", POOL_TOKENS, *part)
            for part in (cases[:half], cases[half:])
        ]
        answers = run_all(*programs)
        answers[0]["log"] = log = "".join(program.log for program in programs)
        if not env:
            assert_no_complaint(log)
            STOCK[page] = answers[0]
        return answers

    return measure


@pytest.mark.parametrize("page", POLICIES_BY_PAGE)
def test_outputs_equal_stock(in_engine: Callable[..., list[Any]], page: int) -> None:
    policies = POLICIES_BY_PAGE[page]
    stock, *under_policies = in_engine(page, policies)
    assert stock["kvpolicy"] is None
    assert "20 euros" in stock["text"][0], "the real model answers from its prompt"
    for name, seen in zip(policies, under_policies, strict=True):
        effective = {path: setting["effective"] for path, setting in seen["kvpolicy"]["settings"].items()}
        assert (name, effective) == (name, {
            "cache.page_size": page, "cache.kv_dtype": "bf16", "backend.attention": "torch_native",
        })  # fmt: skip
        assert seen["page_size"] == stock["page_size"] == page
        assert sum(seen["kvpolicy"]["evictions"].values()) >= 3, name
        assert max(seen["cached"]) > 0, name
        alike = assert_outputs_of_stock(name, seen, stock)
        assert alike == len(stock["cached"]) or name != "stock_lru"
        assert_sound(seen)


def test_the_detectors_detect(in_engine: Callable[..., list[Any]]) -> None:
    """One page of the shared prefix gets a slot's keys and values before request 4; a page is lost before the last."""
    sound = STOCK[16] if 16 in STOCK else in_engine(16, [])[0]
    warn_only = dict.fromkeys(STRICT, "0")
    broken = in_engine(16, [], PROOF_FAULTS=f"wrong-page@4,lost-slot@{len(sound['text'])}", **warn_only)[0]
    assert broken["cached"] == sound["cached"]
    assert broken["logprobs"][:3] == sound["logprobs"][:3]
    assert broken["logprobs"][3] != sound["logprobs"][3]
    assert broken["output_ids"] != sound["output_ids"]
    assert_sound(sound)
    with pytest.raises(AssertionError):
        assert_sound(broken)
    with pytest.raises(AssertionError):
        assert_no_complaint(broken["log"])
