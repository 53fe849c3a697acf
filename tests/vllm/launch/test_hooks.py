"""Wrapping in place: static and class methods stay what they are, and what is undone or missing is said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kvpolicy_vllm import hooks


class Owner:
    def method(self, x: int) -> int:
        return x

    @staticmethod
    def static(x: int) -> int:
        return x

    @classmethod
    def own(cls, x: int) -> tuple[str, int]:
        return cls.__name__, x


class Child(Owner):
    pass


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(hooks, "_hooks", [])
    before = dict(vars(Owner))
    yield
    for name in ("method", "static", "own"):
        setattr(Owner, name, before[name])


def doubled(original: Any, *args: Any) -> Any:
    return original(*args[:-1], args[-1] * 2)


def test_each_kind_is_called_as_before() -> None:
    for name in ("method", "static", "own"):
        hooks.wrap(Owner, name, doubled)
        hooks.wrap(Owner, name, doubled)  # plugins may be loaded twice
    assert Owner().method(1) == 2
    assert Owner.static(1) == Owner().static(1) == 2
    assert Child.own(1) == ("Child", 2)
    hooks.verify()


def test_a_name_that_is_missing_is_said() -> None:
    with pytest.raises(SystemExit, match=r"no place for the policy: .*Owner\.absent is missing"):
        hooks.wrap(Owner, "absent", doubled)


def test_a_hook_that_was_undone_is_said() -> None:
    stock = vars(Owner)["static"]
    hooks.wrap(Owner, "static", doubled)
    Owner.static = stock  # type: ignore[method-assign]
    with pytest.raises(SystemExit, match=r"removed these hooks of the policy: .*Owner\.static"):
        hooks.verify()


def test_another_plugin_may_wrap_ours() -> None:
    hooks.wrap(Owner, "method", doubled)
    ours = Owner.method
    Owner.method = lambda self, x: ours(self, x) + 1  # type: ignore[method-assign]
    hooks.verify()
    assert Owner().method(1) == 3
