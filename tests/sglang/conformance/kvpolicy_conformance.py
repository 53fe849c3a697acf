"""A pytest plugin for SGLang's own unit tests: every prefix cache that a test builds gets kvpolicy's eviction.

`pytest -p kvpolicy_conformance --kvpolicy-swap WHAT --kvpolicy-report FILE TESTS`, in SGLang's own environment:

- `stock`: nothing is swapped; the column to compare with.
- `order`: the eviction order the test asked for, from our index, attached by the adapter itself (`build_cache`).
- `rules`: the same order, with rules that hold nobody back. Every node is stamped, every hit counted and every
  admission decided, and the victims must still be the same.
- `slots`: not the caches but the slot allocators are ours (see swap_slots.py).

Whether a cache is one that the adapter steers is the adapter's own decision, as in a server; what it leaves to the
engine is counted with its reason. The report is one JSON object: the outcome of each test, and what was swapped.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from activation import activate
from conformance_report import IDLE_RULES, add_options, begin
from swap_slots import SlotSwap

_POOL_TOKENS = 1 << 20  # for a test without an allocator
#: Modules that SGLang renamed, for tests of a neighbouring version: the old name, then the new one.
_RENAMED = {
    f"sglang.srt.mem_cache.unified_cache.components.{old}": f"sglang.srt.mem_cache.unified_cache.components.{new}"
    for old, new in {
        "tree_component": "base",
        "full_component": "full",
        "swa_component": "swa",
        "mamba_component": "mamba",
    }.items()
}


class Swap:
    """Wraps the constructors of SGLang's prefix caches, and counts what it did."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.built: Counter[str] = Counter()  # by class
        self.attached: Counter[str] = Counter()
        self.left: Counter[str] = Counter()  # by reason: left to the engine, as a server would
        self.actives: list[Any] = []

    def install(self) -> None:
        for module, name in (
            ("sglang.srt.mem_cache.radix_cache", "RadixCache"),
            ("sglang.srt.mem_cache.unified_radix_cache", "UnifiedRadixCache"),
        ):
            self._wrap(getattr(importlib.import_module(module), name))

    def _wrap(self, cache_class: Any) -> None:
        stock_init = cache_class.__init__

        def construct(cache: Any, params: Any, *args: Any, **kwargs: Any) -> None:
            def stock(ctx: Any) -> Any:
                stock_init(cache, ctx.params, *args, **kwargs)
                return cache

            if type(cache) is not cache_class:  # another cache made from this one: not what a server's adapter gets
                stock(SimpleNamespace(params=params))
                return
            self.built[cache_class.__name__] += 1
            if reason := _own_way(params):
                stock(SimpleNamespace(params=params))
                self.left[reason] += 1
            else:
                self._build(cache_class.__name__, params, stock)

        cache_class.__init__ = construct

    def _build(self, name: str, params: Any, stock: Callable[[Any], Any]) -> None:
        from kvpolicy_sglang.cache_hooks import build_cache

        eviction: dict[str, Any] = {"policy": params.eviction_policy.lower()}
        if config := dict(getattr(params, "eviction_policy_config", None) or {}):
            eviction["params"] = config
        if self.what == "rules":
            eviction |= IDLE_RULES
        active = activate("sglang", eviction, on_conflict="warn")
        with _an_allocator(params) as lent:
            guard = build_cache(active, lent(stock), _context(params)).guard
        if guard is None:
            self.left[active.core_reason] += 1
        else:
            self.attached[name] += 1
            self.actives.append(active)

    def figures(self) -> dict[str, Any]:
        fallbacks: Counter[str] = Counter()
        for active in self.actives:
            fallbacks.update(active.fallbacks)
        return {
            "built": self.built,
            "attached": self.attached,
            "left to the engine": self.left,
            "evict calls": sum(active.evict_calls for active in self.actives),
            "victims": sum(sum(active.index.counters.evictions.values()) for active in self.actives),
            "fallbacks": fallbacks,
        }


