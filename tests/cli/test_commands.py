"""show, list and init."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvpolicy.cli.main import main
from kvpolicy.language import load_policy, load_text
from kvpolicy.language.dump import dump
from kvpolicy.language.schema import json_schema
from kvpolicy.language.shipped_policies import shipped
from kvpolicy.language.source import Source
from kvpolicy.language.tree import parse, to_plain

HEADER = "apiVersion: kvpolicy/v1\nkind: KVPolicy\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text(HEADER + "cache:\n  page_size: 16\n  kv_dtype: bf16\ntests: []\n")
    (tmp_path / "child.yaml").write_text(
        HEADER + "extends: base.yaml\ncache: {page_size: 32}\nengines: {sglang: {eviction: {policy: lru}}}\n"
    )
    return tmp_path


def test_show_prints_the_effective_policy_as_yaml_that_reads_back(folder, capsys) -> None:
    assert main(["show", "child.yaml"]) == 0
    out = capsys.readouterr().out
    digest, _, text = out.partition("\n")
    again = load_text(text.encode())
    assert again.flat == load_policy("child.yaml").flat
    assert digest == f"# digest sha256:{again.digest}"
    assert "tests" not in text
    assert "extends" not in text


def test_show_for_an_engine_merges_its_section(folder, capsys) -> None:
    assert main(["show", "child.yaml", "--engine", "sglang", "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["policy"]["eviction"] == {"policy": "lru"}
    assert "engines" not in shown["policy"]
    assert shown["digest"] == load_policy("child.yaml", "sglang").digest


def test_show_names_origins(folder, capsys) -> None:
    assert main(["show", "child.yaml", "--origin"]) == 0
    lines = {line.split(":")[0].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert lines["page_size"].endswith("# child.yaml:4")
    assert lines["kv_dtype"].endswith("# base.yaml:5")
    assert lines["name"].endswith("# the file's name")
    main(["show", "child.yaml", "--origin", "--format", "json"])
    assert json.loads(capsys.readouterr().out)["origin"]["cache.kv_dtype"] == "base.yaml:5"


@pytest.mark.parametrize(("text", "code"), [(HEADER + "cache: 5\n", 1), (None, 2)])
def test_show_of_a_bad_policy_says_why_on_stderr(folder, capsys, text, code) -> None:
    if text is not None:
        (folder / "bad.yaml").write_text(text)
    assert main(["show", "bad.yaml"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "bad.yaml:" in captured.err


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_policy_shows_and_reads_back(name, capsys) -> None:
    assert main(["show", name]) == 0
    assert load_text(capsys.readouterr().out.encode()).digest == load_policy(name).digest


def test_list_names_the_shipped_policies(capsys) -> None:
    assert main(["list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == list(shipped())
    main(["list", "--format", "json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == names
    assert all(row["description"] and Path(row["file"]).is_file() for row in rows)


def test_init_writes_a_policy_that_passes_strictly(folder, capsys) -> None:
    assert main(["init", "mine.yaml"]) == 0
    text = (folder / "mine.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=./kvpolicy.schema.json\n")
    assert main(["check", "--strict", "mine.yaml", "--engine", "sglang"]) == 0
    assert load_policy("mine.yaml").policy.metadata.name == "mine"


def test_what_the_scaffold_comments_out_works_too(folder) -> None:
    main(["init", "mine.yaml"])
    text = (folder / "mine.yaml").read_text()
    for commented, replaced in {
        "# extends:": "",
        "# backend:\n#   attention:": "",
        "  # score:": "  policy: lru  ",
        "  # tenants:": "",
    }.items():
        live = text.replace(commented, commented.replace("# ", "").replace("#  ", " "), 1)
        if replaced:
            live = "\n".join(line for line in live.split("\n") if not line.startswith(replaced))
        assert live != text
        errors = [d for d in load_text(live.encode()).diagnostics if d.severity == "error"]
        assert errors == [], commented


def test_init_never_overwrites(folder, capsys) -> None:
    (folder / "mine.yaml").write_text("precious")
    assert main(["init", "mine.yaml"]) == 1
    assert (folder / "mine.yaml").read_text() == "precious"
    assert "exists" in capsys.readouterr().err
    assert main(["init", "no/such/folder/mine.yaml"]) == 2
    assert main(["init", "a.yaml", "--name", "not a name"]) == 2
    assert not (folder / "a.yaml").exists()


def test_the_modeline_names_a_schema_that_is_there(folder) -> None:
    main(["init", "mine.yaml"])
    modeline = (folder / "mine.yaml").read_text().splitlines()[0]
    assert json.loads((folder / modeline.partition("$schema=./")[2]).read_text()) == json_schema()
    (folder / "kvpolicy.schema.json").write_text("mine")
    assert main(["init", "other.yaml"]) == 0
    assert (folder / "kvpolicy.schema.json").read_text() == "mine"


@pytest.mark.parametrize("name", ["chat", "long-context"])
def test_init_hides_no_shipped_policy(folder, capsys, name: str) -> None:
    assert main(["init", name]) == 2
    assert f"write {name}.yaml, or start from it with `extends: builtin:" in capsys.readouterr().err
    assert not (folder / name).exists()


def test_init_makes_a_name_out_of_any_file_name(folder) -> None:
    assert main(["init", "my policy (1).yaml"]) == 0
    assert load_policy("my policy (1).yaml").policy.metadata.name == "my-policy-1"


def test_init_to_stdout(capsys) -> None:
    assert main(["init", "-"]) == 0
    assert load_text(capsys.readouterr().out.encode()).policy is not None


values = st.recursive(
    st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.text(max_size=8), values, min_size=1, max_size=5))
def test_dump_reads_back_to_the_same_data(data) -> None:
    text = dump(data)
    assert to_plain(parse(Source("p", text))[0], keep_nulls=True) == data


def test_dump_quotes_what_would_read_as_something_else() -> None:
    text = dump({"a": "null", "b": "5", "c": "off", "d": "x: y", "e": "# x", "f": "- x", "g": "", "h": "0777"})
    assert text == 'a: "null"\nb: "5"\nc: off\nd: "x: y"\ne: "# x"\nf: "- x"\ng: ""\nh: "0777"\n'


@pytest.mark.parametrize("module", ["kvpolicy", "kvpolicy.cli", "kvpolicy.cli.main"])
def test_the_package_runs_as_a_module(module) -> None:
    done = subprocess.run([sys.executable, "-m", module, "list"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "\nagentic " in done.stdout
