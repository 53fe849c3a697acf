"""Requests as no client should send them, and engine objects as no version has them, never disturb the engine."""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from kvpolicy_sglang import cache_admit, cache_time
from kvpolicy_sglang.cache_guard import EvictionGuard
from kvpolicy_sglang.cache_metadata import Metadata
from kvpolicy_sglang.cache_requests import state_of

from kvpolicy.compiler import compile_policy
from kvpolicy.eviction.base import RequestInfo
from kvpolicy.language import policy_from_flat
from kvpolicy.runtime import active as active_module
from kvpolicy.runtime.active import ActivePolicy

FLAT: dict[str, Any] = {
    "apiVersion": "kvpolicy/v1",
    "kind": "KVPolicy",
    "metadata": {"name": "test"},
    "eviction": {"rules": [{"name": "out", "match": "request.priority < 0", "admit": "never"}]},
}


@pytest.fixture
def active() -> ActivePolicy:
    policy = policy_from_flat(FLAT, engine="sglang")
    return ActivePolicy(policy, FLAT, "", "scheduler", compiled=compile_policy(policy, "sglang"))


@pytest.fixture
def guard(active: ActivePolicy) -> EvictionGuard:
    return EvictionGuard(active, active.compiled.eviction.make_index(100))


@pytest.fixture
def metadata(guard: EvictionGuard) -> Metadata:
    return Metadata(guard, root=lambda: None, leaves=set, node_of=lambda _: None, lora_name=lambda name: name)


class Hooks:
    """SGLang's hook registry as far as `install_*` uses it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hooks: dict[str, Any] = {}
        registry = ModuleType("sglang.srt.plugins.hook_registry")
        registry.HookType = SimpleNamespace(AROUND="around", AFTER="after")  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, registry.__name__, registry)

    def register(self, target: str, hook: Any, _kind: str) -> None:
        self.hooks[target.rpartition(".")[2]] = hook


def request(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"origin_input_ids": [1, 2, 3], **fields})


@pytest.mark.parametrize(
    ("fields", "info"),
    [
        ({}, RequestInfo()),
        ({"priority": None, "cache_salt": None, "session_id": None, "lora_id": None}, RequestInfo()),
        ({"priority": "high"}, RequestInfo()),
        ({"priority": float("nan")}, RequestInfo()),
        ({"priority": -sys.maxsize}, RequestInfo()),
        ({"priority": 3, "cache_salt": "a"}, RequestInfo(cache_salt="a", priority=3)),
        ({"cache_salt": ["a", "b"]}, RequestInfo()),
        ({"cache_salt": ""}, RequestInfo()),
        ({"extra_key": "saltlora", "lora_id": "lora"}, RequestInfo(cache_salt="salt", lora="lora")),
        ({"extra_key": {"odd": 1}}, RequestInfo()),
        ({"session_id": {"odd": 1}}, RequestInfo()),
    ],
)
def test_what_a_policy_cannot_use_is_absent(fields: dict[str, Any], info: RequestInfo) -> None:
    assert state_of(request(**fields), lambda name: name).info == info


class Cache:
    """An engine's cache that only notes what it was asked to keep."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def cache_finished_req(self, req: Any, is_insert: bool = True) -> None:
        self.kept += ["finished"] * is_insert

    def cache_unfinished_req(self, req: Any) -> None:
        self.kept.append("unfinished")


class Checkpointing:
    def __init__(self) -> None:
        self.kept: list[str] = []

    def checkpoint(self, req: Any, *, up_to: int) -> None:
        self.kept.append("checkpoint")


def test_a_request_that_cannot_be_read_is_cached_as_stock_does(active: ActivePolicy, metadata: Metadata) -> None:
    cache, other = Cache(), Checkpointing()
    cache_admit.attach(cache, metadata)
    cache_admit.attach(other, metadata)
    cache.cache_unfinished_req(object())
    cache.cache_finished_req(object())
    other.checkpoint(object(), up_to=3)
    assert [*cache.kept, *other.kept] == ["unfinished", "finished", "checkpoint"]
    assert active.fallbacks == {"request": 3}
    assert metadata.current is None


def test_a_request_that_cannot_stay_out_is_cached_as_stock_does(active: ActivePolicy, metadata: Metadata) -> None:
    pytest.importorskip("torch")
    cache = Cache()
    cache_admit.attach(cache, metadata)
    refused = request(priority=-1)
    cache.cache_unfinished_req(refused)  # it has no row
    cache.cache_finished_req(refused)
    assert cache.kept == ["unfinished"]
    assert active.fallbacks == {"admit": 1}


def test_an_arrival_that_cannot_be_read_is_handled(
    active: ActivePolicy, guard: EvictionGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd:
        @property
        def sampling_params(self) -> Any:
            raise ValueError("not this version")

    hooks = Hooks(monkeypatch)
    cache_time.install_scheduler(lambda: guard, hooks)
    for name in ("handle_generate_request", "handle_embedding_request"):
        assert hooks.hooks[name](lambda _scheduler, _request: "handled", None, Odd()) == "handled"
    assert active.fallbacks == {"arrive": 2}


def manager(has_policy: bool) -> SimpleNamespace:
    return SimpleNamespace(server_args=SimpleNamespace(**{"_kv_policy": "digest"} if has_policy else {}))


def test_an_engine_without_a_policy_in_the_same_process_sends_no_stamps(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = Hooks(monkeypatch)
    cache_time.install_tokenizer(hooks)
    for has_policy in (True, False):
        sent = SimpleNamespace(sampling_params=SimpleNamespace(custom_params=None))
        hooks.hooks["_create_tokenized_object"](sent, manager(has_policy))
        assert (sent.sampling_params.custom_params is not None) == has_policy


def test_what_a_client_put_into_custom_params_stays(active: ActivePolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = Hooks(monkeypatch)
    monkeypatch.setattr(active_module, "_current", active)
    cache_time.install_tokenizer(hooks)
    send = partial(hooks.hooks["_create_tokenized_object"], manager=manager(has_policy=True))
    odd = SimpleNamespace(sampling_params=SimpleNamespace(custom_params=[1, 2]))
    send(odd)
    assert odd.sampling_params.custom_params == [1, 2]
    assert cache_time.read_stamp(odd) == (None, None)
    assert active.fallbacks == {}

    class Frozen:
        custom_params = None
        __slots__ = ()

    send(SimpleNamespace(sampling_params=Frozen()))
    send(SimpleNamespace(sampling_params=None))
    assert active.fallbacks == {"stamp": 1}
