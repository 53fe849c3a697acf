"""Each invariant is broken on purpose: `--fuzz` finds it, shrinks it, and the pasted test fails in the same way."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from kvpolicy.cli.main import main
from kvpolicy.eviction.index import EvictionIndex
from kvpolicy.eviction.rules import RuleBook
from kvpolicy.language import load_text
from kvpolicy.replay.simulator import Simulator

from .conftest import HEADER, HOT

Patch = Callable[[pytest.MonkeyPatch], None]


def _hard_pins(patch: pytest.MonkeyPatch) -> None:
    """Protected units are never given up, as pins that deadlocked servers were not."""
    pop = EvictionIndex.pop

    def refusing(self):
        while (handle := pop(self)) is not None and self.rule_of(handle):
            pass
        return handle

    patch.setattr(EvictionIndex, "pop", refusing)


def _no_budget(patch: pytest.MonkeyPatch) -> None:
    protect = RuleBook._protect

    def unlimited(self, handle, meta, index, rule):
        budget = self._budgets[index]
        limit, budget.limit_tokens = budget.limit_tokens, 1 << 40
        protect(self, handle, meta, index, rule)
        budget.limit_tokens = limit

    patch.setattr(RuleBook, "_protect", unlimited)


def _forgotten_unit(patch: pytest.MonkeyPatch) -> None:
    """A unit that had three hits is not offered again when it becomes evictable."""
    add = EvictionIndex.add

    def forgetting(self, handle):
        if handle.kvp is None or handle.kvp.hits < 3:
            add(self, handle)

    patch.setattr(EvictionIndex, "add", forgetting)


def _locked_victim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EvictionIndex, "discard", lambda self, handle: None)
    patch.setattr(Simulator, "_lock", lambda self, node: setattr(node, "lock", node.lock + 1))


def _over_commit(patch: pytest.MonkeyPatch) -> None:
    make_room = Simulator._make_room

    def generous(self, need):
        return max(make_room(self, min(need, 1)), need)

    patch.setattr(Simulator, "_make_room", generous)


def _faulty_rule(patch: pytest.MonkeyPatch) -> None:
    def fault(self, handle):
        raise ZeroDivisionError("a fault in a rule")

    patch.setattr(RuleBook, "run", fault)


def _ranks_differ(patch: pytest.MonkeyPatch) -> None:
    counter = itertools.count()
    evicted = EvictionIndex.evicted

    def random(self, handle, size, depth=0, identity=0, units=1):
        evicted(self, handle, size, depth, next(counter), units)

    patch.setattr(EvictionIndex, "evicted", random)


FAULTS: dict[str, tuple[Patch, str]] = {
    "hard pins": (_hard_pins, "evictable tokens"),
    "no budget": (_no_budget, "more than its budget"),
    "forgotten unit": (_forgotten_unit, "evictable tokens"),
    "locked victim": (_locked_victim, "evicted"),
    "over-commit": (_over_commit, "more resident than the pool holds"),
    "faulty rule": (_faulty_rule, "a fault in a rule"),
}


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "hot.yaml"
    path.write_text(HEADER + HOT)
    return path


@pytest.mark.parametrize(("fault", "message"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found_shrunk_and_pasted(policy: Path, capsys, fault: Patch, message: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        assert main(["test", "hot.yaml", "--fuzz", "200", "--seed", "3"]) == 1
        out = capsys.readouterr().out
        assert message in out
        test = out.partition("\ntests:\n")[2]
        policy.write_text(f"{HEADER}{HOT}tests:\n{test}")
        result = load_text(policy.read_bytes())
        assert result.policy is not None, result.diagnostics
        (pasted,) = result.policy.tests
        assert len(pasted.events) <= 5, f"not small:\n{test}"
        assert sum(event.repeat for event in pasted.events) <= 8, f"not small:\n{test}"
        assert main(["test", "hot.yaml"]) == 1
        assert message in capsys.readouterr().out
    assert main(["test", "hot.yaml"]) == 0, "without the fault the same test passes"


def test_ranks_that_differ_are_found(policy: Path, capsys) -> None:
    with pytest.MonkeyPatch.context() as patch:
        _ranks_differ(patch)
        assert main(["test", "hot.yaml", "--fuzz", "20"]) == 1
    assert "ranks would diverge" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_workloads(policy: Path, capsys) -> None:
    def found(seed: str) -> str:
        with pytest.MonkeyPatch.context() as patch:
            _hard_pins(patch)
            main(["test", "hot.yaml", "--fuzz", "200", "--seed", seed])
        return capsys.readouterr().out

    assert found("3") == found("3")
    assert found("3") != found("4")
