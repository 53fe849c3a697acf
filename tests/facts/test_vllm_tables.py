"""Names, KV dtypes and kernel blocks of our vLLM tables against the sources of each release, read by syntax.

The installed release is always read. Others are where `KVPOLICY_VLLM_SOURCES` says: a folder of unpacked source
distributions, `vllm-0.28.0/` and so on.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvpolicy.facts.engines import ENGINES, Version, parse_version
from kvpolicy.facts.vllm_backends import BACKENDS, rows_of
from kvpolicy.facts.vllm_cascade import CASCADE_BACKENDS, MIN_REQUESTS, MIN_SHARED_TOKENS, has_cascade
from kvpolicy.facts.vllm_names import KV_DTYPE_SINCE
from tests.facts.vllm_sources import backend_paths, cascade_thresholds, cascading_backends, kv_dtype_names, read_backend

pytestmark = pytest.mark.engine
INSTALLED = "0.32.0"
#: Names that differ by design: an alias, another vendor's, and backends that vLLM takes for a model, never by name.
UNNAMED_DTYPES = {"fp8_inc"}
#: Kernel blocks that vLLM computes from an import (read by hand): b12x, FlashAttention's constant of 128.
COMPUTED_BLOCKS = {"b12x", "flash_attn", "rocm_aiter_mla", "rocm_aiter_mla_sparse", "rocm_aiter_unified_attn"}


def package_of(vllm_env: Callable[..., Any], version: str) -> Path:
    if version != INSTALLED:
        folder = Path(os.environ.get("KVPOLICY_VLLM_SOURCES", "")) / f"vllm-{version}" / "vllm"
        if not folder.is_dir():
            pytest.skip(f"no source of vLLM {version} in KVPOLICY_VLLM_SOURCES")
        return folder
    engine = vllm_env(INSTALLED)
    code = "import importlib.util as u; print(u.find_spec('vllm').origin)"
    done = subprocess.run([engine.python, "-c", code], env=engine.env, capture_output=True, text=True, check=True)
    return Path(done.stdout.strip().splitlines()[-1]).parent


def table_names(release: Version) -> set[str]:
    return {name for name in {row.name for row in BACKENDS} if list(rows_of(name, release))}


@pytest.mark.parametrize("version", ENGINES["vllm"])
def test_names_are_those_of_the_source(vllm_env: Callable[..., Any], version: str) -> None:
    package, release = package_of(vllm_env, version), parse_version(version)
    ours = {name for name, since in KV_DTYPE_SINCE.items() if release >= since}
    assert ours == kv_dtype_names(package) - UNNAMED_DTYPES
    assert table_names(release) <= set(backend_paths(package))


@pytest.mark.parametrize("version", ENGINES["vllm"])
def test_rows_are_those_of_the_source(vllm_env: Callable[..., Any], version: str) -> None:
    package, release = package_of(vllm_env, version), parse_version(version)
    paths, wrong, compared = backend_paths(package), [], 0
    for name in sorted(table_names(release)):
        rows = list(rows_of(name, release))
        source = read_backend(package, paths[name])
        stored = {dtype for row in rows for dtype in row.kv_dtypes}
        if source.kv_dtypes and not _extended(name, release):
            compared += 1
            if stored != source.kv_dtypes:
                wrong.append((name, "stores", sorted(stored), sorted(source.kv_dtypes)))
        blocks = {block for row in rows for block in row.blocks}
        if source.blocks and name not in COMPUTED_BLOCKS:
            compared += 1
            if not blocks <= source.blocks:
                wrong.append((name, "reads", sorted(blocks), sorted(source.blocks)))
    assert not wrong, "\n".join(map(str, wrong))
    assert compared > 30


@pytest.mark.parametrize("version", ENGINES["vllm"])
def test_who_has_a_cascade_is_in_the_source(vllm_env: Callable[..., Any], version: str) -> None:
    package = package_of(vllm_env, version)
    builder = (package / "v1/attention/backend.py").read_text()
    assert has_cascade(parse_version(version)) == ("def use_cascade_attention" in builder), "what the adapter looks for"
    if has_cascade(parse_version(version)):
        assert cascading_backends(package) == CASCADE_BACKENDS
        assert {MIN_SHARED_TOKENS, MIN_REQUESTS} <= cascade_thresholds(package)
        assert "disable_cascade_attn: bool = True" in (package / "config/model.py").read_text(), "nobody has it unasked"
    else:
        assert "cascade_attn_enabled = False" in (package / "v1/worker/gpu_model_runner.py").read_text()


def _extended(name: str, release: Version) -> bool:
    """Where a method widens the attribute (Hopper's fp8 in 0.26, the CPU's 16-bit names in 0.33) or it is computed."""
    widened = name in ("cpu_attn", "cpu_mla") and release >= (0, 33, 0)
    return widened or name == "b12x" or (name == "flash_attn" and release < (0, 28, 0))
