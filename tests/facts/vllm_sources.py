"""What a vLLM source tree says of KV dtypes and attention backends, read by syntax: nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kvpolicy.facts.dtypes import canonical


class SourceBackend(NamedTuple):
    """Class attributes of one backend, inherited ones included; empty where the source computes them."""

    kv_dtypes: frozenset[str]
    blocks: frozenset[int]


def kv_dtype_names(package: Path) -> frozenset[str]:
    """`CacheDType` of `config/cache.py`, in our spelling."""
    for node in _tree(package / "config/cache.py").body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CacheDType":
            return frozenset(canonical(name) for name in _strings(node.value))
    raise AssertionError("no CacheDType")


def backend_paths(package: Path) -> dict[str, str]:
    """`AttentionBackendEnum`: name in lower case -> dotted class path."""
    registry = _class(_tree(package / "v1/attention/backends/registry.py"), "AttentionBackendEnum")
    assert registry is not None
    return {
        ast.unparse(node.targets[0]).lower(): "".join(_strings(node.value))
        for node in registry.body
        if isinstance(node, ast.Assign) and list(_strings(node.value))
    }


def read_backend(package: Path, path: str) -> SourceBackend:
    """Follow a class and its bases through the modules they are imported from."""
    module, _, name = path.rpartition(".")
    tree = _tree(package.parent / (module.replace(".", "/") + ".py"))
    cls = _class(tree, name)
    assert cls is not None, path
    kv_dtypes, blocks = frozenset[str](), frozenset[int]()
    for node in cls.body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if target is not None and ast.unparse(target) == "supported_kv_cache_dtypes" and node.value is not None:  # type: ignore[union-attr]
            kv_dtypes = frozenset(canonical(word) for word in _strings(node.value))  # type: ignore[union-attr, arg-type]
        if isinstance(node, ast.FunctionDef) and node.name == "get_supported_kernel_block_sizes":
            blocks = frozenset(size for line in ast.walk(node) if isinstance(line, ast.Return) for size in _ints(line))
    for base in cls.bases if not (kv_dtypes and blocks) else ():
        origin = _origin(tree, module, ast.unparse(base))
        if origin is not None:
            above = read_backend(package, origin)
            kv_dtypes, blocks = kv_dtypes or above.kv_dtypes, blocks or above.blocks
    return SourceBackend(kv_dtypes, blocks)


def _origin(tree: ast.Module, module: str, name: str) -> str | None:
    if _class(tree, name) is not None:
        return f"{module}.{name}"
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return f"{node.module}.{name}"
    return None


def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def cascading_backends(package: Path) -> frozenset[str]:
    """Backends, by module name, with a `use_cascade_attention` that can answer something else than False."""
    found = set()
    for path in sorted((package / "v1/attention/backends").glob("*.py")):
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.FunctionDef) and node.name == "use_cascade_attention":
                returned = [ast.unparse(r.value) for r in ast.walk(node) if isinstance(r, ast.Return) and r.value]
                # A method: the function of that name beside it is what FlashAttention's method calls.
                if node.args.args and node.args.args[0].arg == "self" and set(returned) != {"False"}:
                    found.add(path.stem)
    return frozenset(found)


def cascade_thresholds(package: Path) -> frozenset[int]:
    """Numbers that FlashAttention's decision compares with."""
    function = next(
        node
        for node in _tree(package / "v1/attention/backends/flash_attn.py").body
        if isinstance(node, ast.FunctionDef) and node.name == "use_cascade_attention"
    )
    compared = [node for node in ast.walk(function) if isinstance(node, ast.Compare)]
    numbers = [part.value for node in compared for part in node.comparators if isinstance(part, ast.Constant)]
    return frozenset(number for number in numbers if isinstance(number, int))


def _class(tree: ast.Module, name: str) -> ast.ClassDef | None:
    return next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)


def _strings(node: ast.AST) -> Iterator[str]:
    return (n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def _ints(node: ast.AST) -> Iterator[int]:
    return (n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and type(n.value) is int)
