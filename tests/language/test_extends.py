"""`extends` and `engines`: what an effective policy is, where its values come from, and what can go wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvpolicy.language import PolicyError, digest_of, load_policy, load_text, policy_from_flat

HEADER = "apiVersion: kvpolicy/v1\nkind: KVPolicy\n"


def write(folder: Path, **files: str) -> Path:
    for name, body in files.items():
        (folder / f"{name}.yaml").write_text(HEADER + body)
    return folder


def test_mappings_merge_and_everything_else_replaces(tmp_path) -> None:
    write(
        tmp_path,
        base="""\
metadata: {name: base, description: of the base}
cache: {page_size: {prefer: 16, accept: [16, 32]}, kv_dtype: bf16}
eviction:
  policy: lru
  rules: [{name: a, match: hits > 1, priority: 1}, {name: b, priority: 2}]
tests: [{name: a, pool: 8, steps: [a:4 hit none]}]
""",
        child="""\
extends: ./base.yaml
cache: {page_size: {accept: [16, 64]}, kv_dtype: null}
eviction: {rules: [{name: c, priority: 3}]}
""",
    )
    result = load_policy(tmp_path / "child.yaml")
    assert result.diagnostics == []
    assert result.flat == {
        "apiVersion": "kvpolicy/v1",
        "kind": "KVPolicy",
        "metadata": {"name": "child"},
        "cache": {"page_size": {"prefer": 16, "accept": [16, 64]}},
        "eviction": {"policy": "lru", "rules": [{"name": "c", "priority": 3}]},
    }
    assert result.digest == digest_of(result.flat)
    assert len(result.digest) == 64


def test_origins_name_file_and_line(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path,
        base="cache:\n  page_size: 16\n  kv_dtype: bf16\n",
        child="extends: ./base.yaml\ncache: {page_size: 32}\n",
    )
    result = load_policy("child.yaml")
    assert result.origin("cache.page_size") == ("child.yaml", 4, 20)
    assert result.origin("cache.kv_dtype") == ("base.yaml", 5, 13)
    assert result.origin("metadata.name") is None
    assert result.origin(("cache", "nothing")) is None
    assert result.locate("cache.nothing")[0] == "child.yaml"
    rules = load_text((HEADER + "eviction:\n  rules:\n    - name: a\n      priority: 1\n").encode(), "r.yaml")
    assert rules.origin("eviction.rules[0].priority") == ("r.yaml", 6, 17)


@pytest.mark.parametrize(
    ("parent", "child", "eviction"),
    [
        ("policy: slru, params: {protected_hits: 3}", "score: hits", {"score": "hits"}),
        ("score: hits", "policy: gdsf", {"policy": "gdsf"}),
        ("policy: slru, params: {protected_hits: 3}", "policy: lru", {"policy": "lru"}),
        (
            "policy: slru",
            "params: {protected_hits: 3}",
            {"policy": "slru", "params": {"protected_hits": 3}},
        ),
        ("policy: lru", "policy: null", {}),
    ],
)
def test_score_and_policy_clear_each_other(tmp_path, parent, child, eviction) -> None:
    write(tmp_path, a=f"eviction: {{{parent}}}\n", b=f"extends: a.yaml\neviction: {{{child}}}\n")
    result = load_policy(tmp_path / "b.yaml")
    assert [d for d in result.diagnostics if d.severity == "error"] == []
    assert result.flat.get("eviction", {}) == eviction


def test_builtin_parents_and_paths_relative_to_the_file(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "team"
    folder.mkdir()
    write(folder, base="extends: builtin:chat\n", child="extends: base.yaml\ncache: {page_size: 64}\n")
    monkeypatch.chdir(tmp_path)
    result = load_policy("team/child.yaml")
    assert result.diagnostics == []
    assert result.flat["eviction"] == load_policy("chat").flat["eviction"]
    assert result.origin("eviction.policy")[0] == "builtin:chat"
    assert set(result.sources) == {"team/child.yaml", "team/base.yaml", "builtin:chat"}


def test_a_mistake_in_a_parent_is_shown_in_the_parent(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path,
        base="cache: {page_size: 3}\neviction: {score: hits + idel_s}\n",
        child="extends: base.yaml\ncahce: {}\n",
    )
    places = [(d.file, d.line, d.col, d.code) for d in load_policy("child.yaml").diagnostics]
    assert places == [
        ("child.yaml", 4, 1, "KVP201"),
        ("base.yaml", 3, 20, "KVP207"),
        ("base.yaml", 4, 26, "KVP401"),
    ]


CHAINS = {
    "missing": ("extends: nope.yaml\n", "KVP118"),
    "missing builtin": ("extends: builtin:cht\n", "KVP118"),
    "a folder": ("extends: .\n", "KVP118"),
    "itself": ("extends: child.yaml\n", "KVP119"),
    "in a circle": ("extends: loop.yaml\n", "KVP119"),
    "http": ("extends: https://example.com/a.yaml\n", "KVP121"),
    "file url": ("extends: file:///etc/passwd\n", "KVP121"),
    "git": ("extends: git@example.com:a.yaml\n", "KVP121"),
    "a list": ("extends: [a.yaml]\n", "KVP122"),
    "a number": ("extends: 5\n", "KVP122"),
    "an empty text": ("extends: ''\n", "KVP122"),
    "NUL in the path": ('extends: "a\\0b"\n', "KVP122"),
    "too long a path": (f"extends: {'x' * 5000}\n", "KVP118"),
}


@pytest.mark.parametrize(("body", "code"), CHAINS.values(), ids=CHAINS)
def test_a_broken_chain_is_one_diagnostic_at_extends(tmp_path, monkeypatch, body, code) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, child=body, loop="extends: loop2.yaml\n", loop2="extends: child.yaml\n")
    result = load_policy("child.yaml")
    (d,) = result.diagnostics
    assert d.code == code
    assert result.policy is None
    assert not result.unopenable
    assert d.col == 10
    assert len(d.message) < 300


def test_a_near_name_is_suggested_for_a_parent(tmp_path) -> None:
    write(tmp_path, child="extends: bsae.yaml\n", base="", other="extends: chat\n")
    (d,) = load_policy(tmp_path / "child.yaml").diagnostics
    assert d.help == "did you mean 'base.yaml'?"
    (d,) = load_policy(tmp_path / "other.yaml").diagnostics
    assert d.help == "did you mean 'builtin:chat'?"


def test_depth_and_size_of_a_chain_are_bounded(tmp_path) -> None:
    write(tmp_path, **{f"p{i}": f"extends: p{i + 1}.yaml\n" for i in range(9)}, p9="")
    (d,) = load_policy(tmp_path / "p0.yaml").diagnostics
    assert d.code == "KVP120"
    assert load_policy(tmp_path / "p1.yaml").diagnostics == []
    padding = "# " + "x" * 100 + "\n"
    write(tmp_path, big="extends: big2.yaml\n" + padding * 700, big2=padding * 700)
    (d,) = load_policy(tmp_path / "big.yaml").diagnostics
    assert d.code == "KVP105"


def test_a_broken_parent_says_so_in_the_parent(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, child="extends: broken.yaml\n", empty_child="extends: empty.yaml\n")
    (tmp_path / "broken.yaml").write_text("a: {\n")
    (tmp_path / "empty.yaml").write_text("")
    (d,) = load_policy("child.yaml").diagnostics
    assert (d.file, d.code) == ("broken.yaml", "KVP106")
    (d,) = load_policy("empty_child.yaml").diagnostics
    assert (d.file, d.code) == ("empty_child.yaml", "KVP102")
    assert "empty.yaml" in d.message


ENGINES = """\
cache: {page_size: 16}
allocator: {order: lifo}
eviction: {policy: lru}
engines:
  sglang: {allocator: null, cache: {page_size: 64}, eviction: {score: hits}}
