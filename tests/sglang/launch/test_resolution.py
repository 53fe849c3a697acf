"""Explicit flags, engine overrides and what was built, each against the policy; no engine runs here.

The records are plain objects with the fields of ServerArgs: from 0.5.20 the engine keeps decisions in
`_resolved_overrides`, before that it assigns them.
"""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kvpolicy_sglang import resolution

from kvpolicy.runtime.active import ActivePolicy
from kvpolicy.runtime.loading import load_active

POLICY = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {name: p}
cache:
  page_size: {prefer: 16, accept: [16, 32]}
  kv_dtype: bf16
  on_conflict: ON_CONFLICT
backend:
  attention: {prefer: fa3, accept: [fa3, triton]}
eviction:
  core: CORE
  policy: slru
  params: {protected_hits: 3}
"""


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def make_active(on_conflict: str = "error", core: str = "auto") -> ActivePolicy:
        path = tmp_path / "p.yaml"
        path.write_text(POLICY.replace("ON_CONFLICT", on_conflict).replace("CORE", core))
        return load_active(str(path), "sglang")

    return make_active


def record(**given: Any) -> SimpleNamespace:
    defaults = {
        "page_size": None,
        "kv_cache_dtype": "auto",
        "attention_backend": None,
        "prefill_attention_backend": None,
        "decode_attention_backend": None,
        "radix_eviction_policy": "lru",
        "radix_eviction_policy_config": None,
    }
    return SimpleNamespace(**{**defaults, **given})


def everything_possible(field: str, value: Any) -> bool:
    return True


def test_preferred_values_go_where_the_operator_gave_none(make: Any) -> None:
    active, args = make(), record()
    resolution.ask(active, args, {}, everything_possible)
    assert (args.page_size, args.kv_cache_dtype, args.attention_backend) == (16, "bf16", "fa3")
    assert args.radix_eviction_policy == "lru", "with our index the engine's order is left alone"
    assert {known.decided_by for known in active.settings.values()} == {"policy"}


def test_core_engine_asks_the_engine_for_the_order(make: Any) -> None:
    active, args = make(core="engine"), record()
    resolution.ask(active, args, {}, everything_possible)
    assert args.radix_eviction_policy == "slru"
    assert args.radix_eviction_policy_config == {"protected_threshold": 3}


def test_an_acceptable_value_is_asked_for_where_the_preferred_one_cannot_run(make: Any) -> None:
    active, args = make(), record()
    resolution.ask(active, args, {}, lambda field, value: value != "fa3")
    assert args.attention_backend == "triton"
    assert active.settings["attention_backend"].decided_by == "accept list (fa3 cannot run here)"


def test_an_accepted_explicit_flag_is_no_conflict(make: Any) -> None:
    active, args = make(), record(page_size=32)
    resolution.ask(active, args, {"page_size": "--page-size 32"}, everything_possible)
    assert args.page_size == 32
    assert not active.conflicts
    assert active.settings["page_size"].decided_by == "--page-size 32"


def test_an_explicit_spelling_of_the_same_dtype_is_no_conflict(make: Any) -> None:
    active, args = make(), record(kv_cache_dtype="bfloat16")
    resolution.ask(active, args, {"kv_cache_dtype": "--kv-cache-dtype bfloat16"}, everything_possible)
    resolution.compare_resolved(active, args)
    assert not active.conflicts


@pytest.mark.parametrize(
    ("field", "value", "flag"),
    [
        ("page_size", 64, "--page-size 64"),
        ("kv_cache_dtype", "auto", "--kv-cache-dtype auto"),  # equal to the default, but given
        ("decode_attention_backend", "flashinfer", "--decode-attention-backend flashinfer"),
        ("radix_eviction_policy", "lru", "--radix-eviction-policy lru"),  # equal to the default, but given
    ],
)
def test_another_explicit_value_ends_the_start_naming_both(make: Any, field: str, value: Any, flag: str) -> None:
    with pytest.raises(SystemExit) as caught:
        resolution.ask(make(), record(**{field: value}), {field: flag}, everything_possible)
    assert flag in str(caught.value)
    assert "p.yaml:" in str(caught.value)


def test_all_conflicts_are_said_at_once(make: Any) -> None:
    given = {"page_size": "--page-size 64", "kv_cache_dtype": "--kv-cache-dtype fp8_e4m3"}
    with pytest.raises(SystemExit) as caught:
        resolution.ask(make(), record(page_size=64, kv_cache_dtype="fp8_e4m3"), given, everything_possible)
    assert str(caught.value).count("  conflict: ") == 2


def test_warn_lets_the_flag_win_once(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    active, args = make("warn"), record(page_size=64)
    with caplog.at_level(logging.WARNING):
        resolution.ask(active, args, {"page_size": "--page-size 64"}, everything_possible)
        resolution.compare_resolved(active, args)
        resolution.compare_built(active, {"page_size": 64})
    assert args.page_size == 64
    assert [found.setting for found in active.conflicts] == ["cache.page_size"]
    assert "--page-size 64" in caplog.text
    assert active.eviction_yielded_to is None


def test_warn_yields_eviction_to_an_explicit_order(make: Any) -> None:
    active = make("warn")
    given = {"radix_eviction_policy": "--radix-eviction-policy lfu"}
    resolution.ask(active, record(radix_eviction_policy="lfu"), given, everything_possible)
    assert active.eviction_yielded_to == "--radix-eviction-policy lfu"


def test_an_override_is_named_by_its_last_rule(make: Any) -> None:
    active, args = make(), record()
    resolution.ask(active, args, {}, everything_possible)
    args.page_size = 128
    args._resolved_overrides = [("first_rule", {"page_size": 64}), ("last_rule", {"page_size": 128})]
    with pytest.raises(SystemExit, match="SGLang's rule `last_rule` makes it 128"):
        resolution.compare_resolved(active, args)


def test_an_override_within_the_accept_list_is_no_conflict_but_shown(make: Any) -> None:
    active, args = make(), record()
    resolution.ask(active, args, {}, everything_possible)
    args.page_size = 32
    resolution.compare_resolved(active, args)
    assert not active.conflicts
    assert active.settings["page_size"].effective == 32
    assert active.settings["page_size"].decided_by == "SGLang's argument resolution"


def test_a_prefill_backend_set_by_the_engine_is_compared_too(make: Any) -> None:
    active, args = make(), record()
    resolution.ask(active, args, {}, everything_possible)
    args.prefill_attention_backend = "flashinfer"
    with pytest.raises(SystemExit, match="--prefill-attention-backend"):
        resolution.compare_resolved(active, args)


@pytest.mark.parametrize(
    ("built", "conflict"),
    [
        ({"page_size": 16, "kv_cache_dtype": "bf16", "attention_backend": "fa3"}, False),
        ({"page_size": 16}, False),
        ({"page_size": 32}, False),
        ({"page_size": 1}, True),
        ({"kv_cache_dtype": "fp8_e4m3"}, True),
        ({"attention_backend": "torch_native"}, True),
    ],
)
def test_what_the_scheduler_built_has_the_last_word(make: Any, built: dict[str, Any], conflict: bool) -> None:
    active, args = make(), record()
    resolution.ask(active, args, {}, everything_possible)
    if conflict:
        with pytest.raises(SystemExit, match="what the scheduler built"):
            resolution.compare_built(active, built)
    else:
        resolution.compare_built(active, built)


def test_a_record_no_command_line_made_is_explicit_where_it_differs_from_the_default() -> None:
    args = record(page_size=64)
    assert resolution.explicit_by_value(args, vars(record())) == {"page_size": "ServerArgs(page_size=64)"}
