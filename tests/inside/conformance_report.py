"""What the pytest plugins for both engines' own unit tests share: their options, and the report that they write."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

#: From best to worst: a test is what its worst phase or subtest was.
_OUTCOMES = ("passed", "skipped", "failed", "error")
#: Three kinds of rules that change no victim: one protects every unit alike, the others match no request of a test.
IDLE_RULES: dict[str, Any] = {
    "rules": [
        {"name": "nobody", "match": "request.priority == 77", "retain": {"weight": 4, "ttl": "600s", "budget": "50%"}},
        {"name": "no-one", "match": "request.priority == -77", "admit": "never"},
        {"name": "all", "match": "depth_tokens > 0", "retain": {"weight": 1}},
    ],
}


class Swap(Protocol):
    """Puts our eviction in place of the engine's, as this column of the run wants it, and counts what it did."""

    def install(self) -> None: ...

    def figures(self) -> dict[str, Any]: ...


def add_options(parser: pytest.Parser, *columns: str) -> pytest.OptionGroup:
    """`columns`: what may be swapped, besides "stock"."""
    group = parser.getgroup("kvpolicy")
    group.addoption("--kvpolicy-swap", choices=("stock", *columns), default="stock")
    group.addoption("--kvpolicy-report", type=Path, required=False)
    return group


def begin(config: pytest.Config, make_swap: Callable[[str], Swap]) -> None:
    """Report on this session, and swap what its column says."""
    what = config.getoption("--kvpolicy-swap")
    swap = make_swap(what)
    config.pluginmanager.register(Report(config.getoption("--kvpolicy-report"), swap))
    if what != "stock":
        swap.install()


class Report:
    """Outcome of each test, by its file and name, and what was swapped, written to `path` at the end."""

    def __init__(self, path: Path | None, swap: Swap) -> None:
        self.path = path
        self.swap = swap
        self.outcomes: dict[str, str] = {}
        self.reasons: dict[str, str] = {}

    def note(self, name: str, outcome: str, reason: str) -> None:
        known = self.outcomes.get(name, "passed")
        worst = max(known, outcome, key=_OUTCOMES.index)
        self.outcomes[name] = worst
        if worst == outcome != "passed" and name not in self.reasons:
            self.reasons[name] = reason

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = "error" if report.failed and report.when != "call" else report.outcome
        self.note(_test_name(report.nodeid), outcome, _reason(report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.note(_test_name(report.nodeid), "error", _reason(report))
        elif report.skipped:
            self.note(_test_name(report.nodeid), "skipped", _reason(report))

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self) -> Iterator[None]:
        yield
        if self.path is not None:
            found = {"outcomes": self.outcomes, "reasons": self.reasons, "swap": self.swap.figures()}
            self.path.write_text(json.dumps(found))


def _test_name(nodeid: str) -> str:
    path, *rest = nodeid.split("::")
    return "::".join([Path(path).name, *rest])


def _reason(report: Any) -> str:
    """One line: why a test was skipped, or the error it failed with (the first one: a suite's own retry hides it)."""
    longrepr = report.longrepr
    if isinstance(longrepr, tuple):
        return str(longrepr[2])
    chain = getattr(longrepr, "chain", None)
    crash = chain[0][1] if chain else getattr(longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else longrepr or "").strip()
    errors = [line.removeprefix("E ") for line in text.splitlines() if line.startswith("E ")]
    return (errors or text.splitlines() or [""])[-1 if errors else 0].strip()[:300]
