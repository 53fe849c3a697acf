"""The reference pages say what the code does: every field, word and code is in them, and their policies pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvpolicy.cli.main import COMMANDS
from kvpolicy.language import load_text
from kvpolicy.language.capabilities import MISSING
from kvpolicy.language.codes import CODES
from kvpolicy.language.expressions import FUNCTIONS, SCORE_FIELDS
from kvpolicy.language.models import Policy
from kvpolicy.language.mutability import mutability
from kvpolicy.language.shape import models_in
from kvpolicy.language.vocabulary import ATTENTION_BACKENDS, DTYPE_ALIASES, EVICTION_POLICIES, KV_DTYPES
from kvpolicy.live.symptoms import SYMPTOMS

DOCS = Path(__file__).parents[2] / "docs"
LANGUAGE = (DOCS / "language.md").read_text()
PROSE = re.sub(r"^```.*?^```", "", LANGUAGE, flags=re.M | re.S)
WORDS = set(re.findall(r"[A-Za-z_][\w.]*", " ".join(re.findall(r"`([^`]+)`", PROSE))))


def test_every_word_of_the_language_is_documented() -> None:
    known = {*KV_DTYPES, *DTYPE_ALIASES, *ATTENTION_BACKENDS, *EVICTION_POLICIES, *FUNCTIONS, *SCORE_FIELDS}
    known |= {name for policy in EVICTION_POLICIES.values() for name in policy.params or {}}
    known |= {gap.field for gap in MISSING if gap.engine == "sglang"}
    assert known - WORDS == set()


def test_the_table_of_fields_is_complete_and_says_when() -> None:
    rows = dict(re.findall(r"^\| `([a-zA-Z_.]+)` \|.*\| (hot|idle|restart) \|$", LANGUAGE, re.M))
    fields: set[str] = set()
    for name, field in Policy.model_fields.items():
        below = [
            m
            for m in models_in(field.annotation)
            if name in ("metadata", "cache", "backend", "allocator", "eviction", "hints")
        ]
        fields |= {f"{name}.{f.alias or n}" for model in below for n, f in model.model_fields.items()} or {name}
    assert set(rows) == fields
    assert rows == {field: mutability(field) for field in rows}


def test_every_code_is_listed() -> None:
    rows = dict(re.findall(r"^\| (KVP\d+) \| (.*) \|$", (DOCS / "diagnostics.md").read_text(), re.M))
    assert rows == {code.code: code.title for code in (*CODES.values(), *SYMPTOMS.values())}


@pytest.mark.parametrize("text", re.findall(r"^```yaml\n(.*?)^```", LANGUAGE, re.M | re.S))
def test_the_policies_of_the_page_pass(text) -> None:
    result = load_text(text.encode(), "docs.yaml", "sglang")
    assert result.diagnostics == []


def test_the_python_of_the_page_runs(capsys, monkeypatch) -> None:
    monkeypatch.chdir(DOCS.parent)
    (code,) = re.findall(r"^```python\n(.*?)^```", LANGUAGE, re.M | re.S)
    exec(code, {})
    assert re.fullmatch(r"900000 [0-9a-f]{64}\n", capsys.readouterr().out)


def test_the_commands_of_the_language_are_listed() -> None:
    listed = set(re.findall(r"^\| `kvpolicy (\w+)", LANGUAGE, re.M))
    assert listed == {"check", "explain", "init", "show", "list", "schema", "test", "replay"}
    assert listed <= set(COMMANDS)
