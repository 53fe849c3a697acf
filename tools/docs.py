"""Keeps pasted output true: runs the `$ kvpolicy ...` lines of the documents again.

In a fenced ```console block, a line `$ kvpolicy ...` (or `$ cat ...`) is run in the folder of its document, and the
lines up to the next `$` are what it must print. Other commands (servers, installs) are left as they were pasted.
A document whose commands write files says `<!-- commands run in a copy of FOLDER -->`, relative to itself.
`python3.11 -m tools.docs` rewrites the documents; tests/test_docs.py compares.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.environment import CHECKOUT, Environment

BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (?P<line>.+)\n(?P<output>(?:(?!\$ ).*\n)*)", re.MULTILINE)


COPY_OF = re.compile(r"^<!-- commands run in a copy of (?P<folder>\S+) -->$", re.MULTILINE)


def documents() -> list[Path]:
    return [CHECKOUT / "README.md", *sorted(CHECKOUT.glob("docs/*.md")), *sorted(CHECKOUT.glob("examples/*/README.md"))]


def refreshed(document: Path, python: Path) -> str:
    """The document's text with every output replaced by what its command prints now."""
    text = document.read_text()
    if (wanted := COPY_OF.search(text)) is None:
        return _refreshed(text, document.parent, python)
    with tempfile.TemporaryDirectory(prefix="kvpolicy-docs-") as scratch:
        folder = shutil.copytree(document.parent / wanted["folder"], Path(scratch) / "copy")
        return _refreshed(text, folder, python)


def _refreshed(text: str, folder: Path, python: Path) -> str:
    def run(match: re.Match[str]) -> str:
        words = shlex.split(match["line"], comments=True)
        if words[0] == "kvpolicy":
            words = [str(python), "-m", "kvpolicy.cli.main", *words[1:]]
        elif words[0] != "cat":
            return match[0]
        done = subprocess.run(
            words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
        )
        return f"$ {match['line']}\n{done.stdout}"

    return BLOCK.sub(lambda block: COMMAND.sub(run, block[0]), text)


def main() -> int:
    python = Environment.default().python
    for document in documents():
        text = refreshed(document, python)
        if text != document.read_text():
            document.write_text(text)
            print(f"rewrote {document.relative_to(CHECKOUT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
