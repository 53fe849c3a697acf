"""The table of what lets layers differ in dtype: what each configuration gets, and that the documentation says so."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kvpolicy_sglang import pool_support
from kvpolicy_sglang.pool_support import BACKENDS, ENCODING_FEATURES, FEATURES, LAYERS, supported

from kvpolicy.facts.sglang_layers import READERS
from kvpolicy.runtime.support import refusal
from tests.inside.activation import activate
from tests.tables import features_table, printed

DOCS = Path(__file__).resolve().parents[3] / "docs/sglang.md"

PLAIN: dict[str, Any] = {"attention_backend": "triton", "kv_cache_dtype": "fp8_e4m3", "disaggregation_mode": "null"}
LAYER_INFO = SimpleNamespace(start_layer=2, end_layer=4, num_effective_layers=2)


class _Model(SimpleNamespace):
    def modules(self) -> list[Any]:
        return [SimpleNamespace(), SimpleNamespace(k_scale_float=None), SimpleNamespace(k_scale_float=self.scale)]


CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("another attention backend", {"attention_backend": "fa3"}, {}),
    ("another attention backend", {"decode_attention_backend": "flashinfer"}, {}),
    ("latent attention, sliding windows and state layers", {}, {"use_mla_backend": True}),
    ("latent attention, sliding windows and state layers", {}, {"is_hybrid_swa": True}),
    ("latent attention, sliding windows and state layers", {}, {"mambaish_config": object()}),
    (
        "layers split over ranks",
        {},
        {"layer_info": SimpleNamespace(start_layer=0, end_layer=4, num_effective_layers=2)},
    ),
    ("a KV dtype with scales of its own", {"kv_cache_dtype": "nvfp4"}, {}),
    ("a checkpoint with KV scales", {}, {"model": _Model(scale=0.5)}),
    ("hierarchical cache and external KV stores", {"enable_hierarchical_cache": True}, {}),
    ("hierarchical cache and external KV stores", {"enable_lmcache": True}, {}),
    ("prefill/decode disaggregation", {"disaggregation_mode": "decode"}, {}),
    ("speculative decoding", {"speculative_algorithm": "EAGLE"}, {}),
    ("HiSparse", {"enable_hisparse": True}, {}),
    ("page-major layout", {"enable_page_major_kv_layout": True}, {}),
    ("sharded pages and decode context parallelism", {"dcp_size": 2}, {}),
    ("a pool sized after graph capture", {}, {"post_capture_kv_active": True}),
]


@pytest.mark.parametrize(("feature", "arguments", "facts"), CASES, ids=lambda value: str(value)[:40])
def test_what_keeps_the_engines_pool(feature: str, arguments: dict[str, Any], facts: dict[str, Any]) -> None:
    verdict = supported(
        SimpleNamespace(**{**PLAIN, **arguments}), SimpleNamespace(**{"layer_info": LAYER_INFO, **facts})
    )
    assert verdict.kind == "stock"
    assert f"the policy's {LAYERS} does not work with {feature} (" in verdict.message


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_lets_layers_differ(backend: str) -> None:
    arguments = SimpleNamespace(**{**PLAIN, "attention_backend": backend, "tp_size": 2, "dcp_size": 1})
    assert supported(arguments).kind == "supported"
    built = SimpleNamespace(layer_info=LAYER_INFO, model=_Model(scale=1.0), use_mla_backend=False)
    assert supported(arguments, built).kind == "supported"


def test_amd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_support, "_is_rocm", lambda: True)
    assert "AMD GPUs" in supported(SimpleNamespace(**PLAIN)).message


def test_every_row_has_a_case_here() -> None:
    assert {feature.name for feature in FEATURES if feature.kind == "stock"} == {name for name, _, _ in CASES} | {
        "AMD GPUs"
    }


def test_check_knows_the_same_backends() -> None:
    assert READERS == BACKENDS


def test_the_documentation_prints_this_table() -> None:
    assert printed(DOCS, "layers") == features_table(FEATURES)


@pytest.mark.parametrize(
    ("feature", "arguments"),
    [
        ("a disabled KV cache", {"prefill_only_disable_kv_cache": True}),
        ("another attention backend", {"attention_backend": "fa3"}),
        ("speculative decoding", {"speculative_algorithm": "EAGLE"}),
    ],
)
def test_what_keeps_the_engines_pool_from_int8(feature: str, arguments: dict[str, Any]) -> None:
    """What only a model tells is in encoded.py, on real pools."""
    active: Any = SimpleNamespace(
        settings={"kv_cache_dtype": SimpleNamespace(effective="int8_per_token_head")},
        compiled=SimpleNamespace(cache=SimpleNamespace(layer_dtypes=())),
    )
    plain = {**PLAIN, "kv_cache_dtype": "auto"}
    assert supported(SimpleNamespace(**plain), active=active).kind == "supported"
    verdict = supported(SimpleNamespace(**{**plain, **arguments}), active=active)
    assert (verdict.kind, verdict.section) == ("stock", "cache.kv_dtype")
    assert f"the policy's cache.kv_dtype does not work with {feature} (" in verdict.message


def test_the_documentation_prints_what_encodings_need() -> None:
    assert printed(DOCS, "encodings") == features_table(ENCODING_FEATURES)


def test_a_refusal_names_the_layers() -> None:
    said = refusal(
        activate("sglang", {"policy": "lru"}), supported(SimpleNamespace(**{**PLAIN, "enable_hisparse": True}))
    )
    assert said is not None
    assert "conflict: cache.kv_dtype.layers: the policy's cache.kv_dtype.layers does not work with HiSparse" in said
    assert "set `cache: {on_conflict: warn}`" in said
