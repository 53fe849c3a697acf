"""The meaning layer: fields that contradict each other, each at the place that has to change."""

from __future__ import annotations

import inspect

import pytest

from kvpolicy.eviction.algorithms.registry import ALGORITHMS
from kvpolicy.language.eviction_words import resolved_params
from kvpolicy.language.vocabulary import EVICTION_POLICIES

RULES = "eviction:\n  policy: lru\n  rules:\n"

CASES = {
    "score and policy": ("eviction:\n  policy: lru\n  score: hits\n", [(3, 3, "KVP301")]),
    "policy after score": ("eviction:\n  score: hits\n  policy: lru\n", [(3, 3, "KVP301")]),
    "unknown policy": ("eviction: {policy: lri}\n", [(1, 20, "KVP302")]),
    "unknown parameter": ("eviction: {policy: slru, params: {protectd: 2}}\n", [(1, 35, "KVP303")]),
    "parameter of another type": ("eviction: {policy: slru, params: {protected_hits: two}}\n", [(1, 51, "KVP303")]),
    "parameter out of range": ("eviction: {policy: slru, params: {protected_hits: 0}}\n", [(1, 51, "KVP303")]),
    "parameter of a policy without any": ("eviction: {policy: lru, params: {x: 0}}\n", [(1, 34, "KVP303")]),
    "params without policy": ("eviction: {params: {x: 0}}\n", [(1, 12, "KVP304")]),
    "rule without action": (RULES + "    - {name: a, match: hits > 1}\n", [(4, 14, "KVP305")]),
    "rule name twice": (
        RULES + "    - {name: a, match: hits > 1, priority: 1}\n    - {name: a, priority: 2}\n",
        [(5, 14, "KVP306")],
    ),
    "a rule name that status and metrics use": (RULES + "    - {name: none, priority: 1}\n", [(4, 14, "KVP208")]),
    "a tenant without a name": ("eviction: {tenants: {named: {'': {floor: 2%}}}}\n", [(1, 30, "KVP208")]),
    "match on idle": (RULES + "    - {name: a, match: hits > 1 and idle_s < 5, priority: 1}\n", [(4, 37, "KVP307")]),
    "match on age": (RULES + "    - {name: a, match: age_requests < 5, priority: 1}\n", [(4, 24, "KVP307")]),
    "floors beyond the pool": ("eviction: {tenants: {floor: 20%, max_floors: 6}}\n", [(1, 29, "KVP308")]),
    "floors with the default count": ("eviction: {tenants: {floor: 13%}}\n", [(1, 29, "KVP308")]),
    "floors and budgets beyond the pool": (
        "eviction:\n  tenants: {floor: 5%, max_floors: 8, named: {gold: {floor: 41%}}}\n"
        "  rules:\n    - {name: a, retain: {weight: 1, budget: 20%}}\n",
        [(4, 45, "KVP308")],
    ),
    "exactly the pool": (
        "eviction:\n  tenants: {floor: 5%, max_floors: 8, named: {gold: {floor: 40%}}}\n"
        "  rules:\n    - {name: a, retain: {weight: 1, budget: 20%}}\n",
        [],
    ),
    "floor above cap": ("eviction: {tenants: {floor: 10%, cap: 5%, max_floors: 1}}\n", [(1, 29, "KVP309")]),
    "named floor above its own cap": (
        "eviction: {tenants: {named: {gold: {floor: 20%, cap: 10%}}}}\n",
        [(1, 44, "KVP309")],
    ),
    "a named tenant has shares of its own only": ("eviction: {tenants: {cap: 10%, named: {gold: {floor: 20%}}}}\n", []),
    "watermarks crossed": (
        "allocator: {watermark: {low: 5%, high: 2%}}\nengines: {vllm: {allocator: null}}\n",
        [(1, 30, "KVP310")],
    ),
    "preferred page not accepted": ("cache: {page_size: {prefer: 16, accept: [32]}}\n", [(1, 29, "KVP311")]),
    "preferred dtype not accepted": ("cache: {kv_dtype: {default: bf16, accept: [fp8_e4m3]}}\n", [(1, 29, "KVP311")]),
    "an alias is accepted": ("cache: {kv_dtype: {prefer: bf16, accept: [bfloat16]}}\n", []),
    "preferred backend not accepted": ("backend: {attention: {prefer: fa3, accept: [triton]}}\n", [(1, 31, "KVP311")]),
    "never reached": (
        RULES + "    - {name: a, priority: 1}\n    - {name: b, match: hits > 1, priority: 2}\n",
        [(5, 14, "KVP312")],
    ),
    "accept alone": ("cache: {page_size: {accept: [16]}}\n", [(1, 21, "KVP313")]),
    "admit and retain": (RULES + "    - {name: a, admit: never, retain: {weight: 1}}\n", [(4, 31, "KVP315")]),
    "engine core with a score": ("eviction: {core: engine, score: hits}\n", [(1, 26, "KVP316")]),
    "engine core with rules": (
        "eviction: {core: engine, rules: [{name: a, priority: 1}]}\n",
        [(1, 26, "KVP316")],
    ),
    "engine core with tenants": ("eviction: {core: engine, tenants: {cap: 5%}}\n", [(1, 26, "KVP316")]),
    "engine core with a policy of ours": ("eviction: {core: engine, policy: sieve}\n", [(1, 34, "KVP316")]),
    "engine core with its own policy": ("eviction: {core: engine, policy: slru, rules: []}\n", []),
    "max_floors alone": ("eviction: {tenants: {cap: 40%, max_floors: 4}}\n", [(1, 32, "KVP317")]),
    "default and prefer": ("cache: {kv_dtype: {default: bf16, prefer: bf16}}\n", [(1, 19, "KVP318")]),
    "overlapping layers": (
        "cache: {kv_dtype: {default: bf16, layers: {0-3: fp8_e4m3, '2:': fp8_e5m2}}}\n"
        "engines: {sglang: {cache: null}}\n",
        [(1, 59, "KVP319")],
    ),
    "overlapping layers of one dtype": (
        "cache: {kv_dtype: {default: bf16, layers: {0-3: fp8, '2:': fp8_e4m3}}}\nengines: {sglang: {cache: null}}\n",
        [],
    ),
    "layers from both ends": (
        "cache: {kv_dtype: {default: bf16, layers: {0-1: fp8, '-2:': fp8_e5m2}}}\nengines: {sglang: {cache: null}}\n",
        [],
    ),
    "overlap from the end": (
        "cache: {kv_dtype: {default: bf16, layers: {'-1': fp8, '-2:': fp8_e5m2}}}\nengines: {sglang: {cache: null}}\n",
        [(1, 44, "KVP319")],
    ),
}


