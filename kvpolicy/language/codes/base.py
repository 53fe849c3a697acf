"""What is known of a diagnostic code besides the place it is raised at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["HEADER", "Code", "codes"]

HEADER = "apiVersion: kvpolicy/v1\nkind: KVPolicy\n"


@dataclass(frozen=True, slots=True)
class Code:
    """One code, with two policies: `kvpolicy check` raises the code on `bad` and not on `good` (a test runs both).

    Unless ``raw``, the two header lines (apiVersion, kind) are put before the examples.
    """

    code: str
    title: str
    text: str
    bad: str | bytes
    good: str | bytes
    raw: bool = False
    files: Mapping[str, str] = field(default_factory=dict)  # written beside the example
    args: tuple[str, ...] = ()  # further arguments of `kvpolicy check`
    good_args: tuple[str, ...] | None = None  # for `good`, where they differ: facts depend on what is asked for

    def example(self, which: str) -> bytes:
        """The whole text of the `bad` or `good` example."""
        text = self.bad if which == "bad" else self.good
        raw = text.encode() if isinstance(text, str) else text
        return raw if self.raw else HEADER.encode() + raw


def codes(*entries: Code) -> dict[str, Code]:
    """A group's table. Raises ValueError for a code given twice."""
    table = {entry.code: entry for entry in entries}
    if len(table) != len(entries):
        raise ValueError("a code is given twice")
    return table
