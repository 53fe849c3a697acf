"""The three kinds of a side: a server that is there, one started for each window, and one that changes policy hot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kvpolicy.bench.base import BenchError, Target
from kvpolicy.bench.servers import Launch, empty_cache
from kvpolicy.live.apply import Refused, apply_policy

__all__ = ["AtUrl", "Hot", "HotServer", "Restarted"]


@dataclass(frozen=True, slots=True)
class AtUrl:
    """A server of the user's: nothing about it is changed, its cache is left as it is."""

    label: str
    target: Target

    @contextmanager
    def serving(self) -> Iterator[Target]:
        yield self.target


@dataclass(frozen=True, slots=True)
class Restarted:
    """A server of its own for every window, where one machine cannot hold both and the policies differ by a restart."""

    label: str
    launch: Launch

    @contextmanager
    def serving(self) -> Iterator[Target]:
        with self.launch.running() as target:
            yield target


@dataclass(slots=True)
class HotServer:
    """One server for both sides, and whose policy is in charge."""

    target: Target
    in_charge: str  # a label


@dataclass(frozen=True, slots=True)
class Hot:
    """A policy that is put in charge of the one server before its window."""

    label: str
    source: str
    flat: dict[str, Any] = field(repr=False)
    server: HotServer

    @contextmanager
    def serving(self) -> Iterator[Target]:
        target = self.server.target
        if self.server.in_charge != self.label:
            empty_cache(target)  # an empty one is taken over at once
            try:
                apply_policy(target.url, self.flat, self.source, api_key=target.api_key)
            except Refused as refused:
                raise BenchError(
                    f"the server does not take {self.source} while it runs: {refused}; use --change restart"
                ) from None
            self.server.in_charge = self.label
        yield target
