"""Diagnostics as data: what every layer of the check reports, before any of it becomes text.

Severity follows the code, not the caller's mood: an *error* means that the policy is not used, a *warning* that it is
used but probably not as meant, an *info* states a fact (a score's class, a section that is not read yet).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Diagnostic", "PolicyError", "Severity", "has_errors"]

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding at one place. ``line`` and ``col`` count characters from 1; ``data`` carries figures for machines."""

    file: str
    line: int
    col: int
    code: str
    severity: Severity
    message: str
    help: str | None = None
    data: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON shape of ``--format json``: ``data`` only where there is some."""
        item = asdict(self)
        if self.data is None:
            del item["data"]
        return item

    def __str__(self) -> str:
        text = f"{self.file}:{self.line}:{self.col}: {self.code} {self.severity}: {self.message}"
        return f"{text} (help: {self.help})" if self.help else text


class PolicyError(Exception):
    """A policy that cannot be used; ``diagnostics`` says why, errors and warnings alike."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = list(diagnostics)
        errors = [str(d) for d in self.diagnostics if d.severity == "error"]
        super().__init__("\n".join(errors) or "the policy cannot be used")


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    return any(d.severity == "error" for d in diagnostics)
