"""The environment that all engine tests stand on: build steps, stand-ins, and a stock server that really caches."""

from __future__ import annotations

import ensurepip
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SGLANG_VERSIONS, StartServer
from tools.environment import Environment
from tools.server import ServerExited


def test_a_step_runs_once_per_pins(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    ran: list[Path] = []
    for pins in (["a==1"], ["a==1"], ["a==2"], ["a==2"], ["a==1"]):
        environment._step("part", pins, "a part", ran.append)
    assert ran == [tmp_path / "part"] * 3


def test_a_step_that_fails_is_run_again(tmp_path: Path) -> None:
    environment = Environment(tmp_path)

    def fail(_home: Path) -> None:
        raise RuntimeError("no space left")

    with pytest.raises(RuntimeError):
        environment._step("part", ["a==1"], "a part", fail)
    ran: list[Path] = []
    environment._step("part", ["a==1"], "a part", ran.append)
    assert ran


def test_two_builds_do_not_run_at_once(tmp_path: Path) -> None:
    """A second process that wants the same root waits for the first, and says so."""
    script = (
        "import sys; from pathlib import Path; from tools.environment import Environment\n"
        "with Environment(Path(sys.argv[1]))._locked(): print('entered', flush=True)"
    )
    with Environment(tmp_path)._locked():
        other = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert other.stdout is not None
        assert "waiting for another run" in other.stdout.readline()
    said, _ = other.communicate(timeout=30)
    assert said == "entered\n"


def test_a_venv_gets_pip_where_ensurepip_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This base interpreter refuses `-m venv`, as Debian's does without python3-venv, unless --without-pip is given."""
    base = tmp_path / "python"
    base.write_text(
        f'#!/bin/sh\ncase "$*" in *--without-pip*|*"-m pip"*) exec {sys.executable} "$@";; esac\n'
        "echo ensurepip is not available; exit 1\n"
    )
    base.chmod(0o755)
    bundled = Path(ensurepip.__file__).parent / "_bundled"
    if bundled.is_dir():  # a distribution that leaves ensurepip out leaves out its wheels too: then the index has pip
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(bundled))
    Environment(tmp_path)._make_venv(str(base), tmp_path / "v")
    pip = subprocess.run([tmp_path / "v/bin/python", "-m", "pip", "--version"], capture_output=True, text=True)
    assert str(tmp_path / "v/lib") in pip.stdout


@pytest.mark.engine
def test_stand_in_operator_agrees_with_its_definition(sglang_env) -> None:
    script = """
import torch, sgl_kernel
torch.manual_seed(0)
table = torch.zeros((5, 40), dtype=torch.int32)
rows, starts, ends = torch.tensor([3, 0, 4]), torch.tensor([0, 7, 39]), torch.tensor([6, 7, 40])
slots = torch.randperm(1000)[:7]
sgl_kernel.assign_req_to_token_pool_cpu(rows, table, starts, ends, slots, 40)
expected = torch.zeros_like(table)
at = 0
for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist()):
    for column in range(start, end):
        expected[row, column] = slots[at]
        at += 1
assert at == 7 and torch.equal(table, expected)
try:
    sgl_kernel.decode_attention_cpu()
except NotImplementedError as error:
    print(error)
"""
    engine = sglang_env(SGLANG_VERSIONS[0])
    done = subprocess.run([engine.python, "-c", script], env=engine.env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "sgl_kernel.decode_attention_cpu needs a GPU build" in done.stdout


@pytest.mark.engine
@pytest.mark.parametrize("version", SGLANG_VERSIONS)
def test_each_version_imports_as_itself(sglang_env, version: str) -> None:
    engine = sglang_env(version)
    script = (
        "import importlib.metadata as m, sglang.srt.mem_cache.base_prefix_cache as b\n"
        "print(m.version('sglang'), b.__file__)"
    )
    done = subprocess.run([engine.python, "-c", script], env=engine.env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == version
    assert f"/sglang-{version}/" in done.stdout


@pytest.mark.server
def test_a_stock_server_caches_a_repeated_prompt(server: StartServer) -> None:
    prompt = list(range(3, 203))
    with server("0.5.20", "--page-size", "16", "--enable-metrics") as running:
        first, second = running.generate(prompt), running.generate(prompt)
        assert first["output_ids"] == second["output_ids"]
        assert (first["meta_info"]["cached_tokens"], second["meta_info"]["cached_tokens"]) == (0, 192)
        assert running.server_info()["page_size"] == 16
        assert running.metrics()
        group = running.process.pid
    assert running.process.poll() is not None
    left = subprocess.run(["pgrep", "-g", str(group)], capture_output=True, text=True)
    assert left.stdout == ""


@pytest.mark.server
def test_a_server_that_cannot_start_is_reported_with_its_log(server: StartServer) -> None:
    with pytest.raises(ServerExited, match="unrecognized arguments: --no-such"), server("0.5.20", "--no-such-flag"):
        pass
