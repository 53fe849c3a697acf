"""The table of allocators: what each one gets, in words, and that the documentation says the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kvpolicy_sglang.allocator_hooks import build_allocator, is_asked_for
from kvpolicy_sglang.allocator_support import FEATURES, supported

from tests.inside.activation import activate
from tests.programs import INSIDE, Program, run_all, with_path
from tests.tables import features_table, printed
from tools.environment import EngineEnv

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[2] / "docs/allocators.md"


def built(name: str, module: str = "sglang.srt.mem_cache.allocator", **attributes: Any) -> Any:
    """Stands for an allocator of that class, which is told by its name."""
    return type(name, (SimpleNamespace,), {"__module__": module})(need_sort=False, **attributes)


STOCK = {
    "sliding-window attention": built("SWATokenToKVPoolAllocator"),
    "HiSparse": built("HiSparseTokenToKVPoolAllocator"),
    "pages sharded over GPUs": built("PageInterleavePoolAllocator"),
    "one memory pool for keys, values and state": built("UnifiedMambaTokenToKVPoolAllocator"),
    "another allocator": built("PagedTokenToKVPoolAllocator", "somebody.elses"),
}


@pytest.mark.parametrize("name", STOCK)
def test_the_engines_allocator_stays_where_it_is_another_one(name: str) -> None:
    verdict = supported(STOCK[name])
    assert (verdict.kind, verdict.section) == ("stock", "allocator")
    assert f"the policy's allocator does not work with {name} (" in verdict.message


def test_every_row_has_a_case() -> None:
    assert {feature.name for feature in FEATURES if feature.kind == "stock"} == set(STOCK)
    assert supported(built("TokenToKVPoolAllocator")).kind == "supported"


def test_a_conflict_ends_the_start_or_leaves_the_engines_allocator() -> None:
    allocator = STOCK["sliding-window attention"]
    active = activate("sglang", None, allocator={"order": "address"})
    with pytest.raises(SystemExit, match="drop the flag or the allocator section"):
        build_allocator(active, allocator)
    active = activate("sglang", None, on_conflict="warn", allocator={"order": "address"})
    assert build_allocator(active, allocator) is allocator
    assert active.allocator is not None
    assert active.allocator.core == "engine"
    assert "sliding-window" in active.allocator.reason
    assert [conflict.setting for conflict in active.conflicts] == ["allocator"]
    assert active.eviction_yielded_to is None  # the eviction goes on


@pytest.mark.parametrize(
    ("section", "asked"),
    [(None, False), ({"guard": "off"}, False), ({"watermark": {"low": "1%", "high": "2%"}}, False),
     ({"order": "fifo"}, True), ({"guard": "sampled"}, True)],
)  # fmt: skip
def test_what_asks_for_nothing_replaces_nothing(section: dict[str, Any] | None, asked: bool) -> None:
    sections = {} if section is None else {"allocator": section}
    assert is_asked_for(activate("sglang", None, **sections)) == asked


def test_the_documentation_prints_this_table() -> None:
    assert printed(DOCS, "features") == features_table(FEATURES)


@pytest.mark.engine
def test_the_hook_replaces_the_targets_allocator_alone(sglang_env: Callable[..., EngineEnv]) -> None:
    engine = with_path(sglang_env("0.5.20"), INSIDE)
    (told,) = run_all(Program(engine, HERE / "hooks.py"))
    assert told == {
        "without a section": [],
        "target": ["PolicyPagedAllocator", "kvpolicy", "address", "full"],
        "page 1, guard alone": ["PolicyTokenAllocator", "kvpolicy", "fifo", "sampled"],
        "draft with its target's": None,
        "draft of its own": None,
    }
