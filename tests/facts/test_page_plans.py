"""What `check` says of `backend.page_native` on SGLang: what runs, what is read, and what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kvpolicy_sglang.attention_pages_support import SECTION

from kvpolicy.facts import report
from kvpolicy.facts.report import deployment, report_on
from kvpolicy.language import Diagnostic, load_text
from tests.facts.matrix import MODELS

HEADER = "apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {name: test}\n"
NATIVE = "backend: {attention: flashinfer, page_native: true}\n"


@pytest.fixture
def check(tmp_path: Path):
    def run(text: str, model: str = "llama-3.1-8b", traffic: str | None = None) -> list[Diagnostic]:
        config = tmp_path / "config.json"
        config.write_text(json.dumps(MODELS[model]))
        policy = load_text((HEADER + text).encode(), "p.yaml", "sglang").policy
        assert policy is not None
        where = deployment(engine="sglang==0.5.23", model=str(config), gpu="h200", memory="60GiB", traffic=traffic)
        return report_on(policy, where)

    return run


def of(items: list[Diagnostic], code: str, words: str = "") -> list[Diagnostic]:
    return [item for item in items if item.code == code and words in item.message]


def test_plans_by_pages_shorten_the_index(check) -> None:
    text = "cache: {page_size: 16}\n"
    stock, ours = check(text + "backend: {attention: flashinfer}\n"), check(text + NATIVE)
    assert of(ours, "KVP507", "FlashInfer is planned by pages of 16 tokens")
    assert of(stock, "KVP507", "single-token pages")
    assert not of(ours, "KVP507", "single-token pages")
    entries = [of(items, "KVP506")[0].data["index_entries"] for items in (stock, ours)]
    assert entries == [32768, 2048]
    by_size = [row["index_bytes"] for row in of(ours, "KVP506")[0].data["granularity"]]
    assert by_size == [131072, 8192, 2048]


def test_traffic_says_whether_pages_are_read(check) -> None:
    text, load = "cache: {page_size: 16}\n", "batch=128,shared=8Ki,unique=256"
    (stock,) = of(check(text + "backend: {attention: flashinfer}\n", traffic=load), "KVP542")
    (ours,) = of(check(text + NATIVE, traffic=load), "KVP542")
    assert (stock.data["reads_tokens"], ours.data["reads_tokens"]) == (True, False)
    assert stock.message.endswith("nothing of this is gained without `backend: {page_native: true}`")


def test_at_page_size_one_it_changes_nothing(check) -> None:
    (said,) = of(check("cache: {page_size: 1}\n" + NATIVE), "KVP507", "page size 1")
    assert said.severity == "info"


@pytest.mark.parametrize(
    ("text", "model", "words"),
    [
        ("backend: {attention: triton, page_native: true}\n", "llama-3.1-8b", "triton runs here"),
        ("backend: {page_native: true}\n", "llama-3.1-8b", "fa3 runs here"),
        (NATIVE, "gemma-2-9b", "models with sliding windows"),
        (NATIVE, "gemma-3-1b", "sliding window"),
        (NATIVE, "deepseek-v2-lite", "MLA models"),
        (NATIVE, "qwen3-next-80b", "models"),
    ],
)
def test_what_cannot_be_planned_by_pages_is_a_conflict(check, text: str, model: str, words: str) -> None:
    (said,) = [item for item in check(text, model) if item.code == "KVP511" and "FlashInfer" in item.message]
    assert words in said.message
    assert said.severity == "error"
    lenient = check("cache: {on_conflict: warn}\n" + text, model)
    assert "error" not in {item.severity for item in lenient if "page" in item.message and item.code == "KVP511"}


def test_nothing_is_said_without_the_word() -> None:
    policy = load_text((HEADER + "backend: {attention: flashinfer}\n").encode(), "p.yaml", "sglang").policy
    assert policy is not None
    assert not [item for item in report(policy, engine="sglang==0.5.23", gpu="h200") if "by pages of" in item.message]


def test_the_adapter_says_it_of_the_same_field() -> None:
    assert SECTION == "backend.page_native"
