"""The schema layer: every word of the grammar is typed, and every mistake is shown at its own place."""

from __future__ import annotations

import pytest

from kvpolicy.language import Cascade, KvDtype, PageSize, Policy, Retain, Rule, Tenant, policy_from_flat
from kvpolicy.language.fields import parse_layer_range
from kvpolicy.language.units import UnitError, parse_duration_ms, parse_share, parse_tokens

WHOLE = """\
metadata: {name: long-context, description: everything at once}
cache:
  page_size: {prefer: 16, accept: [16, 32, 64]}
  kv_dtype:
    default: fp8_e4m3
    layers: {"0-1": bf16, "-2:": bfloat16}
  on_conflict: warn
backend:
  attention: {prefer: fa3, accept: [fa3, triton]}
  page_native: true
  cascade: {min_shared_tokens: 8Ki, min_batch: 4}
allocator:
  order: address
  watermark: {low: 2%, high: 5%}
  guard: sampled
eviction:
  core: auto
  score: log1p(hits) / (1 + idle_requests)
  rules:
    - name: shared-system-prompt
      match: depth_tokens <= 4096 and hits >= 3
      retain: {weight: 8, ttl: 600s, budget: 20%}
    - name: opted-out
      match: request.priority < 0
      admit: never
    - name: gold
      match: request.cache_salt == "gold"
      priority: 2
  tenants: {by: cache_salt, floor: 5%, cap: 40%, max_floors: 8, named: {gold: {floor: 20%}}}
hints: {allow: [retain, demote], max_priority: 5, max_ttl: 900s}
engines:
  vllm: {allocator: null}
tests:
  - name: an opening stays
    pool: 2Ki
    page_size: 16
    granularity: both
    segments: {sys: 128, turn: 64}
    steps:
      - sys/turn1 -> answer:32
      - +10s sys/turn2 x3 every 1s for 500ms tenant=gold priority=1 session=s lora=l hit sys
      - +1s flood 4x64
      - resident: [sys]
        evicted_tokens: {shared-system-prompt: 0, unprotected: ">= 0"}
"""


def test_the_whole_grammar_is_typed(load) -> None:
    result = load(WHOLE, "sglang")
    policy = result.policy
    assert isinstance(policy, Policy)
    assert policy.cache.page_size == PageSize(prefer=16, accept=(16, 32, 64))
    assert policy.cache.kv_dtype == KvDtype(
        prefer="fp8_e4m3", accept=("fp8_e4m3",), layers=(("0-1", "bf16"), ("-2:", "bf16"))
    )
    assert policy.on_conflict == "warn"
    assert (policy.backend.attention.prefer, policy.backend.attention.accept) == ("fa3", ("fa3", "triton"))
    assert policy.backend.page_native is True
    assert policy.backend.cascade == Cascade(min_shared_tokens=8192, min_batch=4)
    assert (policy.allocator.order, policy.allocator.guard) == ("address", "sampled")
    assert (policy.allocator.watermark.low, policy.allocator.watermark.high) == (0.02, 0.05)
    assert policy.eviction.score == "log1p(hits) / (1 + idle_requests)"
    assert policy.eviction.policy is None
    assert policy.eviction.rules[0] == Rule(
        name="shared-system-prompt",
        match="depth_tokens <= 4096 and hits >= 3",
        retain=Retain(weight=8.0, ttl_ms=600_000, budget=0.2),
    )
    assert policy.eviction.rules[1].admit == "never"
    assert policy.eviction.rules[2].priority == 2
    tenants = policy.eviction.tenants
    assert (tenants.by, tenants.floor, tenants.cap, tenants.max_floors) == ("cache_salt", 0.05, 0.4, 8)
    assert tenants.named == {"gold": Tenant(floor=0.2)}
    assert (policy.hints.allow, policy.hints.max_priority, policy.hints.max_ttl_ms) == (
        ("retain", "demote"),
        5,
        900_000,
    )


def test_absent_sections_are_none_and_a_flat_policy_reads_back(load) -> None:
    bare = load("").policy
    assert (bare.cache, bare.backend, bare.allocator, bare.eviction, bare.hints) == (None,) * 5
    assert bare.on_conflict == "error"
    result = load(WHOLE, "sglang")
    assert policy_from_flat(result.flat, "sglang") == result.policy.model_copy(update={"tests": ()})
    assert "tests" not in result.flat
    assert "engines" not in result.flat


