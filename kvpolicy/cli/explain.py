"""Explain a diagnostic code, with a policy that raises it and one that does not, or answer a question by topic.

Without an argument: list all codes and topics.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from typing import Any

from kvpolicy.cli.main import EXIT_OK, EXIT_USAGE
from kvpolicy.language.codes import CODES, Code
from kvpolicy.language.codes.base import HEADER
from kvpolicy.language.fields import did_you_mean
from kvpolicy.language.topics import TOPICS, Topic
from kvpolicy.live.symptoms import SYMPTOMS, Symptom

__all__ = ["add_arguments", "run"]

_MAX_LINES = 28  # of an example: some are long because being long is the point


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subjects", nargs="*", metavar="CODE|TOPIC", help="like KVP301 (or 301), or like pins; left out: list all"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    chosen: list[Code | Symptom | Topic] = []
    for asked in args.subjects or [*CODES, *SYMPTOMS, *TOPICS]:
        found = _find(asked)
        if isinstance(found, str):
            print(f"kvpolicy explain: {found}", file=sys.stderr)
            return EXIT_USAGE
        chosen.append(found)
    if args.format == "json":
        json.dump([_data(each) for each in chosen], sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")
    elif not args.subjects:
        sys.stdout.write("".join(f"{_word(each):<12}  {each.title}\n" for each in chosen))
    else:
        sys.stdout.write("\n".join(_text(each) for each in chosen))
    return EXIT_OK


def _find(asked: str) -> Code | Symptom | Topic | str:
    """The code or topic, or what to say when there is none."""
    if asked.lower() in TOPICS:
        return TOPICS[asked.lower()]
    is_code = asked.upper().startswith("KVP") or asked.isdecimal()
    if not is_code:
        return f"there is no topic {asked}; {did_you_mean(asked, TOPICS) or 'known: ' + ', '.join(TOPICS)}"
    code = asked.upper() if asked.upper().startswith("KVP") else f"KVP{asked}"
    if code in CODES:
        return CODES[code]
    if code in SYMPTOMS:
        return SYMPTOMS[code]
    group = ", ".join(known for known in (*CODES, *SYMPTOMS) if known[:4] == code[:4])
    return f"there is no code {asked} (known: {group or 'KVP101, KVP201, ...'})"


def _word(subject: Code | Symptom | Topic) -> str:
    return subject.name if isinstance(subject, Topic) else subject.code


def _text(subject: Code | Symptom | Topic) -> str:
    if isinstance(subject, Symptom):
        raised = "raised by: kvpolicy doctor --url http://host:port"
        return f"{subject.code}: {subject.title}\n\n{_fill(subject.text)}\n\n{raised}\n"
    return _code_text(subject) if isinstance(subject, Code) else _topic_text(subject)


def _topic_text(topic: Topic) -> str:
    paragraphs = "\n\n".join(_fill(part) for part in topic.text.split("\n\n"))
    example = (
        f"\nfor example (kvpolicy test policy.yaml):\n\n{_indent(HEADER + topic.example)}" if topic.example else ""
    )
    return f"{topic.name}: {topic.title}\n\n{paragraphs}\n{example}"


def _code_text(code: Code) -> str:
    check = " ".join(["kvpolicy check", *(() if code.code == "KVP101" else ("policy.yaml",)), *code.args])
    parts = [f"{code.code}: {code.title}\n\n{_fill(code.text)}\n"]
    if code.code == "KVP101":
        return f"{parts[0]}\nraised by: {check}\n"
    parts.append(f"\nbad ({check}):\n\n{_example(code, 'bad')}")
    asked = "" if code.good_args is None else f" ({' '.join(['kvpolicy check policy.yaml', *code.good_args])})"
    parts.append(f"\ngood{asked}:\n\n{_example(code, 'good')}")
    for name in code.files:
        parts.append(f"\nbeside it, {name}:\n\n{_indent(code.files[name])}" if len(code.files) <= 2 else "")
    return "".join(parts)


def _fill(text: str) -> str:
    return textwrap.fill(text, 100, break_on_hyphens=False, break_long_words=False)


def _example(code: Code, which: str) -> str:
    return _indent(code.example(which).decode("utf-8", errors="backslashreplace"))


def _indent(text: str) -> str:
    lines = [
        "".join(c if c.isprintable() or c == "\t" else f"\\x{ord(c):02x}" for c in line) for line in text.split("\n")
    ]
    lines = lines[:-1] if lines and not lines[-1] else lines
    shown = [line if len(line) <= 160 else f"{line[:157]}..." for line in lines[:_MAX_LINES]]
    if len(lines) > _MAX_LINES:
        shown.append(f"... ({len(lines) - _MAX_LINES:,} more lines)")
    return "".join(f"    {line}\n" for line in shown)


def _data(subject: Code | Symptom | Topic) -> dict[str, Any]:
    if isinstance(subject, Topic):
        example = HEADER + subject.example if subject.example else ""
        return {"topic": subject.name, "title": subject.title, "text": subject.text, "example": example}
    if isinstance(subject, Symptom):
        return {"code": subject.code, "title": subject.title, "text": subject.text}
    code = subject
    return {
        "code": code.code,
        "title": code.title,
        "text": code.text,
        "bad": code.example("bad").decode("utf-8", errors="backslashreplace"),
        "good": code.example("good").decode("utf-8", errors="backslashreplace"),
        "files": dict(code.files),
        "args": list(code.args),
        "good_args": list(code.args if code.good_args is None else code.good_args),
    }
