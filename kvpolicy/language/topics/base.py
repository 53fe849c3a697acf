"""A question about policies that no diagnostic raises, with its answer: `kvpolicy explain TOPIC`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Topic", "topics"]


@dataclass(frozen=True, slots=True)
class Topic:
    """``text`` says what exists, what does not, and what to do instead; an empty line parts its paragraphs.

    ``example``, if any, is a whole policy without its two header lines; it has no error, and its tests pass.
    """

    name: str
    title: str
    text: str
    example: str = ""


def topics(*entries: Topic) -> dict[str, Topic]:
    """A group's table. Raises ValueError for a name given twice."""
    table = {entry.name: entry for entry in entries}
    if len(table) != len(entries):
        raise ValueError("a topic is given twice")
    return table
