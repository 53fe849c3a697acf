"""Tables of features as the documentation prints them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvpolicy.runtime.support import Feature


def features_table(features: Iterable[Feature[Any]]) -> str:
    rows = ["| feature | flag | outcome | why |", "| --- | --- | --- | --- |"]
    rows += [
        f"| {f.name} | {'`' + f.flag + '`' if f.flag.startswith('-') else f.flag} | {f.kind} | {f.reason} |"
        for f in features
    ]
    return "\n".join(rows)


def printed(document: Path, name: str) -> str:
    """What stands between ``<!-- name -->`` and ``<!-- /name -->``."""
    return document.read_text().split(f"<!-- {name} -->\n")[1].split(f"\n<!-- /{name} -->")[0]
