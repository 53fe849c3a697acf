"""Explicit arguments, vLLM's resolution and what was built, each against the policy; no engine runs here.

The records are plain objects with the fields of EngineArgs and VllmConfig.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kvpolicy_vllm import machine, probe, resolution

from kvpolicy.facts.gpus import device_traits
from kvpolicy.runtime.active import ActivePolicy
from kvpolicy.runtime.loading import load_active

POLICY = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {name: p}
cache:
  page_size: {prefer: 16, accept: [16, 32]}
  kv_dtype: {default: fp8_e4m3, layers: {"0-1": bf16, "-1:": bf16}}
  on_conflict: ON_CONFLICT
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def make_active(
        on_conflict: str = "error", cpu: bool = False, text: str = POLICY, version: str = "0.32.0"
    ) -> ActivePolicy:
        monkeypatch.setattr(machine, "_traits", lambda: device_traits("cpu" if cpu else "cuda", capability_major=9))
        monkeypatch.setattr(probe, "engine_version", lambda: version)
        path = tmp_path / "p.yaml"
        path.write_text(text.replace("ON_CONFLICT", on_conflict))
        return load_active(str(path), "vllm")

    return make_active


@dataclass
class Arguments:
    block_size: int | None = None
    kv_cache_dtype: str = "auto"
    attention_backend: Any = None
    kv_cache_dtype_skip_layers: list[str] = field(default_factory=list)


def configuration(skip: tuple[str, ...] = (), **cache: Any) -> SimpleNamespace:
    given = {"block_size": 16, "cache_dtype": "fp8_e4m3", "kv_cache_dtype_skip_layers": list(skip), **cache}
    model = SimpleNamespace(dtype="torch.bfloat16", get_total_num_hidden_layers=lambda: 8)
    return SimpleNamespace(
        cache_config=SimpleNamespace(**given), model_config=model, attention_config=SimpleNamespace(backend=None)
    )


def test_preferred_values_go_where_the_operator_gave_none(make: Any) -> None:
    active, args = make(), Arguments()
    resolution.ask(active, args, {})
    assert (args.block_size, args.kv_cache_dtype, args.attention_backend) == (16, "fp8", None)


def test_a_cpu_gets_a_block_that_its_kernel_reads(make: Any) -> None:
    active, args = make(cpu=True), Arguments()
    resolution.ask(active, args, {})
    assert args.block_size == 32
    assert active.settings["block_size"].decided_by == "accept list (16 cannot run here)"


def test_a_cpu_of_an_older_vllm_reads_smaller_blocks(make: Any) -> None:
    active, args = make(cpu=True, version="0.28.0+cpu"), Arguments()
    resolution.ask(active, args, {})
    assert (args.block_size, active.settings["block_size"].decided_by) == (16, "policy")


@pytest.mark.parametrize(("cpu", "name"), [(False, "bfloat16"), (True, "auto")])
def test_a_cpu_is_not_asked_for_a_dtype_by_name(make: Any, cpu: bool, name: str) -> None:
    """It would take bfloat16 under a float32 model and compute it wrongly; left alone it stores the model's own."""
    text = POLICY.replace('{default: fp8_e4m3, layers: {"0-1": bf16, "-1:": bf16}}', "bf16")
    active, args = make(cpu=cpu, text=text), Arguments()
    resolution.ask(active, args, {})
    assert args.kv_cache_dtype == name
    resolution.compare_resolved(active, configuration(block_size=args.block_size, cache_dtype=name))
    assert active.settings["kv_cache_dtype"].effective == "bf16"


@pytest.mark.parametrize("dtype", ["nvfp4", "int8_per_token_head"])
def test_a_dtype_that_a_cpu_takes_and_computes_wrongly_is_refused(make: Any, dtype: str) -> None:
    text = POLICY.replace('{default: fp8_e4m3, layers: {"0-1": bf16, "-1:": bf16}}', dtype)
    with pytest.raises(SystemExit, match=f"the policy asks for {dtype} at .*, but this vLLM cannot run it here"):
        resolution.ask(make(cpu=True, text=text), Arguments(), {})


