"""What the probes of both engines share: how a test asks, how a probe answers, and the devices that are stood in for.

`ask` runs in the tests, everything else inside an engine; standard library only.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

# name -> (compute capability, MiB)
DEVICES = {
    "t4": ((7, 5), 15360),
    "a100": ((8, 0), 81920),
    "l40s": ((8, 9), 46068),
    "h200": ((9, 0), 143771),
    "b200": ((10, 0), 183359),
    "rtx5090": ((12, 0), 32607),
    "mi300x": ((9, 4), 196592),
}


def ask(engine: Any, probe: Path, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers of `probe`, run in that engine's environment, in order."""
    done = subprocess.run(
        [engine.python, str(probe)], input=json.dumps(cases), env=engine.env, capture_output=True, text=True
    )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(answers) == len(cases), done.stderr[-2000:]
    return answers


def answer(
    become: Callable[[str], None],
    resolve: Callable[[dict[str, Any], Path], dict[str, Any]],
    prepare: Callable[[list[dict[str, Any]], Path], None] | None = None,
) -> None:
    """Print `resolve(case, folder)` of each case on stdin, a JSON line each, or `{"error": ...}`.

    `become` makes this machine look like the case's device, `prepare(cases, folder)` is called before the first case,
    and `folder` is for models (:func:`write_model`).
    """
    cases = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if prepare is not None:
            prepare(cases, folder)
        for case in cases:
            become(case["gpu"])
            try:
                found = resolve(case, folder)
            except BaseException as error:  # a wrong argument ends a process with SystemExit
                if os.environ.get("PROBE_TRACE"):
                    raise
                found = {"error": f"{type(error).__name__}: {error}"[:400]}
            print(json.dumps(found), flush=True)


def write_model(config: dict[str, Any], folder: Path) -> Path:
    """The directory of a model that has this `config.json` and nothing else."""
    model = folder / str(abs(hash(json.dumps(config, sort_keys=True))))
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(config))
    return model


def properties(gpu: str) -> types.SimpleNamespace:
    """What `torch.cuda.get_device_properties` would say on that device."""
    (major, minor), mib = DEVICES[gpu]
    return types.SimpleNamespace(
        total_memory=mib << 20, major=major, minor=minor, name=gpu, multi_processor_count=132, gcnArchName="gfx942"
    )


class StandIns:
    """Finder of modules that this machine lacks: those that `wanted` names import, and hold what `attribute` gives."""

    def __init__(self, wanted: Callable[[str], bool], attribute: Callable[[str], Any]) -> None:
        self.wanted = wanted
        self.attribute = attribute

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if not self.wanted(name):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__version__ = "0.7.2"  # type: ignore[attr-defined]
        module.__getattr__ = self.attribute  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass
