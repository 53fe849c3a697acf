"""The matrix of docs/page-size.md says what the outputs pasted below it say (tests/test_docs.py holds those true)."""

from __future__ import annotations

import re
from pathlib import Path

from kvpolicy.facts.capacity import granularity, index_entries, index_entry_bytes

PAGE = (Path(__file__).parents[2] / "docs/page-size.md").read_text()
SIZES = (1, 16, 64)


def row(begins: str) -> list[str]:
    (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| {begins}"))
    return [cell.strip() for cell in line.split("|")[2:5]]


def test_hit_rates_are_those_of_the_replays() -> None:
    runs = re.findall(r"^\$ kvpolicy replay \S+server.log.gz .*--page-size (\d+) .*\n((?:(?!\$ ).*\n)*)", PAGE, re.M)
    assert [int(size) for size, _ in runs] == list(SIZES)
    for capacity, begins in (("16k", "hit rate of a real chat log"), ("64k", "hit rate of the same")):
        hits = [float(re.search(rf"^ *{capacity} +lru +([\d.]+)%", output, re.M)[1]) for _, output in runs]  # type: ignore[index]
        assert row(begins) == [f"{hit:.1f} %" for hit in hits]


def test_losses_and_index_bytes_are_those_of_check() -> None:
    assert row("tokens a hit loses") == [f"{granularity(size).expected_lost_tokens:g}" for size in SIZES]

    def table_bytes(size: int, attention: str) -> str:
        return f"{index_entries(32768, size, attention) * index_entry_bytes(attention):,}"

    assert row("index of a request") == [f"{table_bytes(size, 'fa3')} B" for size in SIZES]
    by_token = f"{table_bytes(1, 'flashinfer')} / {table_bytes(1, 'triton')} B"
    assert row("the same, backend that reads tokens") == [by_token, "the same", "the same"]