def test_single_layers_keep_the_models_dtype(make: Any) -> None:
    active, config = make(), configuration()
    resolution.skip_layers(active, config, {})
    assert config.cache_config.kv_cache_dtype_skip_layers == ["0", "1", "7"]
    assert active.settings["kv_cache_dtype_skip_layers"].effective == ["0", "1", "7"]


def test_layers_that_the_engine_skips_by_itself_stay_skipped(make: Any) -> None:
    active, config = make(), configuration(skip=("0", "6", "7"))
    resolution.skip_layers(active, config, {})
    assert config.cache_config.kv_cache_dtype_skip_layers == ["0", "1", "6", "7"]


def test_a_layer_of_a_third_dtype_is_a_conflict(make: Any) -> None:
    text = POLICY.replace('"-1:": bf16', '"-1:": fp16')
    with pytest.raises(SystemExit, match=r"can leave single layers in the model's dtype \(bf16\), and in no other"):
        resolution.skip_layers(make(text=text), configuration(), {})


def test_other_layers_given_explicitly_are_a_conflict_naming_both(make: Any) -> None:
    explicit = {"kv_cache_dtype_skip_layers": "--kv-cache-dtype-skip-layers ['3']"}
    with pytest.raises(SystemExit, match=r"p\.yaml:6.* but --kv-cache-dtype-skip-layers \['3'\] was given"):
        resolution.skip_layers(make(), configuration(skip=("3",)), explicit)
    active, config = make("warn"), configuration(skip=("3",))
    resolution.skip_layers(active, config, explicit)
    assert config.cache_config.kv_cache_dtype_skip_layers == ["3"]
    assert [found.winner for found in active.conflicts] == ["--kv-cache-dtype-skip-layers ['3']"]


def test_all_conflicts_are_said_at_once_and_warn_lets_the_flags_win(make: Any) -> None:
    given = {"block_size": "--block-size 64", "kv_cache_dtype": "--kv-cache-dtype auto"}
    with pytest.raises(SystemExit) as caught:
        resolution.ask(make(), Arguments(block_size=64), given)
    assert str(caught.value).count("  conflict: ") == 2
    active, args = make("warn"), Arguments(block_size=64)
    resolution.ask(active, args, given)
    resolution.compare_resolved(active, configuration(block_size=64, cache_dtype="auto"))
    assert (args.block_size, args.kv_cache_dtype) == (64, "auto")
    assert [found.setting for found in active.conflicts] == ["cache.page_size", "cache.kv_dtype"]
    settled = active.settings["kv_cache_dtype"]
    assert (settled.effective, settled.decided_by) == ("bf16", "--kv-cache-dtype auto")


@pytest.mark.parametrize(("tokens", "conflict"), [(16, False), (32, False), (528, True)])
def test_blocks_that_a_hybrid_model_inflates(make: Any, tokens: int, conflict: bool) -> None:
    active, args = make(), Arguments()
    resolution.ask(active, args, {})
    if conflict:
        with pytest.raises(SystemExit, match="what the engine built makes it 528"):
            resolution.compare_built(active, {"block_size": tokens})
    else:
        resolution.compare_built(active, {"block_size": tokens})
        assert active.settings["block_size"].effective == tokens


CASCADE = "apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {name: p}\nbackend: {cascade: WORD}\n"


@dataclass
class WithCascade(Arguments):
    disable_cascade_attn: bool | None = True  # what 0.26 to 0.30 default to


