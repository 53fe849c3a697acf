"""A fault in what only explains misses ends that memory: no unit is lost, no call falls back."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kvpolicy_sglang import content
from kvpolicy_sglang.cache_guard import EvictionGuard

from kvpolicy.eviction.base import RequestInfo
from tests.inside.activation import activate


class Node(SimpleNamespace):
    __hash__ = object.__hash__


@pytest.mark.parametrize("fails", ["at insertion", "at eviction"])
def test_a_content_without_a_number(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    active = activate("sglang", {"policy": "gdsf"})
    eviction = replace(active.compiled.eviction, explains=True)
    active.index = index = eviction.make_index(100)
    guard = EvictionGuard(active, index, page_tokens=1)

    def broken(*_: Any) -> int:
        raise TypeError("a key of another shape")

    if fails == "at insertion":
        monkeypatch.setattr(content, "key_of", broken)
    else:
        monkeypatch.setattr(content, "key_of", lambda *_: 7)
    node = Node(kvp=None, key=[1], id=1, last_access_time=0, creation_time=0, hit_count=1, priority=0)
    assert guard.insert(node, None, RequestInfo(), 1, 1, False)
    guard.add(node)
    if fails == "at eviction":
        node.kvp.content_key = None  # as of the lower half of a split
        monkeypatch.setattr(content, "key_of", broken)
    assert guard.begin()
    assert guard.pop(lambda _: True) == (node, False)
    guard.remove(node)
    guard.end()
    assert index.counters.evictions == {"": 1}
    assert index.ghosts.fault == "TypeError: a key of another shape"
    assert active.fallbacks == {}