def _own_way(params: Any) -> str:
    """Why a test's cache cannot have our eviction whatever a server would do; "" if it can."""
    override = getattr(params, "component_registry_override", None) or {}
    if any(not cls.__module__.startswith("kvpolicy_sglang") for cls in override.values()):
        return "the test brings its own component"
    if getattr(params, "tree_core_backend", None) not in (None, "python"):
        return f"the test asks for the {params.tree_core_backend} core"
    return ""


@contextmanager
def _an_allocator(params: Any) -> Iterator[Callable[[Callable[[Any], Any]], Callable[[Any], Any]]]:
    """Tests that only look at the tree build it without an allocator, or with a mock that has no size.

    A server always has one, so the adapter may read its size and its methods. They are lent for as long as it does;
    the cache itself is built, and used by the test, with what the test gave.
    """
    given = params.token_to_kv_pool_allocator
    if given is not None:
        if not isinstance(getattr(given, "size", None), int):
            given.size = _POOL_TOKENS
        yield lambda stock: stock
        return
    stand_in = SimpleNamespace(size=_POOL_TOKENS, free=None)
    built = []

    def lent(stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def build(ctx: Any) -> Any:
            params.token_to_kv_pool_allocator = None
            built.append(cache := stock(ctx))
            cache.token_to_kv_pool_allocator = stand_in
            return cache

        return build

    params.token_to_kv_pool_allocator = stand_in
    try:
        yield lent
    finally:
        params.token_to_kv_pool_allocator = None
        for cache in built:
            cache.token_to_kv_pool_allocator = None


def _context(params: Any) -> Any:
    """What SGLang's `create_tree_cache` would be called with for these parameters."""
    components = {getattr(kind, "name", str(kind)) for kind in getattr(params, "tree_components", None) or ()}
    arguments = SimpleNamespace(enable_session_radix_cache=getattr(params, "enable_session_radix_cache", False))
    return SimpleNamespace(
        params=params,
        server_args=arguments,
        tp_worker=None,
        disable_radix_cache=params.disable,
        is_hybrid_swa="SWA" in components,
        is_hybrid_ssm="MAMBA" in components,
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    group = add_options(parser, "order", "rules", "slots")
    group.addoption("--kvpolicy-neighbour", action="store_true", help="the tests are of another version of SGLang")


def pytest_configure(config: pytest.Config) -> None:
    _provide_datasets()
    if config.getoption("--kvpolicy-neighbour"):
        _provide_renamed()
        config.pluginmanager.register(Placeholders())
    begin(config, lambda what: SlotSwap() if what == "slots" else Swap(what))


class Placeholders:
    """Lets a test file of a neighbouring version be imported: names that this SGLang lacks fail where they are used."""

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        if not isinstance(collector, pytest.Module):
            return
        for statement in ast.walk(ast.parse(collector.path.read_text())):
            if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("sglang."):
                self._complete(str(statement.module), [alias.name for alias in statement.names])

    @staticmethod
    def _complete(module_name: str, names: list[str]) -> None:
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            return  # the test file says so itself
        for name in names:
            if not hasattr(module, name) and not _is_module(f"{module_name}.{name}"):
                setattr(module, name, type(name, (), {"__init__": _absent(f"{module_name}.{name}")}))


def _absent(name: str) -> Callable[..., None]:
    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise AttributeError(f"this SGLang has no {name}")

    return fail


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is no package
        return False


def _provide_datasets() -> None:
    """SGLang's test helpers import this package for benchmarks; these tests never use it."""
    if importlib.util.find_spec("datasets") is None:
        absent = ModuleType("datasets")
        absent.load_dataset = _absent("package datasets installed")  # type: ignore[attr-defined]
        sys.modules["datasets"] = absent


def _provide_renamed() -> None:
    for old, new in _RENAMED.items():
        if not _is_module(old) and _is_module(new):
            sys.modules[old] = importlib.import_module(new)
