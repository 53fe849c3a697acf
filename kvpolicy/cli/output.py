"""Files that commands write: whole or not at all, and refused before the work rather than after it."""

from __future__ import annotations

import gzip
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

__all__ = ["open_output", "why_unwritable"]


def why_unwritable(path: str | None) -> str | None:
    """Why a file could not be written there, as far as can be told now; None for standard output too."""
    if path is None or path == "-":
        return None
    target = Path(path)
    if target.is_dir():
        return f"cannot write '{path}': it is a folder"
    if not target.parent.is_dir():
        return f"cannot write '{path}': there is no folder '{target.parent}'"
    if not os.access(target if target.exists() else target.parent, os.W_OK):
        return f"cannot write '{path}': permission denied"
    return None


@contextmanager
def open_output(path: str | None) -> Iterator[TextIO]:
    """Text to ``path`` (``.gz`` compresses, the same bytes for the same text) or, for None and `-`, to standard output.

    The file takes its place when the block ends well; until then, and after a fault, an older one stays as it was: so
    a command may even replace its own input. Raises OSError.
    """
    if path is None or path == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    if not (target := Path(path)).parent.is_dir() or (target.exists() and not target.is_file()):
        with open(path, "w", encoding="utf-8") as file:  # a device or a pipe, or the OSError that says what is wrong
            yield file
        return
    part = target.with_name(f".{target.name}.part")
    try:
        with part.open("wb") as raw:
            packed = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if path.endswith(".gz") else raw
            with io.TextIOWrapper(packed, encoding="utf-8") as file:
                yield file
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
