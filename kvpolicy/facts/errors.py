"""The one error of this layer: an argument of ``check`` (engine, model, GPU, memory) that cannot be used."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["FactsArgumentError", "did_you_mean"]


class FactsArgumentError(ValueError):
    """A bad ``--engine``, ``--model``, ``--gpu`` or ``--memory``; the command line turns it into exit code 2.

    ``argument`` is the option without dashes, ``help`` what to write instead (may be empty).
    """

    def __init__(self, argument: str, message: str, help: str = "") -> None:
        super().__init__(message)
        self.argument = argument
        self.message = message
        self.help = help


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """``did you mean 'h200'?``, or the list of choices where nothing is close."""
    known = sorted(choices)
    close = get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"one of: {', '.join(known)}"