@pytest.mark.parametrize(("body", "places"), CASES.values(), ids=CASES)
def test_contradictions(found, body, places) -> None:
    """What vLLM lacks is left out of these lists, not out of the check."""
    assert found(body, leave_out="vllm") == places


def test_a_rule_below_a_catch_all_is_a_warning_only(load) -> None:
    result = load(CASES["never reached"][0])
    assert result.policy is not None
    assert [d.severity for d in result.diagnostics] == ["warning"]


def test_the_sum_is_shown(load) -> None:
    (d,) = load(CASES["floors and budgets beyond the pool"][0]).diagnostics
    assert d.message == "8 floors of 5% + gold's 41% + a's budget 20% = 101% of the pool"
    assert d.data == {"total": 1.01}


def test_parameters_are_complete_and_canonical(load) -> None:
    assert load("eviction: {policy: slru}\n").policy.eviction.params == {"protected_hits": 2}
    tlru = load("eviction: {policy: tlru, params: {threshold_tokens: 8Ki}}\n").policy.eviction
    assert tlru.params == {"threshold_tokens": 8192, "next_prompt_tokens": 0}


def test_the_eviction_layer_takes_exactly_these_policies_and_parameters() -> None:
    assert list(ALGORITHMS) == list(EVICTION_POLICIES)
    for name, algorithm in ALGORITHMS.items():
        takes = [p for p in inspect.signature(algorithm).parameters.values() if p.name != "clock"]
        assert {p.name: p.default for p in takes} == resolved_params(name, {})
    assert resolved_params("s3fifo", {"small_share": 0.2}) == resolved_params("s3fifo", {"small_share": "20%"})


def test_a_share_in_params_needs_its_unit(found) -> None:
    assert found("eviction: {policy: s3fifo, params: {small_share: 0.2}}\n") == [(1, 50, "KVP303")]
    assert found("eviction: {policy: s3fifo, params: {small_share: 20%}}\n") == []


def test_a_type_error_hides_no_contradiction(found) -> None:
    assert found("cache: 5\neviction: {policy: lru, score: hits}\n") == [(1, 8, "KVP203"), (2, 25, "KVP301")]
