"""Written by `python3.11 -m tools.pools` from the engine's sources: do not edit.

SGLang's KV pool classes: version -> (what a policy does to it, why).
"""

from __future__ import annotations

__all__ = ["POOLS"]

POOLS: dict[str, dict[str, tuple[str, str]]] = {
    "BaseSWAKVPool": {
        "0.5.18": ("left alone", "a base class, never made itself"),
        "0.5.20": ("left alone", "a base class, never made itself"),
        "0.5.23": ("left alone", "a base class, never made itself"),
    },
    "DSATokenToKVPool": {
        "0.5.18": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.20": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.23": ("configured", "made with the page size and the dtype of the engine's arguments"),
    },
    "DSV4NPUTokenToKVPool": {
        "0.5.18": ("left alone", "another platform's"),
        "0.5.20": ("left alone", "another platform's"),
        "0.5.23": ("left alone", "another platform's"),
    },
    "DeepSeekV4IndexerPool": {
        "0.5.18": ("left alone", "a part of DeepSeekV4TokenToKVPool, which makes it"),
        "0.5.20": ("left alone", "a part of DeepSeekV4TokenToKVPool, which makes it"),
        "0.5.23": ("left alone", "a part of DeepSeekV4TokenToKVPool, which makes it"),
    },
    "DeepSeekV4SingleKVPool": {
        "0.5.18": ("left alone", "a part of DeepSeekV4TokenToKVPool, which makes it"),
        "0.5.20": ("left alone", "a part of DeepSeekV4TokenToKVPool, which makes it"),
        "0.5.23": ("left alone", "a part of DeepSeekV4TokenToKVPool, which makes it"),
    },
    "DeepSeekV4TokenToKVPool": {
        "0.5.18": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.20": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.23": ("configured", "made with the page size and the dtype of the engine's arguments"),
    },
    "DeepSeekV4UniformFP8KVPool": {
        "0.5.20": ("left alone", "a part of DeepSeekV4TokenToKVPool, which makes it"),
        "0.5.23": ("left alone", "a part of DeepSeekV4TokenToKVPool, which makes it"),
    },
    "HiSparseC4DevicePool": {
        "0.5.18": ("left alone", "a part of DeepSeekV4TokenToKVPool, which makes it"),
        "0.5.20": ("left alone", "a part of DeepSeekV4TokenToKVPool, which makes it"),
        "0.5.23": ("left alone", "a part of DeepSeekV4TokenToKVPool, which makes it"),
    },
    "HiSparseDSATokenToKVPool": {
        "0.5.18": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.20": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.23": ("configured", "made with the page size and the dtype of the engine's arguments"),
    },
    "HiSparseMHAMainPool": {
        "0.5.23": ("left alone", "a part of MiniMaxSparseKVPool, which makes it"),
    },
    "HybridLinearKVPool": {
        "0.5.18": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.20": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.23": ("configured", "made with the page size and the dtype of the engine's arguments"),
    },
    "LayerSplitDSATokenToKVPool": {
        "0.5.18": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.20": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.23": ("configured", "made with the page size and the dtype of the engine's arguments"),
    },
    "MHATokenToKOnlyPool": {
        "0.5.18": ("left alone", "a part of MiniMaxSparseKVPool, which makes it"),
        "0.5.20": ("left alone", "a part of MiniMaxSparseKVPool, which makes it"),
        "0.5.23": ("left alone", "a part of MiniMaxSparseKVPool, which makes it"),
    },
    "MHATokenToKVPool": {
        "0.5.18": ("substituted", "by our subclass for dtypes of single layers, int8 and int4; else configured"),
        "0.5.20": ("substituted", "by our subclass for dtypes of single layers, int8 and int4; else configured"),
        "0.5.23": ("substituted", "by our subclass for dtypes of single layers, int8 and int4; else configured"),
    },
    "MHATokenToKVPoolFP4": {
        "0.5.18": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.20": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.23": ("left alone", "never made in this version"),
    },
    "MHATokenToKVPoolMXFP8": {
        "0.5.18": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.20": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.23": ("configured", "made with the page size and the dtype of the engine's arguments"),
    },
    "MLATokenToKVPool": {
        "0.5.18": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.20": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.23": ("configured", "made with the page size and the dtype of the engine's arguments"),
    },
    "MLATokenToKVPoolFP4": {
        "0.5.18": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.20": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.23": ("configured", "made with the page size and the dtype of the engine's arguments"),
    },
    "MiniMaxM3Nvfp4IndexKPool": {
        "0.5.23": ("left alone", "a part of MiniMaxM3Nvfp4KVPool, which makes it"),
    },
    "MiniMaxM3Nvfp4KVPool": {
        "0.5.23": ("configured", "made with the page size and the dtype of the engine's arguments"),
    },
    "MiniMaxM3Nvfp4MainKVPool": {
        "0.5.23": ("left alone", "a part of MiniMaxM3Nvfp4KVPool, which makes it"),
    },
    "MiniMaxSparseKVPool": {
        "0.5.18": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.20": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.23": ("configured", "made with the page size and the dtype of the engine's arguments"),
    },
    "NPUDeepSeekV4IndexerPool": {
        "0.5.18": ("left alone", "another platform's"),
        "0.5.20": ("left alone", "another platform's"),
        "0.5.23": ("left alone", "another platform's"),
    },
    "NPUDeepSeekV4SingleKVPool": {
        "0.5.18": ("left alone", "another platform's"),
        "0.5.20": ("left alone", "another platform's"),
        "0.5.23": ("left alone", "another platform's"),
    },
    "NPUMHATokenToKOnlyPool": {
        "0.5.18": ("left alone", "another platform's"),
        "0.5.20": ("left alone", "another platform's"),
        "0.5.23": ("left alone", "another platform's"),
    },
    "NPUMHATokenToKVPool": {
        "0.5.18": ("left alone", "another platform's"),
        "0.5.20": ("left alone", "another platform's"),
        "0.5.23": ("left alone", "another platform's"),
    },
    "NPUMLATokenToKVPool": {
        "0.5.18": ("left alone", "another platform's"),
        "0.5.20": ("left alone", "another platform's"),
        "0.5.23": ("left alone", "another platform's"),
    },
    "NPUMiniMaxSparseKVPool": {
        "0.5.18": ("left alone", "another platform's"),
        "0.5.20": ("left alone", "another platform's"),
        "0.5.23": ("left alone", "another platform's"),
    },
    "NoOpMHATokenToKVPool": {
        "0.5.18": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.20": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.23": ("configured", "made with the page size and the dtype of the engine's arguments"),
    },
    "PageInterleaveDSATokenToKVPool": {
        "0.5.23": ("configured", "made with the page size and the dtype of the engine's arguments"),
    },
    "PageInterleaveMHATokenToKVPool": {
        "0.5.23": ("configured", "made with the page size and the dtype of the engine's arguments"),
    },
    "PageInterleaveMLATokenToKVPool": {
        "0.5.23": ("configured", "made with the page size and the dtype of the engine's arguments"),
    },
    "PageMajorMHATokenToKVPool": {
        "0.5.18": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.20": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.23": ("configured", "made with the page size and the dtype of the engine's arguments"),
    },
    "QSATokenToKVPool": {
        "0.5.20": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.23": ("configured", "made with the page size and the dtype of the engine's arguments"),
    },
    "SWAKVPool": {
        "0.5.18": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.20": ("configured", "made with the page size and the dtype of the engine's arguments"),
        "0.5.23": ("configured", "made with the page size and the dtype of the engine's arguments"),
    },
    "UnifiedDraftKVPool": {
        "0.5.23": ("left alone", "a part of UnifiedDraftSWAKVPool, which makes it"),
    },
    "UnifiedDraftSWAKVPool": {
        "0.5.23": ("left alone", "made by mem_cache/unified_draft_pool.py, beside the configurator"),
    },
    "UnifiedHybridLinearKVPool": {
        "0.5.18": ("left alone", "made by mem_cache/unified_memory_pool.py, beside the configurator"),
        "0.5.20": ("left alone", "made by mem_cache/unified_memory_pool.py, beside the configurator"),
        "0.5.23": ("left alone", "made by mem_cache/unified_memory_pool.py, beside the configurator"),
    },
    "UnifiedMHATokenToKVPool": {
        "0.5.18": ("left alone", "a part of UnifiedSWAKVPool, which makes it"),
        "0.5.20": ("left alone", "a part of UnifiedSWAKVPool, which makes it"),
        "0.5.23": ("left alone", "a part of UnifiedSWAKVPool, which makes it"),
    },
    "UnifiedMLATokenToKVPool": {
        "0.5.18": ("left alone", "made by mem_cache/unified_memory_pool.py, beside the configurator"),
        "0.5.20": ("left alone", "made by mem_cache/unified_memory_pool.py, beside the configurator"),
        "0.5.23": ("left alone", "made by mem_cache/unified_memory_pool.py, beside the configurator"),
    },
    "UnifiedSWAKVPool": {
        "0.5.18": ("left alone", "made by mem_cache/unified_memory_pool.py, beside the configurator"),
        "0.5.20": ("left alone", "made by mem_cache/unified_memory_pool.py, beside the configurator"),
        "0.5.23": ("left alone", "made by mem_cache/unified_memory_pool.py, beside the configurator"),
    },
    "_DummyKVCache": {
        "0.5.18": ("left alone", "another platform's"),
        "0.5.20": ("left alone", "another platform's"),
        "0.5.23": ("left alone", "another platform's"),
    },
}
