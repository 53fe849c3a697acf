"""The one error of the expression language: data first (message, help, place), text second."""

from __future__ import annotations

__all__ = ["ExpressionError"]


class ExpressionError(ValueError):
    """A text that is no valid expression.

    ``offset`` and ``length`` count characters of the text that was given (not bytes, and not of any enclosing YAML);
    ``offset`` may equal the text's length when something is missing at its end, and ``length`` is at least 1.
    """

    def __init__(self, message: str, help: str, offset: int, length: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.help = help
        self.offset = offset
        self.length = max(1, length)

    def __str__(self) -> str:
        return f"{self.message} (at {self.offset})"