@pytest.fixture
def cascading(make: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """(word, whether this vLLM has a cascade) -> the policy in use."""

    def make_active(word: str, has_cascade: bool = True, on_conflict: str = "error") -> ActivePolicy:
        monkeypatch.setattr(probe, "has_cascade", lambda: has_cascade)
        return make(text=CASCADE.replace("WORD", word) + f"cache: {{on_conflict: {on_conflict}}}\n")

    return make_active


def resolved(disable_cascade_attn: bool | None) -> SimpleNamespace:
    config = configuration()
    config.model_config.disable_cascade_attn = disable_cascade_attn
    return config


@pytest.mark.parametrize(("word", "disabled"), [("auto", False), ("off", True)])
def test_a_vllm_with_a_cascade_gets_the_policys_word(cascading: Any, word: str, disabled: bool) -> None:
    active, args = cascading(word), WithCascade(disable_cascade_attn=not disabled)
    resolution.ask(active, args, {})
    assert args.disable_cascade_attn is disabled
    resolution.compare_resolved(active, resolved(disabled))
    resolution.compare_built(active, {"attention_backend": "flash_attn"})
    assert active.settings["disable_cascade_attn"].effective == word
    server = WithCascade(disable_cascade_attn=True)
    resolution.inherit(active, server)
    assert server.disable_cascade_attn is disabled


def test_an_explicit_flag_against_the_cascade_word(cascading: Any) -> None:
    given = {"disable_cascade_attn": "--disable-cascade-attn"}
    with pytest.raises(SystemExit, match=r"asks for auto at .* but --disable-cascade-attn was given explicitly"):
        resolution.ask(cascading("auto"), WithCascade(disable_cascade_attn=True), given)
    with pytest.raises(SystemExit, match=r"asks for off at .* but --no-disable-cascade-attn was given explicitly"):
        resolution.ask(
            cascading("off"),
            WithCascade(disable_cascade_attn=False),
            {"disable_cascade_attn": "--no-disable-cascade-attn"},
        )


def test_vllms_own_reasons_against_a_cascade(cascading: Any) -> None:
    """Its configuration switches it off for some features, and a backend without one never looks at the option."""
    active, args = cascading("auto"), WithCascade()
    resolution.ask(active, args, {})
    with pytest.raises(SystemExit, match="vLLM's argument resolution makes it off"):
        resolution.compare_resolved(active, resolved(True))
    active, args = cascading("auto"), WithCascade()
    resolution.ask(active, args, {})
    resolution.compare_resolved(active, resolved(False))
    with pytest.raises(SystemExit, match="what the engine built makes it off"):
        resolution.compare_built(active, {"attention_backend": "triton_attn"})


def _ask_and_compare(active: ActivePolicy, args: WithCascade, explicit: dict[str, str]) -> None:
    resolution.ask(active, args, explicit)
    resolution.compare_resolved(active, resolved(False))


@pytest.mark.parametrize("explicit", [{}, {"disable_cascade_attn": "--no-disable-cascade-attn"}])
def test_a_vllm_without_a_cascade(cascading: Any, explicit: dict[str, str]) -> None:
    args = WithCascade(disable_cascade_attn=False if explicit else None)
    strict = cascading("auto", has_cascade=False)
    with pytest.raises(SystemExit, match=r"asks for auto at .*p\.yaml:4"):
        _ask_and_compare(strict, args, explicit)
    active = cascading("auto", has_cascade=False, on_conflict="warn")
    _ask_and_compare(active, args, explicit)
    assert [found.setting for found in active.conflicts] == ["backend.cascade"], "once"
    off, untouched = cascading("off", has_cascade=False), WithCascade(disable_cascade_attn=None)
    resolution.ask(off, untouched, {})
    resolution.compare_resolved(off, resolved(None))
    assert untouched.disable_cascade_attn is None, "setting it would only warn of the option"


def test_arguments_no_command_line_made_are_explicit_where_they_differ_from_the_default() -> None:
    args = Arguments(block_size=64, kv_cache_dtype_skip_layers=["0"])
    assert resolution.explicit_by_value(args) == {
        "block_size": "EngineArgs(block_size=64)",
        "kv_cache_dtype_skip_layers": "EngineArgs(kv_cache_dtype_skip_layers=['0'])",
    }


def test_an_api_server_repeats_what_its_launcher_asked_for(make: Any) -> None:
    active = make("warn")
    launcher = Arguments(kv_cache_dtype="auto")
    resolution.ask(active, launcher, {"kv_cache_dtype": "--kv-cache-dtype auto"})
    resolution.compare_resolved(active, configuration(block_size=32, cache_dtype="auto"))
    server = Arguments()
    resolution.inherit(active, server)
    assert (server.block_size, server.kv_cache_dtype) == (launcher.block_size, launcher.kv_cache_dtype) == (16, "auto")
