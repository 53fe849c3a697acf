"""The JSON Schema is valid draft-07, accepts what `check` accepts, and rejects what the schema layer rejects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft7Validator

from kvpolicy.cli.init import scaffold
from kvpolicy.cli.main import main
from kvpolicy.language import load_policy, load_text
from kvpolicy.language.codes import CODES
from kvpolicy.language.models import Policy
from kvpolicy.language.mutability import MUTABILITY, mutability
from kvpolicy.language.schema import json_schema
from kvpolicy.language.shape import models_in
from kvpolicy.language.shipped_policies import shipped
from kvpolicy.language.source import Source
from kvpolicy.language.tree import parse, to_plain

SCHEMA = json_schema()
VALIDATOR = Draft7Validator(SCHEMA)


def plain(text: str) -> object:
    """As an editor's YAML 1.2 parser reads it (PyYAML's 1.1 would turn `off` into a boolean)."""
    return to_plain(parse(Source("p", text))[0], keep_nulls=True)


def test_it_is_a_draft_07_schema(capsys) -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA
    text = json.dumps(SCHEMA)
    assert "$defs" not in text
    assert "prefixItems" not in text


@pytest.mark.parametrize("path", shipped().values(), ids=shipped())
def test_the_shipped_policies_fit(path) -> None:
    assert list(VALIDATOR.iter_errors(plain(path.read_text()))) == []


def test_the_scaffold_fits() -> None:
    assert list(VALIDATOR.iter_errors(plain(scaffold("mine", "mine.yaml", with_tests=True)))) == []


def test_the_whole_grammar_fits() -> None:
    whole = (Path(__file__).parent / "test_grammar.py").read_text().split('WHOLE = """\\\n')[1].split('"""')[0]
    assert list(VALIDATOR.iter_errors(plain("apiVersion: kvpolicy/v1\nkind: KVPolicy\n" + whole))) == []


# Codes that a schema can see: those of the schema layer, and three of meaning that it can express.
SEEN = [code for code in CODES.values() if "KVP201" <= code.code <= "KVP211"] + [
    CODES[c] for c in ("KVP302", "KVP305", "KVP318")
]


@pytest.mark.parametrize("code", SEEN, ids=[code.code for code in SEEN])
def test_bad_examples_are_rejected_and_good_ones_accepted(code) -> None:
    assert not VALIDATOR.is_valid(plain(code.example("bad").decode()))
    assert list(VALIDATOR.iter_errors(plain(code.example("good").decode()))) == []


def grammar_cases() -> list[str]:
    import importlib.util

    spec = importlib.util.spec_from_file_location("grammar_cases", Path(__file__).parent / "test_grammar.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [body for body, _, _ in module.PLACES]


#: Beyond a schema: JSON has one kind of number and no NaN, and a pattern cannot compare two numbers.
UNSEEN = ["page_size: 16.0", "layers: {3-1: bf16}", "weight: .nan"]


@pytest.mark.parametrize("body", [body for body in grammar_cases() if not any(text in body for text in UNSEEN)])
def test_every_mistake_of_the_grammar_tests_is_rejected(body) -> None:
    assert not VALIDATOR.is_valid(plain(f"apiVersion: kvpolicy/v1\nkind: KVPolicy\n{body}\n"))


NULLS = [
    "cache:\n",
    "eviction:\n",
    "cache: {page_size: null}\n",
    "engines: {sglang: {cache: null}}\n",
    "engines: {sglang: null}\n",
    "metadata:\n",
    "tests:\n",
    "extends: null\n",
]


@pytest.mark.parametrize("body", NULLS)
def test_nulls_drop_a_value_for_both(body) -> None:
    text = f"apiVersion: kvpolicy/v1\nkind: KVPolicy\n{body}"
    assert list(VALIDATOR.iter_errors(plain(text))) == []
    assert load_text(text.encode()).policy is not None


def walk(model, path: str = ""):
    for name, field in model.model_fields.items():
        here = f"{path}.{field.alias or name}".strip(".")
        yield here, field
        for inner in models_in(field.annotation):
            yield from walk(inner, here)


def test_every_field_has_a_description_and_a_mutability() -> None:
    fields = dict(walk(Policy))
    assert len(fields) > 40
    for path, field in fields.items():
        assert mutability(path) in ("hot", "idle", "restart")
        assert field.description or path in (
            "apiVersion",
            "kind",
            "metadata",
            "allocator.watermark.low",
            "allocator.watermark.high",
        )
    assert all(any(path == row or path.startswith(row + ".") for path in fields) for row in MUTABILITY)


def test_the_mutability_table_says_what_the_engines_can_do() -> None:
    assert mutability("cache.page_size.prefer") == "restart"
    assert mutability("backend.attention") == "restart"
    assert mutability("allocator.watermark.low") == "hot"
    assert mutability("eviction.rules") == "hot"
    assert mutability("eviction.core") == "restart"
    with pytest.raises(KeyError):
        mutability("nonsense")
    assert "(Takes effect at start.)" in SCHEMA["definitions"]["Cache"]["properties"]["page_size"]["description"]
    assert "(Can change while serving.)" in SCHEMA["definitions"]["Eviction"]["properties"]["score"]["description"]


def test_shipped_policies_pass_strictly() -> None:
    for name in shipped():
        result = load_policy(f"builtin:{name}", "sglang")
        assert [d for d in result.diagnostics if d.severity != "info"] == []
        assert result.policy.metadata.description
    assert {"long_context", "chat", "agentic", "rag", "multi_tenant", "batch", "stock_lru"} <= set(shipped())


def test_yaml_1_1_readers_would_differ() -> None:
    """Guards `plain` above: the reason why it does not use PyYAML's own loader."""
    assert yaml.safe_load("a: off") == {"a": False}
    assert plain("a: off") == {"a": "off"}
