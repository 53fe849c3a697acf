"""docs/facts.md names what the tables hold."""

from __future__ import annotations

import re
from pathlib import Path

from kvpolicy.facts.evidence import EVIDENCE
from kvpolicy.language.codes import CODES
from kvpolicy.language.codes.facts import FACTS

PAGE = (Path(__file__).parents[2] / "docs" / "facts.md").read_text()


def test_every_known_bad_report_is_on_the_page() -> None:
    sources = {row.source for row in EVIDENCE if row.level == "known bad"}
    assert sources
    assert all(source in PAGE for source in sources)


def test_codes_on_the_page_exist() -> None:
    named = set(re.findall(r"KVP\d{3}", PAGE))
    assert named <= set(CODES)
    assert set(FACTS) - named <= {"KVP515", "KVP524"}  # a missing argument and an empty pool speak for themselves
