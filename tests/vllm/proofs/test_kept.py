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


def test_what_stays(vllm_env: Callable[..., EngineEnv], real_model: Path, tmp_path: Path) -> None:
    policies = write_policies(tmp_path, "cache: {page_size: 32}\n")
    programs = [start(vllm_env(), "kept.py", real_model, CHECKOUT / "LICENSE", path.stem, path) for path in policies]
    rules, priorities = run_all(*programs)
    assert_rules(rules["seen"], CACHED_TOKENS)
    assert_unadmitted(rules["seen"])
    assert_priorities(priorities["seen"], CACHED_TOKENS)
    assert_hints(rules["seen"], rules["kvpolicy"]["hints"], CACHED_TOKENS)
    assert "hints" not in priorities["kvpolicy"]
    for told in (rules, priorities):
        assert_sound(told)
        assert told["kvpolicy"]["core"] == "kvpolicy"
        assert sum(told["kvpolicy"]["evictions"].values()) > 50
