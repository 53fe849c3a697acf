"""The file layer: hostile and broken files give one clear diagnostic each, quickly and in bounded memory."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from kvpolicy.language import load_policy, load_text
from kvpolicy.language.scalars import resolve_plain
from kvpolicy.language.source import Problem
from tests.work import counted

HEADER = "apiVersion: kvpolicy/v1\nkind: KVPolicy\n"
#: Of one load: twice what the slowest file here takes, which is 0.7 s on a machine of 2026.
MAX_CALLS = 6_000_000
BOMB = "".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9) if i else 'lol'}]\n" for i in range(30))

HOSTILE = {
    "empty": (b"", "KVP102", 1, 1),
    "blank": (b" \n\n", "KVP102", 1, 1),
    "only a document mark": (b"---\n", "KVP102", 1, 1),
    "binary": (b"\x7fELF\x00\x01\x02", "KVP103", 1, 1),
    "control character": (b"a: b\nc: \x07\n", "KVP103", 2, 4),
    "latin-1": (b"a: b\n# caf\xe9\n", "KVP104", 2, 6),
    "utf-16": ("\ufeffa: b".encode("utf-16-le"), "KVP104", 1, 1),
    "10 MB": (b"a: b\n" * 2_000_000, "KVP105", 1, 1),
    "10 MB in one line": (b"a" * 10_000_000, "KVP105", 1, 1),
    "20,000 deep flow lists": (b"a: " + b"[" * 20_000 + b"]" * 20_000, "KVP109", 1, 35),
    "20,000 deep flow mappings": (b"{a: " * 20_000 + b"}" * 20_000, "KVP109", 1, 126),
    "20,000 deep and unclosed": (b"[" * 20_000, "KVP109", 1, 33),
    "deep block lists": (b"- " * 20_000, "KVP109", 1, 65),
    "alias bomb": (BOMB.encode(), "KVP110", None, None),
    "many values": (b"a: [" + b"1," * 50_000 + b"]", "KVP110", 1, None),
    "alias in a circle": (b"a: &a [*a]\n", "KVP111", 1, 4),
    "alias in its own mapping": (b"a: &a {b: {c: *a}}\n", "KVP111", 1, 4),
    "undefined alias": (b"a: *nobody\n", "KVP106", 1, 4),
    "python tag": (b"a: !!python/object/apply:os.system ['true']\n", "KVP112", 1, 4),
    "custom tag": (b"a: !vault x\n", "KVP112", 1, 4),
    "non-specific tag": (b"a: ! x\n", "KVP112", 1, 4),
    "tab indentation": (b"a:\n\tb: c\n", "KVP107", 2, 1),
    "tab after spaces": (b"a:\n  b:\n  \tc: d\n", "KVP107", 3, 3),
    "two documents": (b"a: b\n---\na: c\n", "KVP108", 2, 1),
    "unclosed": (b"a: {b: c\n", "KVP106", 2, 1),
    "colon in a value": (b"a: b: c\n", "KVP106", 1, 5),
    "a list": (b"- a\n", "KVP123", 1, 1),
    "a word": (b"hello\n", "KVP123", 1, 1),
    "not YAML at all": (b"%!PS-Adobe-3.0\n", "KVP106", None, None),
}


@pytest.mark.parametrize(("raw", "code", "line", "col"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_one_diagnostic_quickly(raw, code, line, col) -> None:
    result, calls = counted(lambda: load_text(raw, "p.yaml"))
    assert result.policy is None
    (diagnostic,) = result.diagnostics
    assert (diagnostic.code, diagnostic.severity) == (code, "error")
    assert line is None or diagnostic.line == line
    assert col is None or diagnostic.col == col
    assert diagnostic.message
    assert "Error" not in diagnostic.message
    assert len(diagnostic.message) < 300
    assert calls <= MAX_CALLS


def test_a_large_file_is_not_read_whole(tmp_path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(4 << 30)  # sparse: reading it whole would need 4 GiB
    limit = 1 << 30
    code = (
        "import resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))\n"
        "from kvpolicy.language import load_policy\n"
        "print(load_policy(sys.argv[1]).diagnostics[0].code)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.strip() == "KVP105"


def test_an_alias_bomb_takes_little_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert load_text(BOMB.encode(), "p.yaml").policy is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB


def test_the_largest_admissible_file_is_quick(load) -> None:
    line = "# every comment is read too\n"
    text = line * ((120 * 1024) // len(line)) + "eviction: {policy: lru}\n"
    result, calls = counted(lambda: load(text))
    assert result.policy is not None
    assert calls <= MAX_CALLS


def _many(item: str, count: int) -> str:
    return "".join(item.format(i=i) for i in range(count))


#: Well-formed files near the bounds, each aimed at another loop of the checks.
WORST = {
    "rules": "eviction:\n  rules:\n" + _many("    - {{name: r{i}, match: hits > {i}, priority: 1}}\n", 700),
    "long expressions": "eviction:\n  rules:\n"
    + _many("    - {{name: r{i}, match: " + " and ".join(["hits > 1"] * 100) + ", priority: 1}}\n", 64),
    "unknown keys": _many("key{i}: 1\n", 2400),
    "unknown words": "cache: {kv_dtype: {prefer: bf16, accept: [" + _many("x{i}, ", 4900) + "]}}\n",
    "tenants": "eviction: {tenants: {named: {" + _many("t{i}: {{floor: 5}}, ", 1200) + "}}}\n",
    "layers": "cache: {kv_dtype: {default: bf16, layers: {" + _many("'{i}': fp8, ", 2400) + "}}}\n",
    "layers of many ranges": "cache: {kv_dtype: {default: bf16, layers: {"
    + _many("'" + "".join(f"{j}," for j in range(60)) + "{i}': bf16, ", 500)
    + "}}}\n",
    "an engine's rules": "engines: {sglang: {eviction: {rules: [" + _many("{{name: r{i}, match: x}}, ", 900) + "]}}}\n",
    "a long line": "metadata: {description: '" + "x" * 120_000 + "'}\n",
}


@pytest.mark.parametrize("body", WORST.values(), ids=WORST)
def test_no_admissible_file_is_slow(load, body) -> None:
    result, calls = counted(lambda: load(body))
    assert calls <= MAX_CALLS
    assert len(result.diagnostics) <= 201


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("y", "y"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2026-01-01", "2026-01-01"),
        ("=", "="),
        ("true", True),
        ("FALSE", False),
        ("True", True),
        ("tRUE", "tRUE"),
        ("null", None),
        ("~", None),
        ("", None),
        ("0", 0),
        ("-0", 0),
        ("16", 16),
        ("+16", 16),
        ("-16", -16),
        ("0o777", 511),
        ("0x1F", 31),
        ("0b11", "0b11"),
        ("1.5", 1.5),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("-1.5E-3", -0.0015),
        (".inf", float("inf")),
        ("-.INF", float("-inf")),
        ("9223372036854775807", 2**63 - 1),
        ("inf", "inf"),
        ("nan", "nan"),
    ],
)
def test_plain_scalars_follow_the_core_schema(text, value) -> None:
    resolved = resolve_plain(text)
    assert resolved == value
    assert type(resolved) is type(value)


def test_nan_is_a_number() -> None:
    assert resolve_plain(".nan") != resolve_plain(".nan")


@pytest.mark.parametrize(
    ("text", "help"),
    [
        ("0777", "write 777 or 0o777"),
        ("-0777", "write -777"),
        ("089", "write 89,"),
        ("00", "write 0,"),
    ],
)
def test_leading_zeros_are_refused_with_what_to_write(text, help) -> None:
    with pytest.raises(Problem) as caught:
        resolve_plain(text)
    assert caught.value.code == "KVP115"
    assert help in (caught.value.help or "")


@pytest.mark.parametrize("text", ["9223372036854775808", "9" * 100_000, "0x" + "F" * 50_000, "0o" + "7" * 90_000])
def test_integers_beyond_64_bits_are_refused(text) -> None:
    with pytest.raises(Problem) as caught:
        resolve_plain(text)
    assert caught.value.code == "KVP116"
    assert len(caught.value.message) < 200


def test_quoted_scalars_are_never_numbers(load, found) -> None:
    assert found('cache: {page_size: "16"}\n') == [(1, 20, "KVP203")]
    assert found("cache: {page_size: '16'}\n") == [(1, 20, "KVP203")]
    assert found("cache:\n  page_size: |\n    16\n") == [(2, 14, "KVP203")]
    assert load('metadata: {name: "0777"}\n').policy.metadata.name == "0777"


def test_problems_that_do_not_stop_the_reading_come_together(found) -> None:
    body = "cache:\n  page_size: 016\n  page_size: 32\nhints: {max_priority: 1, <<: {a: b}}\ncache: {}\n"
    assert found(body) == [
        (2, 14, "KVP115"),
        (2, 14, "KVP203"),
        (3, 3, "KVP113"),
        (4, 26, "KVP117"),
        (5, 1, "KVP113"),
    ]


def test_anchors_are_expanded(load) -> None:
    policy = load("eviction:\n  tenants: {floor: &f 5%, cap: 40%, named: {gold: {floor: *f}}}\n").policy
    assert policy.eviction.tenants.named["gold"].floor == 0.05


def test_windows_line_ends_and_a_byte_order_mark(load) -> None:
    raw = b"\xef\xbb\xbf" + HEADER.replace("\n", "\r\n").encode() + b"eviction:\r\n  policy: lri\r\n"
    (d,) = load(raw).diagnostics
    assert (d.line, d.col, d.code) == (4, 11, "KVP302")


@pytest.mark.parametrize(
    "argument", ["no/such.yaml", "nosuchpolicy", "builtin:nosuch", "bad\0name.yaml", "", "x" * 5000]
)
def test_an_argument_that_is_not_there(argument) -> None:
    result = load_policy(argument)
    (d,) = result.diagnostics
    assert (d.code, d.line, d.col) == ("KVP101", 1, 1)
    assert result.unopenable


def test_a_folder_and_a_forbidden_file(tmp_path) -> None:
    (directory,) = load_policy(tmp_path).diagnostics
    assert directory.code == "KVP101"
    assert "directory" in directory.message
    near = tmp_path / "policy.yaml"
    near.write_text(HEADER)
    (missing,) = load_policy(tmp_path / "polcy.yaml").diagnostics
    assert missing.help == "did you mean 'policy.yaml'?"


def test_a_name_without_a_path_is_a_shipped_policy() -> None:
    result = load_policy("long_context")
    assert result.policy is not None
    assert result.file == "builtin:long_context"
    assert load_policy("long-context").digest == result.digest == load_policy("builtin:long_context").digest
    (d,) = load_policy("long_contxt").diagnostics
    assert d.help == "did you mean 'long_context'?"


def test_a_file_wins_over_a_shipped_policy_of_that_name(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat").write_text(HEADER + "metadata: {name: mine}\n")
    assert load_policy("chat").policy.metadata.name == "mine"


def test_a_folder_of_that_name_does_not(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat").mkdir()
    assert load_policy("chat").policy is not None


@pytest.mark.parametrize("argument", ["", " "])
def test_an_empty_argument_is_no_folder(argument) -> None:
    (found,) = load_policy(argument).diagnostics
    assert (found.code, found.message) == ("KVP101", "the argument is empty")


def test_an_unknown_engine_is_the_callers_error() -> None:
    with pytest.raises(ValueError, match="unknown engine"):
        load_policy("chat", engine="tgi")
