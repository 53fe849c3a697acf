"""The first pass: characters and tokens.

It bounds the text before Python's parser sees it, turns away everything that cannot occur in an expression at its exact
place, and lays the text out on one line (YAML's block and folded scalars bring line breaks).
"""

from __future__ import annotations

import keyword
import re

from .errors import ExpressionError

__all__ = ["MAX_BRACKETS", "MAX_CHARS", "MAX_TOKENS", "scan"]

MAX_CHARS = 4096
MAX_TOKENS = 512
MAX_BRACKETS = 32

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
      | (?P<number>(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<string>"[^"\r\n]*"|'[^'\r\n]*')
      | (?P<op>\*\*|//|<=|>=|==|!=|[-+*/%()\[\],.<>])""",
    re.VERBOSE,
)
_WORDS = frozenset({"and", "or", "not", "if", "else", "in", "is", "None", "True", "False"})
_CLOSES = {")": "(", "]": "["}
_SUBSET = "an expression has numbers, fields, + - * / // % **, comparisons, and/or/not, `x if c else y` and functions"
_INSTEAD = {
    "&": "write `and`", "|": "write `or`", "!": "write `not`", "^": "write `**` for a power", "=": "write `==`",
    "=>": "write `>=`", "=<": "write `<=`",
    "?": "write `x if condition else y`", "#": "a comment belongs outside the expression",
    "\\": "a line may end anywhere; no backslash is needed", "{": _SUBSET, ":": _SUBSET,
    ":=": "there is nothing to assign to",
}  # fmt: skip
_NAMED = {
    ":=": "assignment", "&&": "`&&`", "||": "`||`", "=>": "`=>`", "=<": "`=<`", "=": "a single `=`",
    "{": "a set or dict", "#": "a comment",
}  # fmt: skip


def scan(text: str) -> tuple[str, int]:
    """``(line, start)``: the text on one line without surrounding space, and the offset of its first character.

    Offsets into ``line`` plus ``start`` are offsets into ``text``. Raises :class:`ExpressionError`.
    """
    if len(text) > MAX_CHARS:
        raise ExpressionError(
            f"the expression is {len(text)} characters long; the limit is {MAX_CHARS}",
            "split it into several rules, or compute less",
            MAX_CHARS,
            len(text) - MAX_CHARS,
        )
    if not text.strip():
        raise ExpressionError("the expression is empty", "write for example `hits >= 3`", 0, len(text))
    open_brackets: list[tuple[str, int]] = []
    tokens = 0
    at = 0
    before = ""  # kind of the token that ends exactly where this one starts
    last = ""  # kind of the token before this one, spaces aside
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _unknown(text, at)
        kind, word = found.lastgroup or "", found.group()
        if kind != "space":
            tokens += 1
            if tokens > MAX_TOKENS:
                raise ExpressionError(
                    f"the expression has more than {MAX_TOKENS} tokens", "compute less", at, len(text) - at
                )
            _check_token(text, at, kind, word, before)
            if kind == last == "string":
                raise ExpressionError(
                    "two strings side by side", "a string stands between one pair of quotes", at, len(word)
                )
            last = kind
            if word in ("(", "["):
                open_brackets.append((word, at))
                if len(open_brackets) > MAX_BRACKETS:
                    raise ExpressionError(
                        f"brackets are nested more than {MAX_BRACKETS} deep", "flatten the expression", at
                    )
            elif word in _CLOSES:
                if not open_brackets or open_brackets[-1][0] != _CLOSES[word]:
                    raise ExpressionError(f"`{word}` closes nothing", f"remove it, or open a `{_CLOSES[word]}`", at)
                open_brackets.pop()
        before = kind
        at = found.end()
    if open_brackets:
        raise ExpressionError(f"`{open_brackets[-1][0]}` is never closed", "close it", open_brackets[-1][1])
    line = re.sub(r"[\t\r\n]", " ", text)
    return line.strip(" "), len(line) - len(line.lstrip(" "))


def _check_token(text: str, at: int, kind: str, word: str, before: str) -> None:
    if kind == "name" and before == "number":
        start = _token_start(text, at)
        raise ExpressionError(
            f"`{text[start : at + len(word)]}` is no number",
            "expressions take plain decimal numbers; a field's unit is in its name (`_tokens`, `_s`, `_requests`)",
            start,
            at + len(word) - start,
        )
    if kind == "number" and len(word) > 1 and word[0] == "0" and word.strip("0_").isdigit() and word[1:2] != ".":
        raise ExpressionError(f"`{word}` has a leading zero", f"write {word.lstrip('0_')}", at, len(word))
    if kind == "number" and before in ("number", "name"):
        raise ExpressionError(f"`{word}` is out of place", "write numbers like 0.5, 4096 or 1e6", at, len(word))
    if kind == "name" and keyword.iskeyword(word) and word not in _WORDS:
        raise ExpressionError(f"`{word}` is not part of the expression language", _SUBSET, at, len(word))
    if kind != "string":
        return
    if before == "name":
        start = _token_start(text, at)
        prefix = text[start:at]
        what = "an f-string" if prefix.lower() in ("f", "fr", "rf") else f"a string with the prefix `{prefix}`"
        raise ExpressionError(
            f"{what} is not part of the expression language", 'write a plain string, as in "gold"', start,
            at + len(word) - start,
        )  # fmt: skip
    for i, char in enumerate(word):
        if char == "\\" or not char.isprintable():
            raise ExpressionError(
                f"{_show(char)} inside a string", "a string holds printable characters as they are, no escapes", at + i
            )


def _token_start(text: str, end: int) -> int:
    """Where the number or name that ends at ``end`` begins."""
    while end and (text[end - 1].isalnum() or text[end - 1] in "_."):
        end -= 1
    return end


def _unknown(text: str, at: int) -> ExpressionError:
    char = text[at]
    if char in "\"'":
        return ExpressionError("the string is never closed", f"close it with {char}", at, len(text) - at)
    for word, what in _NAMED.items():
        if text.startswith(word, at):
            help = _INSTEAD.get(word, _INSTEAD.get(char, _SUBSET))
            return ExpressionError(f"{what} is not part of the expression language", help, at, len(word))
    return ExpressionError(f"{_show(char)} is not part of the expression language", _INSTEAD.get(char, _SUBSET), at)


def _show(char: str) -> str:
    if char.isprintable():
        return f"`{char}`"
    return f"the character U+{ord(char):04X}"
