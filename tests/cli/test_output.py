"""What commands write is whole or not there, and a place that cannot be written is refused before the work."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from kvpolicy.cli.main import main
from kvpolicy.cli.output import open_output

ROW = '{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]}\n'


def test_a_fault_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), open_output(str(path)) as file:
        file.writelines(str(1 / number) for number in (1, 0))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_same_text_is_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, now in (("a.gz", 1.0e9), ("b.gz", 1.1e9)):
        monkeypatch.setattr("time.time", lambda now=now: now)
        with open_output(str(tmp_path / name)) as file:
            file.write("text\n")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == b"text\n"


def test_a_trace_may_be_converted_in_place_and_a_bad_one_stays(tmp_path: Path, capsys) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(ROW * 3)
    assert main(["trace", "convert", str(path), "-o", str(path)]) == 0
    assert len(path.read_text().splitlines()) == 3
    path.write_text(bad := ROW + "{broken\n")
    assert main(["trace", "convert", str(path), "-o", str(path)]) == 1
    assert path.read_text() == bad


COMMANDS = {
    "convert": ["trace", "convert", "T", "-o"],
    "recommend": ["recommend", "T", "--capacity", "4k", "-o"],
    "replay": ["replay", "T", "--capacity", "4k", "--html"],
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize(("place", "why"), [("none/x", "there is no folder"), ("folder", "it is a folder")])
def test_a_place_that_cannot_be_written_is_bad_usage_at_once(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch, arguments: list[str], place: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    monkeypatch.setattr("kvpolicy.replay.trace.Trace.__init__", lambda *_: pytest.fail("the work had begun"))
    assert main([*arguments, place]) == 2
    err = capsys.readouterr().err
    assert f"cannot write '{place}'" in err
    assert why in err


def test_a_misspelt_algorithm_gets_a_guess(tmp_path: Path, capsys) -> None:
    (tmp_path / "t.jsonl").write_text(ROW)
    assert main(["replay", str(tmp_path / "t.jsonl"), "--capacity", "4k", "--policy", "lri"]) == 2
    assert "did you mean 'lru'?" in capsys.readouterr().err
