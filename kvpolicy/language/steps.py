"""The event notation of `tests:`: one line of text -> one :class:`Event`.

    [+DURATION] PATH [-> OUTPUT] [xN] [every DURATION] [for DURATION] [tenant=T] [priority=N] [session=S] [lora=L]
        [retain=TTL[,TOKENS]] [demote] [expire] [class=NAME] [hit H]
    [+DURATION] flood NxTOKENS [every DURATION] [tenant=T] ...

PATH is segments with `/` between them, `NAME` or `NAME:TOKENS`; equal paths are equal tokens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kvpolicy.language.fields import did_you_mean
from kvpolicy.language.units import UnitError, parse_duration_ms, parse_tokens

__all__ = [
    "EVENT_PATTERN",
    "EVENT_WORDS",
    "MAX_REPEATS",
    "SEGMENT_PATTERN",
    "Event",
    "Segment",
    "StepError",
    "parse_event",
    "parse_path",
]

MAX_REPEATS = 10_000
SEGMENT_PATTERN = r"[A-Za-z_][A-Za-z0-9_.-]*"
#: What an editor can check of an event; the parser says more.
EVENT_PATTERN = rf"^ *(\+[0-9.]+ ?(ms|s|m|h) +)?(flood +[0-9]+x[0-9]|{SEGMENT_PATTERN})"
_SEGMENT = re.compile(rf"(?P<name>{SEGMENT_PATTERN})(:(?P<tokens>\S+))?")
_FLOOD = re.compile(r"(?P<count>[0-9]+)x(?P<tokens>\S+)")
EVENT_WORDS = ("->", "every", "flood", "for", "hit", "tenant=", "priority=", "session=", "lora=", "retain=",
               "demote", "expire", "class=", "x3")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Segment:
    """A named run of tokens; ``tokens`` ``None``: its length is declared elsewhere."""

    name: str
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """One or more requests. A flood is ``repeat`` one-off prompts of ``flood_tokens`` each."""

    text: str
    after_ms: int = 0  # policy time since the event before
    path: tuple[Segment, ...] = ()
    output: Segment | None = None
    flood_tokens: int | None = None
    repeat: int = 1
    every_ms: int = 0  # between repeated requests
    lasts_ms: int | None = None  # the request runs, and locks its path, for that long
    tenant: str | None = None
    priority: int | None = None
    session: str | None = None
    lora: str | None = None
    hit: int | str | None = None  # expected of the last request: tokens, "all", "none", or a segment of the path
    hit_offset: int = 0  # of the word `hit` in the text
    retain_ms: int | None = None  # the hints that the request carries: retain's ttl, ...
    retain_tokens: int | None = None  # ... and how much of the prefix
    demote: bool = False
    expire: bool = False
    hint_class: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names on the path, the output last."""
        return tuple(segment.name for segment in (*self.path, *((self.output,) if self.output else ())))


class StepError(ValueError):
    """A step that cannot be read; ``offset`` and the message say where and why."""

    def __init__(self, message: str, help: str, offset: int = 0) -> None:
        super().__init__(message)
        self.message, self.help, self.offset = message, help, offset


def parse_path(text: str, offset: int = 0) -> tuple[Segment, ...]:
    """`sys:128/a1` -> segments. Raises StepError."""
    found: list[Segment] = []
    for part in text.split("/"):
        match = _SEGMENT.fullmatch(part)
        if match is None:
            shown = f"'{part[:40]}'" if part else "an empty segment"
            raise StepError(
                f"{shown} is no segment of a path", "write names with `/` between them, like sys:128/ana", offset
            )
        tokens = match["tokens"]
        found.append(
            Segment(match["name"], None if tokens is None else _tokens(tokens, offset + len(match["name"]) + 1))
        )
        offset += len(part) + 1
    return tuple(found)


