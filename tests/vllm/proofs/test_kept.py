"""Rules, admission, tenants and priorities on a real vLLM: what survives a flood of three times the pool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.inside.hinting import assert_hints
from tests.inside.keeping import assert_priorities, assert_rules, assert_unadmitted, write_policies
from tests.programs import run_all
from tests.vllm.proofs.engines import assert_sound, start
from tools.environment import CHECKOUT, EngineEnv

pytestmark = pytest.mark.engine

CACHED_TOKENS = 96  # of a prompt of 100, in blocks of 32


def test_what_stays(vllm_env: Callable[..., EngineEnv], real_model: Path, tiny_model: Path, tmp_path: Path) -> None:
    """Hints with the tiny model: what stays does not depend on it, and a token of the real one costs sixty of its."""
    policy, other = write_policies(tmp_path, "cache: {page_size: 32}\n")
    runs = [("rules", real_model, policy), ("priorities", real_model, other), ("hints", tiny_model, policy)]
    rules, priorities, hints = run_all(
        *[start(vllm_env(), "kept.py", model, CHECKOUT / "LICENSE", steps, path) for steps, model, path in runs]
    )
    assert_rules(rules["seen"], CACHED_TOKENS)
    assert_unadmitted(rules["seen"])
    assert_priorities(priorities["seen"], CACHED_TOKENS)
    assert_hints(hints["seen"], hints["kvpolicy"]["hints"], CACHED_TOKENS)
    assert "hints" not in priorities["kvpolicy"]
    for told in (rules, priorities, hints):
        assert_sound(told)
        assert told["kvpolicy"]["core"] == "kvpolicy"
        assert sum(told["kvpolicy"]["evictions"].values()) > 50
