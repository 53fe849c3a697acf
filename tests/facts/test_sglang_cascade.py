"""What `check` says of `backend.cascade` on SGLang: what runs, and what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kvpolicy_sglang.attention_cascade_support import SECTION

from kvpolicy.facts.report import deployment, report_on
from kvpolicy.language import Diagnostic, load_text
from tests.facts.matrix import MODELS

HEADER = "apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {name: test}\n"


@pytest.fixture
def check(tmp_path: Path):
    def run(text: str, model: str = "llama-3.1-8b") -> list[Diagnostic]:
        config = tmp_path / "config.json"
        config.write_text(json.dumps(MODELS[model]))
        policy = load_text((HEADER + text).encode(), "p.yaml", "sglang").policy
        assert policy is not None
        where = deployment(engine="sglang==0.5.23", model=str(config), gpu="h200", memory="60GiB")
        found = report_on(policy, where)
        return [
            item
            for item in found
            if item.code in ("KVP507", "KVP511")
            and item.message.startswith(("the cascade", "shared prefixes", "decode steps"))
        ]

    return run


@pytest.mark.parametrize("word", ["auto", "{min_shared_tokens: 1024, min_batch: 4}"])
def test_with_flashinfer_it_runs(check, word: str, tmp_path: Path) -> None:
    text = f"backend: {{attention: flashinfer, cascade: {word}}}\n"
    policy = load_text((HEADER + text).encode(), "p.yaml", "sglang").policy
    assert policy is not None
    where = deployment(engine="sglang==0.5.23", gpu="h200", memory="60GiB")
    (said,) = [item for item in report_on(policy, where) if "read what requests share once" in item.message]
    assert said.code == "KVP507"
    assert said.severity == "info"
    assert ("cost model" in said.message) == (word == "auto")


@pytest.mark.parametrize(
    ("text", "model", "words"),
    [
        ("backend: {cascade: auto}\n", "llama-3.1-8b", "fa3 decodes here"),
        ("backend: {attention: triton, cascade: auto}\n", "llama-3.1-8b", "triton decodes here"),
        ("backend: {attention: flashinfer, cascade: auto}\n", "gemma-2-9b", "models with sliding windows"),
    ],
)
def test_what_cannot_be_is_a_conflict(check, text: str, model: str, words: str) -> None:
    (said,) = check(text, model)
    assert (said.code, said.severity) == ("KVP511", "error")
    assert words in said.message
    (said,) = check(text + "cache: {on_conflict: warn}\n", model)
    assert said.severity == "warning"
    assert SECTION == "backend.cascade"


def test_off_says_nothing(check) -> None:
    assert check("backend: {cascade: off}\n") == []