def parse_event(text: str) -> Event:
    """Raises StepError."""
    words = [(match[0], match.start()) for match in re.finditer(r"\S+", text)]
    event = Event(" ".join(word for word, _ in words))
    if words and words[0][0].startswith("+"):
        word, at = words.pop(0)
        event = replace(event, after_ms=_duration(word[1:], at + 1))
    if not words:
        raise StepError(
            "there is no request in this step",
            "policy time moves only when a request arrives: write `+10s PATH`, like `+10s sys/ana`",
        )
    word, at = words.pop(0)
    if word == "flood":
        if not words or (match := _FLOOD.fullmatch(words[0][0])) is None:
            raise StepError("a flood says how many prompts of how many tokens", "write it like `flood 40x64`", at)
        _, at = words.pop(0)
        event = replace(
            event, repeat=_count(match["count"], at), flood_tokens=_tokens(match["tokens"], at + match.end("count") + 1)
        )
    else:
        event = replace(event, path=parse_path(word, at))
    while words:
        word, at = words.pop(0)
        event = _modified(event, word, at, words)
    return event


def _modified(event: Event, word: str, at: int, words: list[tuple[str, int]]) -> Event:
    key, equals, value = word.partition("=")
    if equals and key in ("tenant", "session", "lora") and value:
        return _set(event, at, **{key: value})
    if equals and key == "priority" and re.fullmatch(r"-?[0-9]{1,9}", value):
        return _set(event, at, priority=int(value))
    if equals and key == "priority":
        raise StepError(f"a priority is a whole number, not '{value[:20]}'", "write priority=-1", at + len(key) + 1)
    if equals and key == "class" and value:
        return _set(event, at, hint_class=value)
    if equals and key == "retain":
        ttl, comma, tokens = value.partition(",")
        at += len(key) + 1
        retain_tokens = _tokens(tokens, at + len(ttl) + 1) if comma else None
        return _set(event, at, retain_ms=_duration(ttl, at), retain_tokens=retain_tokens)
    if word in ("demote", "expire"):
        return _set(event, at, **{word: True})
    if event.flood_tokens is None:
        if re.fullmatch(r"x[0-9]+", word):
            return _set(event, at, repeat=_count(word[1:], at + 1))
        if word == "->":
            (segment, *more) = parse_path(*_next(words, at, word, "a segment: `-> answer:32`"))
            if more:
                raise StepError("an output is one segment", "write `-> answer:32`", at)
            return _set(event, at, output=segment)
        if word == "hit":
            value, _ = _next(words, at, word, "tokens, `all`, `none` or a segment of the path")
            hit: int | str = int(value) if value.isdecimal() and len(value) < 13 else value
            if isinstance(hit, str) and hit not in ("all", "none", *(segment.name for segment in event.path)):
                raise StepError(
                    f"'{value[:40]}' is not what a request can hit",
                    f"tokens, `all`, `none`, or where the hit ends: {', '.join(event.names)}",
                    at,
                )
            return _set(event, at, hit=hit, hit_offset=at)
    if word == "every":
        return _set(event, at, every_ms=_duration(*_next(words, at, word, "a duration: `every 1s`")))
    if word == "for":
        return _set(event, at, lasts_ms=_duration(*_next(words, at, word, "a duration: `for 10s`")))
    guess = did_you_mean(word, EVENT_WORDS) or f"after the request may stand {', '.join(EVENT_WORDS)}"
    raise StepError(f"'{word[:40]}' means nothing here", guess, at)


def _set(event: Event, at: int, **changes: object) -> Event:
    for name, value in changes.items():
        if value is not None and getattr(event, name) != getattr(Event(""), name):
            raise StepError("it is said twice", "keep one of the two", at)
    return replace(event, **changes)  # type: ignore[arg-type]


def _next(words: list[tuple[str, int]], at: int, word: str, what: str) -> tuple[str, int]:
    if not words:
        raise StepError(f"`{word}` needs {what}", f"write {what}", at)
    return words.pop(0)


def _count(text: str, at: int) -> int:
    count = int(text[:9])
    if not 1 <= count <= MAX_REPEATS:
        raise StepError(f"{text[:12]} requests in one step", f"from 1 to {MAX_REPEATS}", at)
    return count


def _duration(text: str, at: int) -> int:
    try:
        return parse_duration_ms(text)
    except UnitError as error:
        raise StepError(error.message, error.help, at) from None


def _tokens(text: str, at: int) -> int:
    try:
        tokens = parse_tokens(int(text) if text.isdecimal() and len(text) < 13 else text)
    except UnitError as error:
        raise StepError(error.message, error.help, at) from None
    if tokens < 1:
        raise StepError("it has no tokens", "at least 1", at)
    return tokens
