"""What docs/vllm.md prints of the adapter's own tables is what the adapter decides by."""

from __future__ import annotations

from pathlib import Path

from kvpolicy_vllm.cache_support import FEATURES
from kvpolicy_vllm.resolution import FIELDS

from kvpolicy.facts.engines import supported_span

TEXT = (Path(__file__).resolve().parents[3] / "docs/vllm.md").read_text()


def test_the_documentation_prints_the_features() -> None:
    rows = ["| feature | flag | outcome | why |", "| --- | --- | --- | --- |"]
    rows += [
        f"| {f.name} | {'`' + f.flag + '`' if f.flag.startswith('--') else f.flag} | {f.kind} | {f.reason} |"
        for f in FEATURES
    ]
    assert TEXT.split("<!-- features -->\n")[1].split("\n<!-- /features -->")[0] == "\n".join(rows)


def test_the_documentation_names_the_versions_and_every_flag() -> None:
    assert f"Supported: vLLM {supported_span('vllm')}," in TEXT
    assert [flag for flag in FIELDS.values() if f"`{flag}`" not in TEXT] == []
