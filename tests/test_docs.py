"""Pasted output is true output, and the documents' links lead somewhere."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tools.docs import documents, refreshed
from tools.environment import CHECKOUT

DOCUMENTS = documents()
NAMES = [str(document.relative_to(CHECKOUT)) for document in DOCUMENTS]


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_pasted_output_is_what_the_command_prints(document: Path) -> None:
    assert document.read_text() == refreshed(document, Path(sys.executable)), "run python3.11 -m tools.docs"


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_local_links_exist(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_check_notices_untrue_output(tmp_path: Path) -> None:
    document = tmp_path / "README.md"
    document.write_text("```console\n$ kvpolicy --version\nkvpolicy 99.0\n$ ./server\nas pasted\n```\n")
    text = refreshed(document, Path(sys.executable))
    assert "99.0" not in text
    assert "$ ./server\nas pasted\n" in text
