"""What the tests of a policy found, for people and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvpolicy.language import LoadResult
from kvpolicy.policytest.coverage import Coverage
from kvpolicy.policytest.run import Outcome

__all__ = ["Report", "render_text", "to_json"]


@dataclass(slots=True)
class Report:
    """One policy."""

    result: LoadResult
    outcomes: list[Outcome] = field(default_factory=list)
    coverage: Coverage | None = None  # where it was asked for

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.failures]


def render_text(reports: list[Report], style: bool = False) -> str:
    """Every failure with its place, the event, what was expected and what was there; then one line a policy."""
    red, green, bold, end = ("\x1b[31m", "\x1b[32m", "\x1b[1m", "\x1b[0m") if style else ("",) * 4
    lines: list[str] = []
    for report in reports:
        file = report.result.file
        for outcome in report.failed:
            source = report.result.sources.get(outcome.file)
            for failure in outcome.failures:
                lines.append(f"{bold}{file}:{failure.line}:{failure.col}:{end} {red}FAIL{end} {_name(outcome)}")
                text = source.line(failure.line) if source else None
                if text is not None:
                    lines += [f"{failure.line:>5} | {text}", f"      | {' ' * (failure.col - 1)}{red}^{end}"]
                lines.append(f"        after:    {failure.after}")
                lines.append(f"        expected: {failure.expected}")
                lines.append(f"        got:      {failure.got}")
        runs, failed = len(report.outcomes), len(report.failed)
        if not runs:
            lines.append(f"{file}: no tests")
        elif failed:
            lines.append(f"{file}: {red}{failed} of {runs} failed{end}")
        else:
            lines.append(f"{file}: {green}{runs} passed{end}")
        if report.coverage is not None:
            lines += _coverage(report.coverage)
    return "".join(f"{line}\n" for line in lines)


def _name(outcome: Outcome) -> str:
    return f"{outcome.name} (by {outcome.granularity})"


def _coverage(coverage: Coverage) -> list[str]:
    lines = []
    width = max((len(rule.name) for rule in coverage.rules), default=0)
    for rule in coverage.rules:
        lines.append(f"  rule {rule.name:<{width}}  matched {rule.match.true}, let pass {rule.match.false}")
    gaps = coverage.gaps()
    conditions = sum(1 + len(rule.conditions) for rule in coverage.rules) + len(coverage.score)
    if not conditions:
        return [*lines, "  coverage: no rule and no condition to reach"]
    if not gaps:
        return [*lines, "  coverage: every rule and both sides of every condition"]
    return [*lines, *(f"  not covered: {gap}" for gap in gaps)]


def to_json(report: Report) -> dict[str, Any]:
    item: dict[str, Any] = {
        "file": report.result.file,
        "tests": [
            {
                "name": outcome.name,
                "line": outcome.line,
                "granularity": outcome.granularity,
                "passed": not outcome.failures,
                "failures": [
                    {"line": f.line, "col": f.col, "after": f.after, "expected": f.expected, "got": f.got}
                    for f in outcome.failures
                ],
            }
            for outcome in report.outcomes
        ],
    }
    if report.coverage is not None:
        item["coverage"] = report.coverage.to_json()
    return item
