"""Layers import downwards only, and the core never imports an engine."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: package -> what it may import of ours, besides itself
ALLOWED = {
    "kvpolicy.language": {"kvpolicy.eviction", "kvpolicy.facts"},
    "kvpolicy.eviction": {"kvpolicy.language"},
    "kvpolicy.attention": set(),
    "kvpolicy.facts": {"kvpolicy.language", "kvpolicy.attention"},
    "kvpolicy.hints": set(),
    "kvpolicy.compiler": {"kvpolicy.language", "kvpolicy.eviction", "kvpolicy.facts"},
    "kvpolicy.replay": {"kvpolicy.language", "kvpolicy.eviction", "kvpolicy.facts", "kvpolicy.compiler"},
    "kvpolicy.policytest": {"kvpolicy.language", "kvpolicy.eviction", "kvpolicy.compiler", "kvpolicy.replay"},
    "kvpolicy.fidelity": {"kvpolicy.language", "kvpolicy.facts"},
    "kvpolicy.bench": {"kvpolicy.live"},
    "kvpolicy.cli": {
        "kvpolicy.language",
        "kvpolicy.eviction",
        "kvpolicy.facts",
        "kvpolicy.compiler",
        "kvpolicy.replay",
        "kvpolicy.policytest",
        "kvpolicy.fidelity",
        "kvpolicy.live",
        "kvpolicy.bench",
    },
    "kvpolicy.allocators": {"kvpolicy.kernels"},
    "kvpolicy.kernels": {"kvpolicy.facts"},
    "kvpolicy.runtime": {"kvpolicy.language", "kvpolicy.eviction", "kvpolicy.facts", "kvpolicy.compiler"},
    "kvpolicy.live": {
        "kvpolicy.language",
        "kvpolicy.eviction",
        "kvpolicy.facts",
        "kvpolicy.compiler",
        "kvpolicy.runtime",
    },
    "kvpolicy.shadows": {
        "kvpolicy.language",
        "kvpolicy.eviction",
        "kvpolicy.hints",
        "kvpolicy.compiler",
        "kvpolicy.replay",
        "kvpolicy.runtime",
    },
    "kvpolicy_sglang": {
        "kvpolicy.attention",
        "kvpolicy.shadows",
        "kvpolicy.live",
        "kvpolicy.language",
        "kvpolicy.eviction",
        "kvpolicy.facts",
        "kvpolicy.compiler",
        "kvpolicy.runtime",
        "kvpolicy.allocators",
        "kvpolicy.kernels",
        "kvpolicy.fidelity",
    },
    "kvpolicy_vllm": {
        "kvpolicy.shadows",
        "kvpolicy.live",
        "kvpolicy.language",
        "kvpolicy.eviction",
        "kvpolicy.facts",
        "kvpolicy.compiler",
        "kvpolicy.runtime",
        "kvpolicy.fidelity",
    },
}
ENGINES = {"sglang", "vllm", "flashinfer"}
TENSORS = {"torch", "triton", "numpy"}
#: The parts of the core that work on an engine's tensors; everything else runs without PyTorch.
WITH_TENSORS = {"kvpolicy.allocators", "kvpolicy.kernels"}
FILES = sorted([*ROOT.glob("kvpolicy/**/*.py"), *ROOT.glob("adapters/**/*.py")])


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "adapters" else parts).removesuffix(".__init__")


def layer_of(module: str) -> str:
    return next((layer for layer in ALLOWED if module == layer or module.startswith(layer + ".")), module)


def imports(path: Path) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append((node.lineno, node.module))
    return found


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_layers_do_not_import_upwards(path: Path) -> None:
    own = layer_of(module_of(path))
    for line, target in imports(path):
        top, layer = target.split(".")[0], layer_of(target)
        if own.startswith("kvpolicy") and not own.startswith("kvpolicy_"):
            assert top not in ENGINES, f"{path}:{line}: the core imports {target}"
            assert top not in TENSORS or own in WITH_TENSORS, f"{path}:{line}: {own} imports {target}"
        if own in ALLOWED and layer in ALLOWED and layer != own:
            assert layer in ALLOWED[own], f"{path}:{line}: {own} imports {target}, a layer above or beside it"
