"""Rules, admission, tenants and priorities on a real engine: what survives a flood of three times the pool.

The real model on SGLang 0.5.20, the tiny one on the oldest and the newest cache.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.inside.hinting import assert_hints
from tests.inside.keeping import assert_priorities, assert_rules, assert_unadmitted, write_policies
from tests.proofs.engines import assert_no_complaint, assert_sound, start, with_witness
from tools.environment import CHECKOUT, EngineEnv

pytestmark = pytest.mark.engine

CACHED_TOKENS = 80  # of a prompt of 84, in pages of 16
SETTINGS = "cache: {page_size: 16, kv_dtype: bf16}\nbackend: {attention: torch_native}\n"


@pytest.mark.parametrize(("version", "size"), [("0.5.20", "real"), ("0.5.18", "tiny"), ("0.5.23", "tiny")])
def test_what_stays(
    sglang_env: Callable[..., EngineEnv], request: pytest.FixtureRequest, tmp_path: Path, version: str, size: str
) -> None:
    model: Path = request.getfixturevalue(f"{size}_model")
    policies = write_policies(tmp_path, SETTINGS)
    engine = with_witness(sglang_env(version), tmp_path / "witness")
    # Every token of the real model costs as much as sixty of the tiny one, and what stays does not depend on it.
    others = ["others"] if size == "tiny" else []
    program = start(engine, "kept.py", model, CHECKOUT / "LICENSE", *policies, *others)
    rules, priorities = program.told()
    assert_rules(rules["seen"], CACHED_TOKENS)
    assert_unadmitted(rules["seen"])
    assert_priorities(priorities["seen"], CACHED_TOKENS)
    assert "hints" not in priorities["state"]["kvpolicy"]
    if others:
        assert_hints(rules["seen"], rules["state"]["kvpolicy"]["hints"], CACHED_TOKENS)
        assert_calm(rules["seen"])
    for told in (rules, priorities):
        assert_sound(told["state"])
        assert sum(told["state"]["kvpolicy"]["evictions"].values()) > 50
    assert_no_complaint(program.log)


def assert_calm(seen: dict[str, Any]) -> None:
    """After a storm of concurrent requests the books balance (SGLang's own strict checks ran all the while)."""
    assert sum(seen["storm"].values()) == 32
    assert seen["storm"]["abort"] >= 1
    assert_sound(seen["after storm"])
