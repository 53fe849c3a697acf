"""Sets up everything and runs every check: `./test`. With arguments: only pytest, with those.

Needs Python 3.11 with pip, nothing else. The first run installs (see tools/environment.py); later ones start at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

from tools.environment import CHECKOUT, Environment, say
from tools.models import REAL, TINY, ensure_model

NEEDS_ENGINE = "engine or server"


@dataclass
class Totals:
    """What all pytest runs together did; `broken` names the steps that failed."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    broken: list[str] = field(default_factory=list)

    def add(self, report: Path) -> None:
        """Add one JUnit report; a run that left none adds nothing (its exit code already counts)."""
        if not report.exists():
            return
        for suite in ElementTree.parse(report).iter("testsuite"):
            tests, bad, skipped = (int(suite.get(key, 0)) for key in ("tests", "failures", "skipped"))
            bad += int(suite.get("errors", 0))
            self.passed += tests - bad - skipped
            self.failed += bad
            self.skipped += skipped


def main(selection: list[str]) -> int:
    environment = Environment.default()
    environment.ensure()
    for model in (TINY, REAL):
        ensure_model(environment, model)
    python = str(environment.python)
    if selection:
        return subprocess.run([python, "-m", "pytest", *selection], cwd=CHECKOUT).returncode

    totals = Totals()
    with tempfile.TemporaryDirectory() as reports:
        engines = f"({NEEDS_ENGINE}) and not gpu and not soak"
        checks = {
            "lint": ["ruff", "check", "."],
            "types": ["mypy"],
            # The core first, then engines; two at a time, for a small machine with two cores.
            "core tests": ["pytest", "-q", "-n", "2", "-m", f"not ({NEEDS_ENGINE} or gpu)"],
            "engine tests": ["pytest", "-q", "-n", "2", "--dist", "worksteal", "--durations=15", "-m", engines],
        }
        for name, (tool, *arguments) in checks.items():
            say(f"{name}: {tool} {' '.join(arguments)}")
            report = Path(reports) / f"{name}.xml"
            if tool == "pytest":
                arguments.append(f"--junitxml={report}")
            start = time.monotonic()
            code = subprocess.run([python, "-m", tool, *arguments], cwd=CHECKOUT, stdin=subprocess.DEVNULL).returncode
            say(f"{name}: {'ok' if code == 0 else f'FAILED (exit code {code})'} in {time.monotonic() - start:.0f} s")
            if code != 0:
                totals.broken.append(name)
            totals.add(report)

    if totals.broken:
        say(f"failed: {', '.join(totals.broken)}")
    print(f"{totals.passed} passed, {totals.failed} failed, {totals.skipped} skipped", flush=True)
    return 1 if totals.broken or totals.failed or not totals.passed else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    # Thousands of short programs import this checkout; compiling it each time is half of what that costs.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.exit(main([argument for argument in sys.argv[1:] if argument != "--"]))
