"""Which KV pool class SGLang makes for a model, and what a policy does to it.

The choice is `KVCacheConfigurator._build_token_to_kv_pool` of `srt/mem_cache/kv_cache_configurator.py`, read in 0.5.18,
0.5.20 and 0.5.23; what is done to each class is :mod:`.sglang_pool_table`, written from the engine's sources.
"""

from __future__ import annotations

from kvpolicy.facts.encodings import ENCODED
from kvpolicy.facts.engines import EngineTarget, Version
from kvpolicy.facts.findings import Findings
from kvpolicy.facts.model import ModelFacts
from kvpolicy.facts.sglang_pool_table import POOLS

__all__ = ["pool_class", "report_pool", "treatment"]

_FP4 = ("fp4_e2m1", "fp4_mx_block16", "nvfp4")


def pool_class(model: ModelFacts, kv_dtype: str, version: Version) -> str:
    """The class that a server without features of its own (HiSparse, sharding, page-major layout) makes for a model."""
    if model.architecture.startswith("DeepseekV4"):
        return "DeepSeekV4TokenToKVPool"
    if model.is_mla and model.swa_layers:
        return "SWAKVPool"
    if model.is_mla and not model.linear_layers:
        if model.is_dsa:
            return "DSATokenToKVPool"
        return "MLATokenToKVPoolFP4" if kv_dtype in _FP4 else "MLATokenToKVPool"
    if model.swa_layers:
        return "SWAKVPool"
    if model.architecture.startswith("MiniMaxM3Sparse"):
        return "MiniMaxSparseKVPool"
    if model.linear_layers or model.linear_state is not None:
        is_qsa = model.architecture.startswith("Qwen4Exp") and version >= (0, 5, 20)
        return "QSATokenToKVPool" if is_qsa else "HybridLinearKVPool"
    return "MHATokenToKVPoolMXFP8" if kv_dtype == "mxfp8" else "MHATokenToKVPool"


def treatment(pool: str, version: Version, is_ours: bool = False) -> tuple[str, str]:
    """`(substituted | configured | left alone, why)`, of the nearest version that was read, the older one first.

    A class that the adapter can substitute is, only where the policy asks for what upstream's does not store.
    """
    found = POOLS[pool]
    read = {tuple(map(int, name.split("."))): outcome for name, outcome in found.items()}
    known = [at for at in sorted(read) if at <= version] or sorted(read)[:1]
    outcome = read[known[-1]]
    if outcome[0] == "substituted" and not is_ours:
        return "configured", "made with the page size and the dtype of the engine's arguments"
    return outcome


def report_pool(findings: Findings, target: EngineTarget, model: ModelFacts, kv_dtype: str) -> None:
    """Add the class that holds the model's KV (KVP508)."""
    pool = pool_class(model, kv_dtype, target.facts)
    cache = findings.policy.cache
    has_layers = bool(cache and cache.kv_dtype and cache.kv_dtype.layers)
    outcome, why = treatment(pool, target.facts, has_layers or kv_dtype in ENCODED)
    data = {"pool_class": pool, "outcome": outcome, "why": why, "model": model.name}
    findings.info("KVP508", "", f"KV pool {pool}: {outcome} ({why})", data)
