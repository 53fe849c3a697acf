"""The client's half of shadow policies and recordings."""

from __future__ import annotations

from typing import Any

from .apply import post

__all__ = ["add_shadows", "clear_shadows", "end_recording", "record"]

#: Of a server that is busy with long steps.
TIMEOUT_S = 120.0


def add_shadows(url: str, flats: list[dict[str, Any]], *, api_key: str | None = None) -> list[dict[str, Any]]:
    """Run these flattened policies as ghosts; the `shadows` of each engine's status.

    Raises Refused, with the server's reasons, and LiveError.
    """
    return _engines(url, "shadows", {"add": flats}, api_key)


def clear_shadows(url: str, *, api_key: str | None = None) -> list[dict[str, Any]]:
    """Stop all of them. Raises as :func:`add_shadows`."""
    return _engines(url, "shadows", {"clear": True}, api_key)


def record(url: str, for_s: float, *, api_key: str | None = None) -> tuple[float, list[dict[str, Any]]]:
    """Wait so long, or until somebody ends it; the seconds that it ran, and `rank`, `trace` (text) and
    `dropped_requests` of each engine. Raises as :func:`add_shadows`."""
    answer = post(url, "record", {"for_s": for_s}, api_key, "engines", TIMEOUT_S + for_s)
    return answer["ran_s"], answer["engines"]


def end_recording(url: str, *, api_key: str | None = None) -> None:
    """End the recording under way: whoever waits for it is answered. Raises as :func:`add_shadows`."""
    post(url, "record", {"end": True}, api_key, "ended", TIMEOUT_S)


def _engines(url: str, path: str, body: dict[str, Any], api_key: str | None) -> list[dict[str, Any]]:
    engines: list[dict[str, Any]] = post(url, path, body, api_key, "engines", TIMEOUT_S)["engines"]
    return engines
