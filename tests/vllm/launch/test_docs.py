"""What docs/vllm.md prints of the adapter's own tables is what the adapter decides by."""

from __future__ import annotations

from pathlib import Path

from kvpolicy_vllm.cache_support import FEATURES
from kvpolicy_vllm.resolution import FIELDS

from kvpolicy.facts.engines import supported_span
from tests.tables import features_table, printed

DOCS = Path(__file__).resolve().parents[3] / "docs/vllm.md"


def test_the_documentation_prints_the_features() -> None:
    assert printed(DOCS, "features") == features_table(FEATURES)


def test_the_documentation_names_the_versions_and_every_flag() -> None:
    assert f"Supported: vLLM {supported_span('vllm')}," in DOCS.read_text()
    assert [flag for flag in FIELDS.values() if f"`{flag}`" not in DOCS.read_text()] == []
