"""`backend.cascade` on vLLM as `check` knows it: which release and backend has one, and whose thresholds decide."""

from __future__ import annotations

import pytest

from kvpolicy.facts import deployment, report_on
from kvpolicy.language import Diagnostic, load_text

HEAD = "apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {name: p}\n"


def found(backend: str, version: str, gpu: str | None = "h200", more: str = "") -> list[Diagnostic]:
    loaded = load_text(f"{HEAD}backend: {backend}\n{more}".encode(), "p.yaml", "vllm")
    policy = loaded.policy
    assert policy is not None, loaded.diagnostics
    where = deployment(engine=f"vllm=={version}", gpu=gpu)
    return [d for d in report_on(policy, where, locate=loaded.locate) if "cascade" in d.message]


@pytest.mark.parametrize("version", ["0.26.0", "0.28.0", "0.30.0"])
def test_flash_attention_of_older_releases(version: str) -> None:
    (told,) = found("{cascade: auto}", version)
    assert (told.code, told.severity, told.line) == ("KVP507", "info", 4)
    assert "for a prefix that all running requests share, of 256 tokens and 8 requests at least" in told.message


@pytest.mark.parametrize(
    ("version", "gpu", "backend", "why"),
    [
        ("0.30.0", "h200", "{attention: triton_attn, cascade: auto}", "triton_attn never uses one, flash_attn does"),
        ("0.30.0", "cpu", "{cascade: auto}", "cpu_attn never uses one"),
        ("0.32.0", "h200", "{cascade: auto}", "it was removed in 0.32, and its option has no effect"),
        ("0.33.0", None, "{cascade: auto}", "it was removed in 0.32"),
    ],
)
def test_auto_where_there_is_none_is_a_conflict(version: str, gpu: str | None, backend: str, why: str) -> None:
    (told,) = found(backend, version, gpu)
    assert (told.code, told.severity, told.line) == ("KVP511", "error", 4)
    assert why in told.message
    (lenient,) = found(backend, version, gpu, "cache: {on_conflict: warn}\n")
    assert lenient.severity == "warning"
    assert told.help is not None
    assert not found("{cascade: off}", version, gpu), "what the help says to write"
    fix = told.help.split("`")[3]
    assert not found("{cascade: auto}", version, gpu, fix + "\n")


@pytest.mark.parametrize("version", ["0.30.0", "0.33.0"])
def test_off_is_always_honoured(version: str) -> None:
    assert found("{cascade: off}", version) == []


def test_thresholds_are_vllms_own() -> None:
    text = f"{HEAD}backend: {{cascade: {{min_shared_tokens: 8Ki, min_batch: 16}}}}\n"
    (told,) = load_text(text.encode(), "p.yaml", "vllm").diagnostics
    assert (told.code, told.severity) == ("KVP601", "error")
    assert "vLLM decides by thresholds of its own" in told.message
