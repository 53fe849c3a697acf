"""No input raises, none takes two seconds, and every diagnostic points into a file that was read."""

from __future__ import annotations

import json
import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvpolicy.language import load_text
from kvpolicy.language.codes import CODES
from kvpolicy.language.dump import dump
from kvpolicy.language.library import shipped

SEEDS = [path.read_bytes() for path in shipped().values()]
SEEDS += [code.example("bad") for code in CODES.values() if len(code.example("bad")) < 2000]
FRAGMENTS = [
    *(b"\t", b"\n", b"  ", b": ", b"- ", b"[", b"]", b"{", b"}", b"&a ", b"*a", b"<<: ", b"!!str ", b"|", b">", b"'"),
    *(b'"', b"#", b"---\n", b"...\n", b"%YAML 1.1\n", b"? ", b"\xff", b"\x00", b"\r\n", b"\x85"),
    *(b"0777", b".nan", b"1e999", b"9" * 30, b"null", b"2%", b"600s", b"8Ki", b"idle_s", b"**", b"()" * 50),
    *(b"eviction:\n", b"rules:\n", b"extends: builtin:chat\n", b"engines: {sglang: ", b"layers: {", b"params: "),
    *(b"score: ", b"match: ", "é日\u2028\U0001f600".encode()),
]


def examine(raw: bytes) -> None:
    start = time.process_time()
    for engine in (None, "sglang"):
        result = load_text(raw, "p.yaml", engine)
        assert (result.policy is None) == any(d.severity == "error" for d in result.diagnostics)
        for d in result.diagnostics:
            assert d.code in CODES
            assert d.message
            assert d.line >= 1
            assert d.col >= 1
            if d.file in result.sources:
                line = result.sources[d.file].line(d.line)
                assert line is not None
                assert d.col <= len(line) + 1
        if result.policy is not None:
            again = load_text(dump(result.flat).encode(), "again.yaml", engine)
            assert again.flat == result.flat
            assert again.digest == result.digest
    assert time.process_time() - start < 4  # two loads


quick = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(st.binary(max_size=400))
def test_random_bytes(raw) -> None:
    examine(raw)


@quick
@given(st.text(max_size=400))
def test_random_text(text) -> None:
    examine(text.encode("utf-8", errors="surrogatepass"))


@settings(quick, max_examples=250)
@given(st.sampled_from(SEEDS), st.data())
def test_mutated_policies(seed, data) -> None:
    raw = bytearray(seed)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw)))
        cut = data.draw(st.integers(0, 12))
        raw[at : at + cut] = data.draw(st.sampled_from(FRAGMENTS) | st.binary(max_size=3))
    examine(bytes(raw))


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
    examine(text.encode("utf-8", errors="surrogatepass"))
