"""Run vLLM's own unit tests with and without kvpolicy's block pool in every cache that they build.

    pip download --no-deps --no-build-isolation --no-binary vllm vllm==0.32.0     # official, with tests; 45 MB
    tar xzf vllm-0.32.0.tar.gz
    python3.11 -m tools.conformance_vllm --source vllm-0.32.0

`--source` is an unpacked source distribution; its tests are never part of this project. They run once a column: stock,
vLLM's order taken from our index, and the same with rules on top that hold nobody back
(tests/vllm/conformance/kvpolicy_conformance_vllm.py). A test that passes in the first column and not in another one is
a finding, and the exit code is 1. Where the installed vLLM is of another version, `--python-level` runs the tests
against the distribution's own Python with the installed version's compiled parts: evidence for what we touch, which is
Python, and not for the rest.

Models that tests name are stood in for by their configurations alone; a test that needs more fails in every column.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.conformance_columns import PLUGIN_PATH, Column, report, run_pytest
from tools.environment import CHECKOUT, EngineEnv, Environment, load_pins, say

#: Under tests/v1/core: the pool, its managers, and the schedulers that use them.
ONLY = (
    *("test_prefix_caching.py", "test_kv_cache_utils.py", "test_single_type_kv_cache_manager.py"),
    *("test_scheduler.py", "test_async_scheduler.py", "test_prefix_replay.py", "test_kv_cache_metrics.py"),
    *("test_swa_inflight_window_free.py", "prefix_cache/test_*.py"),
)
COLUMNS = ("stock", "order", "rules", "wrong")
PLUGIN_FOLDER = CHECKOUT / "tests/vllm/conformance"
#: What of a published model the tests read: its shape.
CONFIGURATIONS = {
    "facebook/opt-125m": {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "vocab_size": 50272,
        "hidden_size": 768,
        "word_embed_proj_dim": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "ffn_dim": 3072,
        "max_position_embeddings": 2048,
        "torch_dtype": "float16",
    },
    "Qwen/Qwen3-0.6B": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "torch_dtype": "bfloat16",
    },
    "Qwen/Qwen1.5-7B": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "torch_dtype": "bfloat16",
    },
}


def run_column(
    engine: EngineEnv,
    name: str,
    tests: list[Path],
    home: Path,
    source: Path | None = None,
    *,
    test_timeout_s: int = 120,
) -> Column:
    """Run `tests` once with pytest; `home` is the folder above `tests/`, without a vllm/ beside it.

    `source`: a folder with the vllm package to use instead of the installed one. Raises RuntimeError if the run dies.
    """
    path = [*([source] if source else []), *PLUGIN_PATH, PLUGIN_FOLDER, home]
    with tempfile.TemporaryDirectory() as scratch:
        for model, configuration in CONFIGURATIONS.items():  # a relative folder of that name counts as a local model
            folder = Path(scratch) / model
            folder.mkdir(parents=True)
            (folder / "config.json").write_text(json.dumps(configuration))
        return run_pytest(
            name,
            [str(engine.python), "-m", "pytest", "-p", "kvpolicy_conformance_vllm", "--noconftest"],
            tests,
            rootdir=home,
            cwd=Path(scratch),
            env={**engine.env, "PYTHONPATH": os.pathsep.join(map(str, path)), "VLLM_PLUGINS": "none"},
            test_timeout_s=test_timeout_s,
        )


def python_level(python: Path, source: Path, target: Path) -> Path:
    """A vllm package in `target`: the Python of `source`, the compiled parts of the installed version, both linked."""
    # Found, not imported: an import would want a device.
    find = "import importlib.util as u; print(u.find_spec('vllm').submodule_search_locations[0])"
    found = subprocess.run([python, "-c", find], capture_output=True, text=True, check=True)
    installed = Path(found.stdout.strip())
    package = target / "vllm"
    package.mkdir()
    for entry in (source / "vllm").iterdir():
        if entry.name != "_version.py":
            (package / entry.name).symlink_to(entry.resolve())
    for library in installed.glob("*.so"):
        if not (package / library.name).exists():
            (package / library.name).symlink_to(library)
    version = source.name.removeprefix("vllm-")
    numbers = ", ".join(version.split("."))
    (package / "_version.py").write_text(f'__version__ = "{version}+cpu"\n__version_tuple__ = ({numbers})\n')
    return target


def swapped(column: Column) -> str:
    """What one column's plugin did."""
    swap = column.swap
    faults = ", ".join(f"{count} {reason}" for reason, count in swap["fallbacks"].items()) or "none"
    return (
        f"{column.name}: {swap['attached']} of {swap['built']} pools with our eviction (the rest cache nothing), "
        f"{swap['evict calls']} eviction calls, {swap['victims']} victims from our index, fallbacks: {faults}"
    )


def not_ours(swap: dict[str, Any]) -> str:
    """What is wrong with what one column's plugin did; "" if nothing is."""
    if swap["victims"] and not swap["fallbacks"]:
        return ""
    return "NOT OURS: no victim came from our index, or a call fell back to vLLM's order"


def main(argv: list[str] | None = None) -> int:
    pins = load_pins()["vllm"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, type=Path, help="unpacked source distribution of vLLM")
    parser.add_argument("--vllm", default=pins["demo"], metavar="VERSION", help="installed version (%(default)s)")
    parser.add_argument("--python-level", action="store_true", help="use the distribution's own Python, not installed")
    parser.add_argument("--only", nargs="+", default=ONLY, metavar="GLOB", help=f"test files: {' '.join(ONLY)}")
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS[:3]))
    arguments = parser.parse_args(argv)

    source = arguments.source.resolve()
    if not any((source / "tests/v1/core").glob(arguments.only[0])):
        parser.error(f"no {arguments.only[0]} under {source}/tests/v1/core")
    environment = Environment.default()
    environment.ensure([], vllm_versions=[arguments.vllm])
    engine = environment.vllm(arguments.vllm)
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) / "home"
        home.mkdir()
        (home / "tests").symlink_to(source / "tests")
        tests = sorted({file for glob in arguments.only for file in (home / "tests/v1/core").glob(glob)})
        package = None
        if arguments.python_level:
            (folder := Path(scratch) / "package").mkdir()
            package = python_level(engine.python, source, folder)
        columns = []
        for name in arguments.columns:
            say(f"{source.name}: {len(tests)} test files, {name} ...")
            columns.append(run_column(engine, name, tests, home, package))
    return report(columns, swapped, not_ours)


if __name__ == "__main__":
    sys.exit(main())
