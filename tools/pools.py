"""Reads SGLang's sources and writes the table of its KV pool classes: what a policy does to each, and why not more.

No engine is imported: classes, and how `KVCacheConfigurator` makes them, are read from the syntax trees of each pinned
version, and our own subclasses from the adapter's. `python3.11 -m tools.pools` rewrites the module
`kvpolicy/facts/sglang_pool_table.py` and the table of docs/pools.md; tests/facts/test_pools.py compares.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tools.environment import CHECKOUT, Environment, load_pins

MODULE = CHECKOUT / "kvpolicy/facts/sglang_pool_table.py"
PAGE = CHECKOUT / "docs/pools.md"
ADAPTER = CHECKOUT / "adapters/kvpolicy_sglang"
BEGIN, END = "<!-- pools -->\n", "<!-- /pools -->\n"
_ROOT = "KVCache"
_DISPATCH = "_build_token_to_kv_pool"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy does to a class: `substituted`, `configured` or `left alone`, and why."""

    kind: str
    why: str


@dataclass
class Sources:
    """The syntax trees of one SGLang's `srt` folder, as far as pools go."""

    srt: Path
    bases: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    bodies: dict[str, set[str]] = field(default_factory=dict)  # names that occur in a class, its bases apart
    makers: dict[str, str] = field(default_factory=dict)  # by class: the first file that makes it

    def __post_init__(self) -> None:
        for folder in ("mem_cache", "hardware_backend"):
            for path in sorted((self.srt / folder).rglob("*.py")):
                file = path.relative_to(self.srt).as_posix()
                tree = ast.parse(path.read_text())
                for node in tree.body:
                    if isinstance(node, ast.ClassDef):
                        self.bases[node.name] = [_name(base) for base in node.bases]
                        self.files[node.name] = file
                        self.bodies[node.name] = set().union(*map(_names, node.body))
                for call in ast.walk(tree):
                    if isinstance(call, ast.Call):
                        self.makers.setdefault(_name(call.func), file)

    def is_pool(self, name: str) -> bool:
        return name == _ROOT or any(self.is_pool(base) for base in self.bases.get(name, ()))

    @cached_property
    def pools(self) -> list[str]:
        """Classes that hold KV, in the order of their files."""
        return [name for name in self.bases if name != _ROOT and self.is_pool(name)]

    @cached_property
    def builders(self) -> dict[str, ast.FunctionDef]:
        """Methods of the class that makes a scheduler's pools, by name."""
        tree = ast.parse((self.srt / "mem_cache/kv_cache_configurator.py").read_text())
        (made,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "KVCacheConfigurator")
        return {node.name: node for node in made.body if isinstance(node, ast.FunctionDef)}

    def builders_of(self, pool: str) -> list[str]:
        """Methods that make the class: by name, or handed to them as a class by the dispatching method."""
        named = [name for name, node in self.builders.items() if pool in _names(node) and name != _DISPATCH]
        for node in ast.walk(self.builders[_DISPATCH]):
            if isinstance(node, ast.Assign) and pool in _names(node.value):
                parameter = _name(node.targets[0])
                named += [name for name, found in self.builders.items() if parameter in _parameters(found)]
        return [name for name in dict.fromkeys(named) if name.startswith("_build") and "allocator" not in name]

    def asks_for_both(self, builder: str) -> bool:
        """Whether some call in the method passes on the page size and the dtype that the arguments resolved to."""
        for node in ast.walk(self.builders[builder]):
            if isinstance(node, ast.Call):
                passed = {word.arg: _name(word.value) for word in node.keywords}
                if passed.get("dtype") == "kv_cache_dtype" and "page_size" in passed:
                    return True
        return False

    def outcome(self, pool: str, substituted: set[str]) -> Outcome:
        if pool in substituted:
            return Outcome("substituted", "by our subclass for dtypes of single layers, int8 and int4; else configured")
        if self.files[pool].startswith("hardware_backend/"):
            return Outcome("left alone", "another platform's")
        builders = self.builders_of(pool)
        ours = [name for name in builders if "_ascend_" not in name and "_oot_" not in name]
        if any(self.asks_for_both(name) for name in ours):
            return Outcome("configured", "made with the page size and the dtype of the engine's arguments")
        if ours:
            return Outcome("left alone", "made in a layout and dtype of the model's own")
        owners = [other for other in self.pools if other != pool and pool in self.bodies[other]]
        owners = [other for other in owners if not self.files[other].startswith("hardware_backend/")]
        if owners:
            return Outcome("left alone", f"a part of {owners[0]}, which makes it")
        children = [other for other in self.pools if pool in self.bases[other]]
        if children:
            return Outcome("left alone", "a base class, never made itself")
        if pool in self.makers:
            return Outcome("left alone", f"made by {self.makers[pool]}, beside the configurator")
        return Outcome("left alone", "never made in this version")


def _name(node: ast.AST) -> str:
    """The last part of a dotted name; "" for anything else."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _names(node: ast.AST) -> set[str]:
    return {found.id for found in ast.walk(node) if isinstance(found, ast.Name)}


def _parameters(node: ast.FunctionDef) -> set[str]:
    return {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}


def substituted_by_us(pools: set[str]) -> set[str]:
    """Pool classes that a class of the adapter subclasses."""
    return {
        _name(base)
        for path in ADAPTER.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if _name(base) in pools
    }


def table(environment: Environment) -> dict[str, dict[str, Outcome]]:
    """Pool class -> version -> outcome; a class that a version lacks has no entry there."""
    found: dict[str, dict[str, Outcome]] = {}
    for version in load_pins()["sglang"]["versions"]:
        sources = Sources(environment.root / f"sglang-{version}/sglang/srt")
        substituted = substituted_by_us(set(sources.pools))
        for pool in sources.pools:
            found.setdefault(pool, {})[version] = sources.outcome(pool, substituted)
    return dict(sorted(found.items()))


def as_module(rows: dict[str, dict[str, Outcome]]) -> str:
    lines = [
        '"""Written by `python3.11 -m tools.pools` from the engine\'s sources: do not edit.',
        "",
        "SGLang's KV pool classes: version -> (what a policy does to it, why).",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        '__all__ = ["POOLS"]',
        "",
        "POOLS: dict[str, dict[str, tuple[str, str]]] = {",
    ]
    for pool, versions in rows.items():
        lines.append(f'    "{pool}": {{')
        lines += [f'        "{version}": ("{o.kind}", "{o.why}"),' for version, o in versions.items()]
        lines.append("    },")
    return "\n".join([*lines, "}", ""])


def as_markdown(rows: dict[str, dict[str, Outcome]]) -> str:
    versions = load_pins()["sglang"]["versions"]
    lines = [f"| pool class | {' | '.join(versions)} | why |", "| --- |" + " --- |" * (len(versions) + 1)]
    for pool, found in rows.items():
        kinds = [found[version].kind if version in found else "" for version in versions]
        whys = dict.fromkeys(outcome.why for outcome in found.values())
        lines.append(f"| `{pool}` | {' | '.join(kinds)} | {'; '.join(whys)} |")
    return "\n".join([*lines, ""])


def page(text: str, rows: dict[str, dict[str, Outcome]]) -> str:
    """docs/pools.md with its table replaced."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + as_markdown(rows) + END + rest.split(END)[1]


def main() -> int:
    rows = table(Environment.default())
    MODULE.write_text(as_module(rows))
    PAGE.write_text(page(PAGE.read_text(), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
