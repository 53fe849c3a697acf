"""SGLang's KV pool classes: the checked-in table is what the sources say, and every model's class is in it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from kvpolicy.facts.engines import ENGINES, parse_version
from kvpolicy.facts.model import load_model
from kvpolicy.facts.report import report
from kvpolicy.facts.sglang_pool_table import POOLS
from kvpolicy.facts.sglang_pools import pool_class, treatment
from kvpolicy.language import load_text
from tools import pools
from tools.environment import Environment

MODELS = sorted((Path(__file__).parent / "models").glob("*.json"))
#: What SGLang makes for each kind of attention, dtype by dtype.
EXPECTED = {
    ("llama-3.1-8b", "bf16"): "MHATokenToKVPool",
    ("llama-3.1-8b", "fp8_e4m3"): "MHATokenToKVPool",
    ("llama-3.1-8b", "mxfp8"): "MHATokenToKVPoolMXFP8",
    ("deepseek-v3", "bf16"): "MLATokenToKVPool",
    ("deepseek-v3", "nvfp4"): "MLATokenToKVPoolFP4",
    ("deepseek-v3.2", "fp8_e4m3"): "DSATokenToKVPool",
    ("gpt-oss-20b", "bf16"): "SWAKVPool",
    ("qwen3-next-80b", "bf16"): "HybridLinearKVPool",
    ("nemotron-h-8b", "bf16"): "HybridLinearKVPool",
}


@pytest.mark.parametrize(("model", "dtype"), EXPECTED, ids=lambda value: str(value))
def test_each_kind_of_model_gets_its_class(model: str, dtype: str) -> None:
    facts = load_model(str(Path(__file__).parent / f"models/{model}.json"))
    assert pool_class(facts, dtype, (0, 5, 23)) == EXPECTED[model, dtype]


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
@pytest.mark.parametrize("version", ENGINES["sglang"])
def test_check_names_a_class_of_the_table(path: Path, version: str) -> None:
    head = b"apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {name: x}\n"
    policy = load_text(head, "x.yaml").policy
    assert policy is not None
    found = {d.code: d for d in report(policy, engine=f"sglang=={version}", model=str(path))}
    data = found["KVP508"].data
    assert data is not None
    assert (data["outcome"], data["why"]) == treatment(data["pool_class"], parse_version(version))
    assert data["pool_class"] in POOLS


@pytest.mark.engine
def test_the_table_is_what_the_engines_sources_say(engine_environment: Environment) -> None:
    rows = pools.table(engine_environment)
    assert pools.MODULE.read_text() == pools.as_module(rows), "run python3.11 -m tools.pools"
    assert pools.PAGE.read_text() == pools.page(pools.PAGE.read_text(), rows), "run python3.11 -m tools.pools"


@pytest.mark.engine
def test_a_changed_source_changes_the_table(engine_environment: Environment, tmp_path: Path) -> None:
    srt = engine_environment.root / "sglang-0.5.20/sglang/srt"
    for folder in ("mem_cache", "hardware_backend"):
        shutil.copytree(srt / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    configurator = tmp_path / "mem_cache/kv_cache_configurator.py"
    before = pools.Sources(tmp_path)
    assert before.outcome("MLATokenToKVPool", set()).kind == "configured"
    assert before.outcome("MLATokenToKVPool", {"MLATokenToKVPool"}).kind == "substituted"
    configurator.write_text(re.sub(r"dtype=self\.kv_cache_dtype\b", "dtype=torch.bfloat16", configurator.read_text()))
    assert pools.Sources(tmp_path).outcome("MLATokenToKVPool", set()).kind == "left alone"


def test_a_subclass_of_ours_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pools.py").write_text("class PolicyPool(memory_pool.MHATokenToKVPool):\n    pass\n")
    monkeypatch.setattr(pools, "ADAPTER", tmp_path)
    assert pools.substituted_by_us({"MHATokenToKVPool", "SWAKVPool"}) == {"MHATokenToKVPool"}
