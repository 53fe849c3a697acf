"""Which engine versions the tables were read from, and how ``--engine sglang==0.5.23`` picks one of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvpolicy.facts.errors import FactsArgumentError, did_you_mean

__all__ = [
    "ENGINES",
    "NEWEST_SGLANG",
    "SUPPORTED",
    "EngineTarget",
    "Version",
    "is_supported",
    "parse_engine",
    "parse_version",
    "supported_span",
]

Version = tuple[int, int, int]

# Releases whose sources the rules were checked against, oldest first.
ENGINES: dict[str, tuple[str, ...]] = {
    "sglang": ("0.5.16", "0.5.17", "0.5.18", "0.5.20", "0.5.23"),
    "vllm": ("0.26.0", "0.28.0", "0.30.0", "0.32.0", "0.33.0"),
}

# The first and last release whose seams are known, every digit that counts: an adapter refuses to start outside.
SUPPORTED: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "sglang": ((0, 5, 16), (0, 5, 23)),
    "vllm": ((0, 26), (0, 33)),
}

_SPEC = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_-]*)\s*(?:(?P<op>===?|=|@)?\s*v?(?P<version>\d[^\s]*))?$")
_RELEASE = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


@dataclass(frozen=True, slots=True)
class EngineTarget:
    """The engine asked for and the release whose facts answer for it."""

    name: str
    asked: str | None  # version as written; None = not given
    facts: Version  # release the facts come from
    exact: bool  # False: another release answers; the report warns

    @property
    def facts_version(self) -> str:
        """``facts`` as text."""
        return ".".join(map(str, self.facts))


def parse_version(text: str) -> Version:
    """``0.5.23.post1`` -> (0, 5, 23): rules change between releases, never between their post-releases."""
    match = _RELEASE.match(text)
    if match is None:
        raise ValueError(f"not a version: {text!r}")
    major, minor, patch = match.groups(default="0")
    return int(major), int(minor), int(patch)


def is_supported(name: str, version: str) -> bool:
    """Whether servers of engine `name` and that version start with a policy; post-releases count as their release."""
    first, last = SUPPORTED[name]
    try:
        return first <= parse_version(version)[: len(first)] <= last
    except ValueError:
        return False


def supported_span(name: str) -> str:
    """`0.5.16 to 0.5.23`."""
    return " to ".join(".".join(map(str, version)) for version in SUPPORTED[name])


NEWEST_SGLANG = parse_version(ENGINES["sglang"][-1])


def parse_engine(text: str) -> EngineTarget:
    """Read ``sglang``, ``sglang==0.5.23`` or ``vllm==0.32.0``; no version means the newest the tables know.

    Raises :class:`FactsArgumentError` for an unknown engine or an unreadable version.
    """
    match = _SPEC.match(text.strip())
    if match is None:
        raise FactsArgumentError("engine", f"cannot read engine '{text}'", "write it as sglang==0.5.23 or vllm==0.32.0")
    name = match["name"].lower()
    if name not in ENGINES:
        raise FactsArgumentError("engine", f"unknown engine '{name}'", did_you_mean(name, ENGINES))
    asked = match["version"]
    known = [parse_version(version) for version in ENGINES[name]]
    if asked is None:
        return EngineTarget(name, None, known[-1], True)
    try:
        version = parse_version(asked)
    except ValueError:
        raise FactsArgumentError(
            "engine", f"cannot read version '{asked}' of {name}", f"write it as {name}==0.5.23"
        ) from None
    nearest = _nearest(version, known)
    return EngineTarget(name, asked, nearest, nearest == version)


def _nearest(version: Version, known: list[Version]) -> Version:
    """The known release closest by patch number in the same series; else the last before it, else the first."""
    series = [candidate for candidate in known if candidate[:2] == version[:2]]
    if series:
        return min(series, key=lambda candidate: (abs(candidate[2] - version[2]), candidate))
    earlier = [candidate for candidate in known if candidate < version]
    return max(earlier) if earlier else min(known)
