"""Short ways to load a policy text in a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvpolicy.language import LoadResult, load_text

HEADER = "apiVersion: kvpolicy/v1\nkind: KVPolicy\n"


@pytest.fixture
def load() -> Callable[..., LoadResult]:
    """Loads a body below the two header lines, or raw text and bytes as they are."""

    def load(body: str | bytes, engine: str | None = None, *, header: str = HEADER) -> LoadResult:
        raw = body if isinstance(body, bytes) else (header + body).encode()
        return load_text(raw, "p.yaml", engine)

    return load


@pytest.fixture
def found(load) -> Callable[..., list[tuple[int, int, str]]]:
    """(line, column, code) of the errors and warnings of a body; lines count from the body's first."""

    def found(
        body: str | bytes, engine: str | None = None, *, header: str = HEADER, leave_out: str = ""
    ) -> list[tuple[int, int, str]]:
        shift = 0 if isinstance(body, bytes) else header.count("\n")
        result = load(body, engine, header=header)
        told = [
            d for d in result.diagnostics if d.severity != "info" and (d.data or {}).get("engine", "-") != leave_out
        ]
        return [(d.line - shift, d.col, d.code) for d in told]

    return found