def test_auto_is_unset_and_a_scalar_is_a_preference(load) -> None:
    auto = load("cache: {page_size: auto, kv_dtype: auto}\nbackend: {attention: auto}\n").policy
    assert (auto.cache.page_size, auto.cache.kv_dtype, auto.backend.attention) == (None, None, None)
    one = load("cache: {page_size: 32, kv_dtype: fp8}\nbackend: {attention: triton, cascade: off}\n").policy
    assert one.cache.page_size == PageSize(prefer=32, accept=(32,))
    assert one.cache.kv_dtype.prefer == "fp8_e4m3"
    assert one.backend.attention.accept == ("triton",)
    assert one.backend.cascade == "off"
    kept = load("cache: {kv_dtype: {prefer: auto, accept: [auto, bf16]}}\n").policy
    assert kept.cache.kv_dtype.prefer is None


def test_models_are_frozen_and_take_numbers_in_python() -> None:
    retain = Retain(weight=8, ttl_ms=600_000, budget=0.2)
    assert retain.ttl_ms == 600_000
    with pytest.raises(ValueError):
        retain.weight = 1  # type: ignore[misc]


PLACES = [
    ("cahce: {}", (1, 1, "KVP201"), "did you mean 'cache'?"),
    ("cache: {page_siz: 16}", (1, 9, "KVP201"), "did you mean 'page_size'?"),
    ("eviction:\n  rules:\n    - {name: a, macth: hits > 1, priority: 1}", (3, 17, "KVP201"), "did you mean 'match'?"),
    ("eviction: {tenants: {named: {gold: {flor: 5%}}}}", (1, 37, "KVP201"), "did you mean 'floor'?"),
    ("backend: {cascade: {min_shared_token: 8, min_batch: 2}}", (1, 21, "KVP201"), "did you mean 'min_shared_tokens'?"),
    ("cache: 5", (1, 8, "KVP203"), None),
    ("cache: [1]", (1, 8, "KVP203"), None),
    ("cache: {page_size: 16.0}", (1, 20, "KVP203"), None),
    ("cache: {page_size: true}", (1, 20, "KVP203"), None),
    ("cache: {page_size: [16, 32]}", (1, 20, "KVP203"), None),
    ("cache: {page_size: {prefer: 16, accept: 16}}", (1, 41, "KVP203"), "write it in brackets: [...]"),
    ("cache: {page_size: {prefer: 16, accept: [16, '32']}}", (1, 46, "KVP203"), None),
    ("cache: {page_size: 0}", (1, 20, "KVP207"), None),
    ("cache: {page_size: -16}", (1, 20, "KVP207"), None),
    ("cache: {page_size: 24}", (1, 20, "KVP207"), "the nearest below is 16"),
    ("cache: {page_size: 131072}", (1, 20, "KVP207"), "the nearest below is 65536"),
    ("cache: {kv_dtype: fp8_e4m4}", (1, 19, "KVP204"), "did you mean 'fp8_e4m3'?"),
    ("cache: {kv_dtype: {default: bf61}}", (1, 29, "KVP204"), "did you mean 'bf16'?"),
    ("cache: {kv_dtype: {default: bf16, layers: {0-x: bf16}}}", (1, 35, "KVP209"), None),
    ("cache: {kv_dtype: {default: bf16, layers: {3-1: bf16}}}", (1, 35, "KVP209"), 'write "1-3"'),
    ("cache: {on_conflict: wran}", (1, 22, "KVP204"), "did you mean 'warn'?"),
    ("backend: {attention: flashinfr}", (1, 22, "KVP204"), "did you mean 'flashinfer'?"),
    ("backend: {page_native: on}", (1, 24, "KVP203"), "write true"),
    ("backend: {cascade: on}", (1, 20, "KVP204"), None),
    ("backend: {cascade: {min_shared_tokens: 8KB, min_batch: 2}}", (1, 40, "KVP205"), None),
    ("backend: {cascade: {min_shared_tokens: 8Ki, min_batch: 1}}", (1, 56, "KVP206"), None),
    ("allocator: {order: adress}", (1, 20, "KVP204"), "did you mean 'address'?"),
    ("allocator: {watermark: {low: 2, high: 5%}}", (1, 30, "KVP205"), "write a percentage, like 2%"),
    ("allocator: {watermark: {low: 0.02, high: 5%}}", (1, 30, "KVP205"), "write a percentage, like 2%"),
    ("allocator: {watermark: {low: 2s, high: 5%}}", (1, 30, "KVP205"), None),
    ("allocator: {watermark: {low: 2%}}", (1, 13, "KVP202"), "add `high:`"),
    ("allocator: {watermark: {low: 2%, high: 101%}}", (1, 40, "KVP206"), None),
    ("eviction: {score: 5}", (1, 19, "KVP203"), 'quote it: "5"'),
    ("eviction: {rules: [{name: a, match: true, priority: 1}]}", (1, 37, "KVP203"), "leave `match` out for every unit"),
    (
        "eviction: {rules: [{name: a, match: 3, priority: 1}]}",
        (1, 37, "KVP203"),
        "write a condition, as in `hits >= 3`",
    ),
    ("eviction: {rules: {name: a}}", (1, 12, "KVP203"), None),
    ("eviction: {rules: [5]}", (1, 20, "KVP203"), None),
    ("eviction: {rules: [{name: a b, priority: 1}]}", (1, 27, "KVP208"), None),
    ("eviction: {rules: [{priority: 1}]}", (1, 20, "KVP202"), "add `name:`"),
    ("eviction: {rules: [{name: a, priority: high}]}", (1, 40, "KVP203"), None),
    ("eviction: {rules: [{name: a, priority: 99999999999}]}", (1, 40, "KVP206"), None),
    ("eviction: {rules: [{name: a, admit: nevr}]}", (1, 37, "KVP204"), "did you mean 'never'?"),
    ("eviction: {rules: [{name: a, retain: {weight: 0}}]}", (1, 47, "KVP206"), None),
    ("eviction: {rules: [{name: a, retain: {weight: -1}}]}", (1, 47, "KVP206"), None),
    ("eviction: {rules: [{name: a, retain: {weight: .inf}}]}", (1, 47, "KVP206"), None),
    ("eviction: {rules: [{name: a, retain: {weight: .nan}}]}", (1, 47, "KVP206"), None),
    (
        "eviction: {rules: [{name: a, retain: {weight: '8'}}]}",
        (1, 47, "KVP203"),
        "write 8 without quotes or underscores",
    ),
    ("eviction: {rules: [{name: a, retain: {weight: 8, ttl: 600}}]}", (1, 55, "KVP205"), "write 600s or 600m"),
    ("eviction: {rules: [{name: a, retain: {weight: 8, ttl: 5d}}]}", (1, 55, "KVP205"), None),
    ("eviction: {rules: [{name: a, retain: {weight: 8, ttl: 0s}}]}", (1, 55, "KVP206"), None),
    ("eviction: {rules: [{name: a, retain: {weight: 8, ttl: soon}}]}", (1, 55, "KVP203"), None),
    ("eviction: {rules: [{name: a, retain: {weight: 8, ttl_ms: 5}}]}", (1, 50, "KVP201"), "did you mean 'ttl'?"),
    ("eviction: {rules: [{name: a, match:, priority: 1}]}", (1, 30, "KVP203"), "give it one, or remove the key"),
    ("eviction: {tenants: {by: user}}", (1, 26, "KVP204"), None),
    ("eviction: {tenants: {max_floors: -1}}", (1, 34, "KVP206"), None),
    ("eviction: {core: engin}", (1, 18, "KVP204"), "did you mean 'engine'?"),
    ("hints: {allow: [keep]}", (1, 17, "KVP204"), None),
    ("engines: {sgl: {}}", (1, 11, "KVP204"), "did you mean 'sglang'?"),
    ("engines: {sglang: {cache: {page_size: 3}}}", (1, 39, "KVP207"), None),
    ("engines: {sglang: {cahce: {}}}", (1, 20, "KVP201"), "did you mean 'cache'?"),
    ("metadata: {name: 5}", (1, 18, "KVP203"), 'quote it: "5"'),
    ("metadata: {descriptoin: x}", (1, 12, "KVP201"), "did you mean 'description'?"),
]


