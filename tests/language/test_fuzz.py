"""No input raises, none is slow, and every diagnostic points into a file that was read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvpolicy.language import LoadResult, PolicyError, load_text, policy_from_flat
from kvpolicy.language.codes import CODES
from kvpolicy.language.dump import dump
from kvpolicy.language.shipped_policies import shipped
from tests.work import counted

SEEDS = [path.read_bytes() for path in shipped().values()]
SEEDS += [code.example("bad") for code in CODES.values() if len(code.example("bad")) < 2000]
FRAGMENTS = [
    *(b"\t", b"\n", b"  ", b": ", b"- ", b"[", b"]", b"{", b"}", b"&a ", b"*a", b"<<: ", b"!!str ", b"|", b">", b"'"),
    *(b'"', b"#", b"---\n", b"...\n", b"%YAML 1.1\n", b"? ", b"\xff", b"\x00", b"\r\n", b"\x85"),
    *(b"0777", b".nan", b"1e999", b"9" * 30, b"null", b"2%", b"600s", b"8Ki", b"idle_s", b"**", b"()" * 50),
    *(b"eviction:\n", b"rules:\n", b"extends: builtin:chat\n", b"engines: {sglang: ", b"layers: {", b"params: "),
    *(b"score: ", b"match: ", "é日\u2028\U0001f600".encode()),
]

#: Of one load: ten times what the largest shipped policy takes, which is 15 ms on a machine of 2026.
MAX_CALLS = 500_000


def broken_promises(raw: bytes) -> list[str]:
    """What a load of `raw` does that none may do, for two engines; empty if all is well."""
    broken = []
    for engine in (None, "sglang"):
        result, calls = counted(lambda engine=engine: load_text(raw, "p.yaml", engine))
        broken += _broken_by(result, engine)
        if calls > MAX_CALLS:
            broken.append(f"a load took {calls} calls")
    return broken


def _broken_by(result: LoadResult, engine: str | None) -> Iterator[str]:
    if (result.policy is None) != any(d.severity == "error" for d in result.diagnostics):
        yield "a policy with errors, or none without"
    for d in result.diagnostics:
        if d.code not in CODES or not d.message:
            yield f"unknown or silent: {d}"
        line = result.sources[d.file].line(d.line) if d.file in result.sources else ""
        if d.line < 1 or d.col < 1 or line is None or (d.file in result.sources and d.col > len(line) + 1):
            yield f"points outside its file: {d}"
    if result.policy is not None:
        again = load_text(dump(result.flat).encode(), "again.yaml", engine)
        if (again.flat, again.digest) != (result.flat, result.digest):
            yield "its dump reads back as another policy"


quick = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(st.binary(max_size=400))
def test_random_bytes(raw) -> None:
    assert broken_promises(raw) == []


@quick
@given(st.text(max_size=400))
def test_random_text(text) -> None:
    assert broken_promises(text.encode("utf-8", errors="surrogatepass")) == []


@settings(quick, max_examples=250)
@given(st.sampled_from(SEEDS), st.data())
def test_mutated_policies(seed, data) -> None:
    raw = bytearray(seed)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw)))
        cut = data.draw(st.integers(0, 12))
        raw[at : at + cut] = data.draw(st.sampled_from(FRAGMENTS) | st.binary(max_size=3))
    assert broken_promises(bytes(raw)) == []


WORDS = """cache eviction rules name match retain weight ttl budget tenants named floor cap page_size prefer accept
kv_dtype default layers score policy params engines sglang vllm allocator watermark low high hints allow cascade backend
attention metadata"""
quantities = st.sampled_from(["5%", "10s", "8Ki", "auto"])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | quantities
keys = st.sampled_from(WORDS.split())
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)


@settings(quick, max_examples=200)
@given(st.dictionaries(keys, trees, max_size=5))
def test_well_formed_files_of_the_wrong_shape(body) -> None:
    text = "apiVersion: kvpolicy/v1\nkind: KVPolicy\n" + "".join(f"{k}: {json.dumps(v)}\n" for k, v in body.items())
    assert broken_promises(text.encode("utf-8", errors="surrogatepass")) == []


@pytest.mark.parametrize(
    "fault",
    [{"line": 0}, {"col": 0}, {"line": 99}, {"col": 99}, {"code": "KVP000"}, {"message": ""}, {"severity": "info"}],
    ids=str,
)
def test_the_examination_sees_a_wrong_diagnostic(fault, monkeypatch) -> None:
    true_load = load_text

    def load(raw, name, engine):
        result = true_load(raw, name, engine)
        return replace(result, diagnostics=[replace(d, **fault) for d in result.diagnostics])

    raw = b"apiVersion: kvpolicy/v1\nkind: KVPolicy\ncahce: {}\n"
    assert broken_promises(raw) == []
    monkeypatch.setitem(globals(), "load_text", load)
    assert broken_promises(raw)


def test_the_examination_sees_a_slow_load(monkeypatch) -> None:
    true_load = load_text

    def load(raw, name, engine):
        for _ in range(MAX_CALLS):
            len(raw)
        return true_load(raw, name, engine)

    monkeypatch.setitem(globals(), "load_text", load)
    assert broken_promises(b"a: b\n")


@pytest.mark.parametrize("escape", [r"\ud800\udc00", r"\ud83d", r"a\udfffb"])
@pytest.mark.parametrize(
    "body",
    ['cache: {page_size: "%s"}', 'metadata: {name: "%s"}', '"%s": 1', 'extends: "%s"', 'eviction: {score: "%s"}'],
)
def test_half_a_character_is_said_where_it_stands(body: str, escape: str) -> None:
    text = f"apiVersion: kvpolicy/v1\nkind: KVPolicy\n{body % escape}\n"
    assert broken_promises(text.encode()) == []
    (found,) = load_text(text.encode(), "p.yaml", None).diagnostics
    assert (found.code, found.severity, found.line) == ("KVP103", "error", 3)
    assert "half of a surrogate pair" in found.message


@pytest.mark.parametrize(
    "changed", [{"metadata": {"name": "\ud800"}}, {"cache": {"page_size": "\ud83d"}}, {"\udfff": 1}]
)
def test_half_a_character_in_a_flattened_policy_is_refused(changed: dict[str, object]) -> None:
    """JSON has escapes for it, and a server takes flattened policies from its clients."""
    flat = load_text(b"apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {name: a}\n", "p.yaml", None).flat
    with pytest.raises(PolicyError, match="half of a surrogate pair"):
        policy_from_flat({**flat, **changed})