"""


def test_an_engine_overrides_and_drops_sections(load) -> None:
    result = load(ENGINES, "sglang")
    assert result.policy.allocator is None
    assert result.policy.cache.page_size.prefer == 64
    assert (result.policy.eviction.policy, result.policy.eviction.score) == (None, "hits")
    assert "engines" not in result.flat
    neutral = load(ENGINES)
    assert neutral.policy.allocator.order == "lifo"
    assert neutral.digest != result.digest


def test_a_flat_policy_keeps_what_each_engine_drops(load) -> None:
    neutral = load(ENGINES)
    assert neutral.flat["engines"]["sglang"]["allocator"] is None
    policy = policy_from_flat(neutral.flat, "sglang")
    assert policy.model_copy(update={"engines": {}}) == load(ENGINES, "sglang").policy
    assert policy_from_flat(neutral.flat, "vllm").allocator.order == "lifo"
    assert policy_from_flat(neutral.flat) == neutral.policy


def test_a_flat_policy_that_was_edited_is_refused(load) -> None:
    flat = load(ENGINES, "sglang").flat
    with pytest.raises(PolicyError, match=r"cache\.page_size"):
        policy_from_flat({**flat, "cache": {"page_size": 3}})
    with pytest.raises(PolicyError) as caught:
        policy_from_flat({"kind": "KVPolicy"})
    assert caught.value.diagnostics


def test_a_symlink_loop_is_a_missing_parent(tmp_path) -> None:
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    write(tmp_path, child="extends: loop.yaml\n")
    (d,) = load_policy(tmp_path / "child.yaml").diagnostics
    assert d.code == "KVP118"
    (d,) = load_policy(tmp_path / "loop.yaml").diagnostics
    assert d.code == "KVP101"


CONFLICTS = {
    "cache: {kv_dtype: fp16}": (1, 19, "KVP602"),
    "cache: {kv_dtype: {default: fp16}}": (1, 29, "KVP602"),
    "backend: {attention: triton_attn}": (1, 22, "KVP602"),
}
HONOURED = [
    "backend: {page_native: false, cascade: off}",
    "backend: {attention: flashinfer, page_native: true}",
    "backend: {attention: flashinfer, cascade: auto}",
    "backend: {attention: flashinfer, cascade: {min_shared_tokens: 8, min_batch: 2}}",
    "allocator: {guard: off}",
    "allocator: {watermark: {low: 1%, high: 2%}}",
    "allocator: {order: address, guard: sampled}",
    "hints: {}",
    "hints: {max_priority: 5, allow: []}",
    "hints: {allow: [retain, demote, expire, class], classes: [a], max_ttl: 5s, budget: 20%, weight: 2}",
    "cache: {kv_dtype: {default: bf16, layers: {0-1: fp8}}}",
    "cache: {kv_dtype: {default: bf16, layers: {}}}",
    "cache: {kv_dtype: {prefer: fp16, accept: [fp16, bf16]}}",
    "backend: {attention: {prefer: triton_attn, accept: [triton_attn, triton]}}",
]


@pytest.mark.parametrize(("body", "place"), CONFLICTS.items(), ids=list(CONFLICTS))
def test_what_an_adapter_cannot_honour_is_a_conflict(load, found, body, place) -> None:
    assert found(body + "\n", "sglang") == [place]
    assert load(body + "\n", "sglang").policy is None
    lenient = load(f"{body}\nengines: {{sglang: {{cache: {{on_conflict: warn}}}}}}\n", "sglang")
    assert lenient.policy is not None
    assert [d.severity for d in lenient.diagnostics] == ["warning"]
    unnamed = load(body + "\n")
    assert unnamed.policy is not None
    seen = [(d.data["engine"], d.code, d.severity) for d in unnamed.diagnostics]  # vLLM may have it, or lack it too
    assert seen[0] == ("sglang", place[2], "warning")
    assert seen[1:] in ([], [("vllm", place[2], "warning")])


@pytest.mark.parametrize("body", HONOURED)
def test_what_asks_for_nothing_is_no_conflict(found, body) -> None:
    assert found(body + "\n", "sglang") == []


def test_each_engine_has_gaps_of_its_own(found) -> None:
    body = "backend: {attention: triton_attn}\nallocator: {order: lifo}\n"
    assert [place[:1] + place[2:] for place in found(body, "sglang")] == [(1, "KVP602")]
    assert [place[:1] + place[2:] for place in found(body, "vllm")] == [(2, "KVP601")]


def test_the_only_order_of_vllms_own_is_lru(found) -> None:
    assert found("eviction: {core: engine, policy: lfu}\n", "vllm") == [(1, 34, "KVP601")]
    assert found("eviction: {core: engine, policy: lru}\n", "vllm") == []
    assert found("eviction: {core: engine}\n", "vllm") == []
    assert found("eviction: {core: engine, policy: lfu}\n", "sglang") == []


def test_the_help_of_a_conflict_works(load) -> None:
    body = "backend: {page_native: false}\n"
    (d,) = load(body, "vllm").diagnostics
    fix = d.help.split("`")[1]
    assert load(body + fix + "\n", "vllm").policy is not None