@pytest.mark.parametrize(("body", "place", "help"), PLACES, ids=[body for body, _, _ in PLACES])
def test_a_mistake_is_one_diagnostic_at_its_place(load, body, place, help) -> None:
    result = load(body + "\n")
    errors = [d for d in result.diagnostics if d.severity == "error"]
    assert [(d.line - 2, d.col, d.code) for d in errors] == [place]
    assert result.policy is None
    if help is not None:
        assert errors[0].help == help


def test_all_mistakes_of_a_file_come_at_once(load) -> None:
    body = """\
cache: {page_size: 3, kv_dtype: fp9}
allocator: {order: up, watermark: {low: 5, high: 2%}}
eviction:
  score: hits + idle
  policy: lru
  rules:
    - {name: a, match: hits >, priority: 1}
    - {name: a, retain: {weight: 0}}
hints: {max_ttl: 5}
nonsense: 1
"""
    codes = [d.code for d in load(body).diagnostics if d.severity == "error"]
    assert codes == [
        "KVP207",
        "KVP204",
        "KVP204",
        "KVP205",
        "KVP401",
        "KVP301",
        "KVP401",
        "KVP306",
        "KVP206",
        "KVP205",
        "KVP201",
    ]


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("kind: KVPolicy\n", "KVP202"),
        ("apiVersion: kvpolicy/v1\n", "KVP202"),
        ("apiVersion: kvpolicy/v2\nkind: KVPolicy\n", "KVP210"),
        ("apiVersion: kvpolicy/v1\nkind: KVPolcy\n", "KVP204"),
        ("apiVersion: 1\nkind: KVPolicy\n", "KVP210"),
    ],
)
def test_the_two_header_lines(load, header, code) -> None:
    assert [d.code for d in load("", header=header).diagnostics] == [code]


