"""What can be wrong with a trace, always with the place."""

from __future__ import annotations

__all__ = ["TraceError", "TraceUsageError"]


class TraceError(Exception):
    """A row that cannot be read. ``str()`` is ``file:line: message``, with a help line where there is one."""

    def __init__(self, file: str, line: int, message: str, help: str | None = None) -> None:
        self.file, self.line, self.message, self.help = file, line, message, help
        text = f"{file}:{line}: error: {message}"
        super().__init__(f"{text}\n        help: {help}" if help else text)


class TraceUsageError(Exception):
    """The trace cannot be opened, or it cannot be replayed in the way that was asked for (exit code 2)."""
