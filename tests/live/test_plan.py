"""What a change would do: its fields, their classes, and what they are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvpolicy.cli.main import main
from kvpolicy.language import load_policy
from kvpolicy.language.shipped_policies import shipped
from kvpolicy.live.plan import Plan, make_plan, plan_from_json, render

BASE: dict[str, Any] = {
    "apiVersion": "kvpolicy/v1",
    "kind": "KVPolicy",
    "metadata": {"name": "p"},
    "cache": {"page_size": 16},
    "eviction": {
        "policy": "lru",
        "rules": [
            {"name": "a", "match": "hits >= 1", "retain": {"weight": 2}},
            {"name": "b", "match": "hits >= 2", "retain": {"weight": 3}},
        ],
    },
}


def plan(**sections: Any) -> Plan:
    after = {**BASE, **sections}
    return make_plan(BASE, {key: value for key, value in after.items() if value is not None})


def changes(found: Plan) -> list[tuple[str, str, str]]:
    return [(change.sign, change.path, change.mutability) for change in found.changes]


def eviction(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in {**BASE["eviction"], **fields}.items() if value is not None}


def test_each_class_and_sign() -> None:
    found = plan(cache={"page_size": 32}, allocator={"order": "address"}, eviction=eviction(policy="lfu", rules=None))
    assert changes(found) == [
        ("-/+", "cache.page_size", "restart"),
        ("~", "eviction.policy", "hot"),
        ("-", "eviction.rules[a]", "hot"),
        ("-", "eviction.rules[b]", "hot"),
        ("+", "allocator.order", "hot"),
    ]
    assert found.mutability == "restart"
    assert plan(eviction=eviction(policy="lfu")).mutability == "hot"
    assert plan().mutability is None


def test_a_rule_is_known_by_its_name() -> None:
    a, b = BASE["eviction"]["rules"]
    assert changes(plan(eviction=eviction(rules=[{"name": "new", "admit": "never"}, a, b]))) == [
        ("+", "eviction.rules[new]", "hot")
    ]
    assert changes(plan(eviction=eviction(rules=[{**a, "match": "hits >= 3"}, b]))) == [
        ("~", "eviction.rules[a].match", "hot")
    ]


def test_the_order_of_rules_is_a_change() -> None:
    a, b = BASE["eviction"]["rules"]
    (change,) = plan(eviction=eviction(rules=[b, a])).changes
    assert (change.path, change.before, change.after) == ("eviction.rules", ["a", "b"], ["b", "a"])


@pytest.mark.parametrize(
    "same",
    [
        {"cache": {"page_size": {"prefer": 16}}},
        {"cache": {"page_size": {"prefer": 16, "accept": [16]}, "on_conflict": "error"}},
        {"eviction": {**BASE["eviction"], "core": "auto"}},
        {"tests": [{"name": "x", "steps": []}]},
    ],
)
def test_two_ways_to_say_one_thing_are_no_change(same: dict[str, Any]) -> None:
    assert plan(**same).changes == ()


def test_a_section_that_comes_or_goes_is_told_by_field() -> None:
    found = plan(eviction=None, cache={"on_conflict": "warn"})
    assert changes(found) == [
        ("-/+", "cache.on_conflict", "restart"),
        ("-/+", "cache.page_size", "restart"),
        ("-", "eviction.policy", "hot"),
        ("-", "eviction.rules[a]", "hot"),
        ("-", "eviction.rules[b]", "hot"),
    ]
    assert changes(plan(eviction=eviction(core="kvpolicy")))[0][2] == "restart"


def test_an_engines_override_is_of_the_class_of_what_it_overrides() -> None:
    found = plan(engines={"vllm": {"eviction": {"policy": "lfu"}}, "sglang": {"cache": {"page_size": 64}}})
    assert changes(found) == [("+", "engines.vllm.eviction", "hot"), ("-/+", "engines.sglang.cache", "restart")]


@pytest.mark.parametrize("before", sorted(shipped()))
def test_every_shipped_policy_has_a_plan_to_every_other(before: str) -> None:
    for after in shipped():
        one, two = load_policy(before), load_policy(after)
        found = make_plan(one.flat, two.flat)
        assert bool(found.changes) == (before != after)
        assert json.loads(json.dumps(found.to_json()))["after"]["digest"] == two.digest
        assert render(found).splitlines()[-1].startswith("Plan:" if found.changes else "No changes")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "long_context", "rag"]) == 0
    out = capsys.readouterr().out
    assert "~ eviction.policy" in out
    assert "-/+ cache.page_size" in out
    assert out.endswith("Plan: 5 hot, 0 idle, 2 restart.\n")
    assert main(["diff", "long_context", "rag", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["class"] == "restart"
    assert main(["diff", "long_context", "long_context"]) == 0
    assert "No changes." in capsys.readouterr().out
    (bad := tmp_path / "bad.yaml").write_text("kind: nothing\n")
    assert main(["diff", "long_context", str(bad)]) == 1
    assert main(["diff", "long_context", str(tmp_path / "missing.yaml")]) == 2


@pytest.mark.parametrize(
    ("wish", "runs", "kind"),
    [
        ({"prefer": 32, "accept": [16, 32]}, 16, "hot"),
        ({"prefer": 32, "accept": [16, 32]}, 64, "restart"),
        (32, 32, "hot"),  # the server runs another size than it was asked for
        (32, 16, "restart"),
        ("auto", 16, "hot"),
        (32, None, "restart"),  # not known
    ],
)
def test_another_page_size_is_hot_where_the_one_in_effect_is_accepted(wish: Any, runs: int | None, kind: str) -> None:
    after = {**BASE, "cache": {"page_size": wish}}
    plan = make_plan(BASE, after, {"cache.page_size": runs})
    assert [change.mutability for change in plan.changes] == [kind]
    assert make_plan(BASE, after).mutability == "restart"  # between files nobody runs anything
    note = f" ({runs} is in effect and stays)" if kind == "hot" else ""
    assert render(plan).splitlines()[3].endswith(note or str(wish).replace("'", '"'))
    assert plan_from_json(plan.to_json()) == plan


def test_another_dtype_of_single_layers_is_never_met() -> None:
    before, after = (
        {**BASE, "cache": {"kv_dtype": {"default": "bf16", "layers": {"0": name}}}} for name in ("fp8_e4m3", "fp8_e5m2")
    )
    assert make_plan(before, after, {"cache.kv_dtype": "bf16"}).mutability == "restart"
    plain = {**BASE, "cache": {"kv_dtype": {"prefer": "fp8_e4m3", "accept": ["fp8_e4m3", "bf16"]}}}
    after = {**BASE, "cache": {"kv_dtype": "bf16"}}
    assert make_plan(plain, after, {"cache.kv_dtype": "bf16"}).mutability == "hot"