@pytest.mark.parametrize(("text", "share"), [("0%", 0), ("2%", 0.02), ("2.5%", 0.025), ("20 %", 0.2), ("100%", 1)])
def test_shares(text, share) -> None:
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize(
    ("text", "ms"), [("250ms", 250), ("600s", 600_000), ("1.5s", 1500), ("10m", 600_000), ("1h", 3_600_000)]
)
def test_durations(text, ms) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "tokens"),
    [(4096, 4096), ("8k", 8000), ("8Ki", 8192), ("1Mi", 1 << 20), ("1.5Ki", 1536), ("2M", 2_000_000)],
)
def test_token_counts(text, tokens) -> None:
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize(
    ("parse", "value", "code", "says"),
    [
        (parse_share, 20, "KVP205", "%"),
        (parse_share, "20s", "KVP205", "%"),
        (parse_share, "-5%", "KVP203", "%"),
        (parse_duration_ms, 600, "KVP205", "ms, s, m or h"),
        (parse_duration_ms, "600", "KVP205", "ms, s, m or h"),
        (parse_duration_ms, "600S", "KVP205", "ms, s, m or h"),
        (parse_duration_ms, "0.5ms", "KVP206", "0.5ms"),
        (parse_duration_ms, "999999999h", "KVP206", "999999999h"),
        (parse_tokens, "8KiB", "KVP205", "k, M, G, Ki, Mi or Gi"),
        (parse_tokens, "8K", "KVP205", "k, M, G, Ki, Mi or Gi"),
        (parse_tokens, 1.5, "KVP206", "1.5"),
        (parse_tokens, -1, "KVP206", "-1"),
        (parse_tokens, True, "KVP203", "true"),
        (parse_share, float("nan"), "KVP206", "nan"),
        (parse_share, float("inf"), "KVP206", "inf"),
        (parse_share, [], "KVP203", "a list"),
        (parse_share, "9" * 50 + "%", "KVP203", "999"),
    ],
)
def test_a_wrong_unit_says_which_are_accepted(parse, value, code, says) -> None:
    with pytest.raises(UnitError) as caught:
        parse(value)
    assert caught.value.code == code
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("0-1", ((0, 2),)),
        ("-2:", ((-2, None),)),
        (":4", ((None, 4),)),
        ("0-1,62-63", ((0, 2), (62, 64))),
        ("5", ((5, 6),)),
        ("-1", ((-1, None),)),
        ("-3", ((-3, -2),)),
        (" 0-1 , 4: ", ((0, 2), (4, None))),
    ],
)
def test_layer_ranges(text, spans) -> None:
    assert parse_layer_range(text) == spans


@pytest.mark.parametrize("text", ["", "x", "1-", "--1", "1..2", "0-1,", "9" * 300])
def test_unreadable_layer_ranges(text) -> None:
    with pytest.raises(Exception, match="layer range"):
        parse_layer_range(text)
