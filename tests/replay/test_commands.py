"""`kvpolicy replay` and `kvpolicy trace` from the outside: tables, JSON, HTML, exit codes, determinism."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from kvpolicy.cli.main import main

from .conftest import CONVERSATION, SYNTHETIC
from .test_readers import AGENTIC, LOG, MOONCAKE

FEW = ["--limit", "400", "--capacity", "200k,1M"]


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(CONVERSATION), "--policy", "lru", "--policy", "long_context", *FEW]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith(f"{CONVERSATION}: 400 requests")
    assert lines[3].split()[:3] == ["capacity", "policy", "hit"]
    names = [line.replace("*", " ").split()[1] for line in lines[4:]]
    assert names == [
        "lru",
        "long_context",
        "clairvoyant",
        "optimum",
        "lru",
        "long_context",
        "clairvoyant",
        "optimum",
        "infinite",
    ]
    assert "\x1b" not in out


def test_json_is_the_same_every_time_but_for_times(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["replay", str(CONVERSATION), "--policy", "gdsf", "--format", "json", *FEW]

    def once() -> object:
        assert main(arguments) == 0
        (report,) = json.loads(capsys.readouterr().out)
        for row in report["rows"]:
            del row["evict_us_per_victim"]
        return report

    first = once()
    assert first == once()
    row = first["rows"][0]  # type: ignore[index]
    assert row["policy"] == "gdsf"
    assert 0 < row["hit_rate"] < 1
    assert row["evicted_before_reuse_tokens"] > 0
    assert row["evicted_tokens_by_rule"] == {"": row["evicted_tokens"]}


def test_no_bounds_leaves_them_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(CONVERSATION), "--no-bounds", "--format", "json", *FEW]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert {row["policy"] for row in report["rows"]} == {"lru"}


def test_a_model_adds_its_flops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from .test_cost import LLAMA

    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert main(["replay", str(CONVERSATION), "--model", str(tmp_path), *FEW]) == 0
    assert "FLOPs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing.jsonl", "--capacity", "1M"], 2, "cannot open 'missing.jsonl'"),
        ([str(CONVERSATION), "--capacity", "1M", "--policy", "lur"], 2, "no shipped policy 'lur'"),
        ([str(CONVERSATION), "--capacity", "1M", "--page-size", "100"], 2, "must be a multiple"),
        ([str(CONVERSATION), "--capacity", "1M", "--model", "nowhere"], 2, "nowhere"),
        ([str(CONVERSATION), "--capacity", "1M", "--html", "/no/such/dir/x.html", "--limit", "9"], 2, "cannot write"),
    ],
)
def test_bad_usage(arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", *arguments]) == code
    assert message in capsys.readouterr().err


def test_a_bad_policy_and_a_bad_row_are_errors_with_their_place(trace_file, tmp_path: Path, capsys) -> None:
    policy = tmp_path / "bad.yaml"
    policy.write_text("apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {name: x}\neviction: {policy: lur}\n")
    assert main(["replay", str(CONVERSATION), "--capacity", "1M", "--policy", str(policy)]) == 1
    assert f"{policy}:4:" in capsys.readouterr().err
    path = trace_file(MOONCAKE, {**MOONCAKE, "hash_ids": None})
    assert main(["replay", path, "--capacity", "1M"]) == 1
    assert capsys.readouterr().err.startswith(f"{path}:2: error: ")
    assert main(["replay", path, "--capacity", "1M", "--skip-bad-rows"]) == 0
    assert "1 bad rows skipped" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["0", "x", "-1", "1T", ""])
def test_capacities_that_are_none(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["replay", str(CONVERSATION), "--capacity", text])
    assert stopped.value.code == 2


def test_trace_info(trace_file, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "info", trace_file(AGENTIC)]) == 0
    out = capsys.readouterr().out
    assert "agentic, blocks of 64 tokens" in out
    assert "1 sessions, exponential starts of mean 30 s, seed 7" in out
    assert main(["trace", "info", str(CONVERSATION), "--limit", "50", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["requests"], found["block_tokens"]) == (50, 512)


def test_a_converted_trace_replays_the_same(trace_file, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sessions = trace_file(*[AGENTIC] * 5)
    out = tmp_path / "plain.jsonl.gz"
    assert main(["trace", "convert", sessions, "-o", str(out)]) == 0
    capsys.readouterr()

    def rows(path: str) -> object:
        assert main(["replay", path, "--capacity", "512", "--format", "json", "--policy", "lfu"]) == 0
        (report,) = json.loads(capsys.readouterr().out)
        return [(row["policy"], row["hit_tokens"], row["evicted_tokens"]) for row in report["rows"]], report["digest"]

    assert rows(sessions) == rows(str(out))


def test_a_log_converts_to_hashes_without_tokens(trace_file, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "convert", trace_file(*LOG), "--to", "2"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["hash_ids"] for row in rows] == [[0], [0]]
    assert rows[0] == {"timestamp": 0, "input_length": 3, "output_length": 3, "hash_ids": [0], "block_size": 2}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    arguments = ["--policy", "lru", "--policy", "gdsf", *FEW, "--html", str(path)]
    assert main(["replay", str(CONVERSATION), str(SYNTHETIC), *arguments]) == 0
    return path


def test_the_page_loads_nothing(report: Path) -> None:
    page = report.read_text()
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "url(" not in page
    assert page.count("<svg") == 2 * 3
    assert page.count("</td>") == page.count("<td")


def test_names_are_escaped(trace_file, tmp_path: Path) -> None:
    path = trace_file(MOONCAKE, name="<b>&.jsonl")
    page = tmp_path / "page.html"
    assert main(["replay", path, "--capacity", "1M", "--html", str(page)]) == 0
    assert "<b>" not in page.read_text()


@pytest.mark.skipif(not (shutil.which("chromium") or shutil.which("google-chrome")), reason="no headless browser here")
def test_the_page_in_a_real_browser(report: Path, tmp_path: Path) -> None:
    """Chromium lays the page out, reports no error, and draws every plot with a size."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    probe = tmp_path / "probe.html"
    script = (
        "<script>addEventListener('load', () => { const r = []; document.querySelectorAll('svg').forEach(s => {"
        " const b = s.getBoundingClientRect(), p = s.querySelectorAll('polyline'); r.push([b.width, b.height, p.length,"
        " Math.max(...[...p].map(l => l.getTotalLength()))]); }); document.title = JSON.stringify({plots: r,"
        " rows: document.querySelectorAll('tr').length, wide: document.documentElement.scrollWidth}); });</script>"
    )
    probe.write_text(report.read_text().replace("</body>", script + "</body>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,900", f"--user-data-dir={tmp_path}/u"]
    command = [str(browser), *flags, "--dump-dom", "--virtual-time-budget=3000", probe.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(done.stdout.split("<title>")[1].split("</title>")[0].replace("&quot;", '"'))
    assert len(found["plots"]) == 6
    for width, height, lines, longest in found["plots"]:
        assert width > 300
        assert height > 150
        assert lines >= 2
        assert longest > 100
    assert found["wide"] <= 1200, "the page does not scroll sideways"
