"""Uniform KV dtypes go through the engine's own pools: one real server for each kind of model that this CPU can run.

Hybrid state-space models (Mamba, linear attention) do not start here: SGLang takes their CPU operators from a build of
its kernel package (`sgl_kernel.mamba`) that needs AMX.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvpolicy.facts.engines import parse_version
from kvpolicy.facts.model import load_model
from kvpolicy.facts.sglang_pools import pool_class, treatment
from tests.conftest import StartServer
from tools.environment import Environment
from tools.models import TINY, TINY_MLA, TINY_WINDOWED, ensure_model

pytestmark = pytest.mark.server

POLICY = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {{name: uniform}}
cache: {{page_size: {page}, kv_dtype: bf16}}
"""
VERSION = "0.5.20"
# The last: SGLang lets this model start with intel_amx only, and runs torch_native in its place without AMX.
MODELS = [
    (TINY, "torch_native", 16, "MHATokenToKVPool", {}),
    (TINY_MLA, "torch_native", 1, "MLATokenToKVPool", {}),
    (
        TINY_WINDOWED,
        "intel_amx",
        1,
        "SWAKVPool",
        {"full_kv_pool": "MHATokenToKVPool", "swa_kv_pool": "MHATokenToKVPool"},
    ),
]


@pytest.mark.parametrize(("name", "attention", "page", "pool", "parts"), MODELS, ids=[model[0] for model in MODELS])
def test_each_kind_of_model_in_the_engines_own_pool(
    server: StartServer,
    engine_environment: Environment,
    tmp_path: Path,
    name: str,
    attention: str,
    page: int,
    pool: str,
    parts: dict[str, str],
) -> None:
    model = ensure_model(engine_environment, name)
    policy = tmp_path / "uniform.yaml"
    policy.write_text(POLICY.format(page=page))
    with server(
        VERSION, "--attention-backend", attention, policy=policy, model=model, max_total_tokens=2048
    ) as running:
        first, again = (running.generate([7] * 40, 8) for _ in range(2))
        status = running.status()
    assert (status["kv_pool"]["class"], status["kv_pool"]["parts"]) == (pool, parts)
    assert (status["built"]["kv_cache_dtype"], status["built"]["page_size"]) == ("bf16", page)
    assert len(first["output_ids"]) == len(again["output_ids"]) == 8
    assert again["meta_info"]["cached_tokens"] == 39 // page * page
    # And `check` would have said so.
    version = parse_version(VERSION)
    assert pool_class(load_model(str(model)), "bf16", version) == pool
    assert treatment(pool, version)[0] == "configured"
