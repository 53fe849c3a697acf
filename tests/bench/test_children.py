"""What is started is ended, and what fails says why: over a module called `sglang` that misbehaves as told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvpolicy.bench.base import BenchError, Failed, Target, Traffic
from kvpolicy.bench.clients import measure
from kvpolicy.bench.servers import Launch

SERVER = """
import http.server, os, pathlib, subprocess, sys, time
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", stubborn])
pathlib.Path(os.environ["CHILD"]).write_text(str(child.pid))
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Health).serve_forever()
"""
GOOD = '{"completed": 4, "duration": 1, "output_throughput": 9, "mean_ttft_ms": 1, "p99_ttft_ms": 1, "mean_tpot_ms": 1}'
WRITES = "import sys, pathlib; pathlib.Path(sys.argv[sys.argv.index('--output-file') + 1]).write_text('''%s''')"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the module; `CHILD` names the file in which its server notes its own child's pid."""
    package = tmp_path / "sglang"
    (package / "benchmark").mkdir(parents=True)
    for folder in (package, package / "benchmark"):
        (folder / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("CHILD", str(tmp_path / "child"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return package


def is_alive(pid: int) -> bool:
    """A zombie that nobody has reaped yet holds nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_no_process_of_a_server_is_left(engine: Path, tmp_path: Path, ends: str) -> None:
    (engine / "launch_server.py").write_text(SERVER)
    try:
        with Launch("sglang", "m", None).running() as target:
            child = int((tmp_path / "child").read_text())
            assert is_alive(child)
            assert target.is_ours
            if ends == "badly":
                raise RuntimeError
    except RuntimeError:
        assert ends == "badly"
    assert not is_alive(child), "it ignores SIGTERM"
    assert not list(tmp_path.glob("kvpolicy-bench-*"))


def test_sigterm_ends_the_server_too(engine: Path, tmp_path: Path) -> None:
    (engine / "launch_server.py").write_text(SERVER)
    (engine / "benchmark/serving.py").write_text("import time; time.sleep(600)")
    words = ["bench", "--engine", "sglang", "--policy", "off", "--policy", "off", "m"]
    root = str(Path(__file__).parents[2])
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{root}"}
    process = subprocess.Popen([sys.executable, "-m", "kvpolicy.cli.main", *words], env=environ)
    while not ((file := tmp_path / "child").exists() and file.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert not is_alive(int(file.read_text()))


def test_a_server_that_ends_first_says_why(engine: Path, tmp_path: Path) -> None:
    (engine / "launch_server.py").write_text("raise MemoryError('no room for the model')")
    with (
        pytest.raises(BenchError, match="ended with exit code 1 before it was healthy: MemoryError: no room") as caught,
        Launch("sglang", "m", "lru.yaml").running(),
    ):
        pass
    (log,) = tmp_path.glob("kvpolicy-bench-*.log")
    assert str(log) in str(caught.value)


def test_a_server_that_never_answers(engine: Path, tmp_path: Path) -> None:
    (engine / "launch_server.py").write_text("import time; time.sleep(600)")
    with (
        pytest.raises(BenchError, match=r"not healthy after 0\.5 s"),
        Launch("sglang", "m", None, start_timeout_s=0.5).running(),
    ):
        pass


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        ("raise ModuleNotFoundError('no datasets')", BenchError, "exit code 1: ModuleNotFoundError: no datasets"),
        ("pass", BenchError, "wrote no result"),
        (WRITES % "{", BenchError, "wrote no result"),
        (WRITES % '{"completed": 4}', BenchError, "a result without 'duration'"),
        (WRITES % GOOD.replace("4", "3"), Failed, "1 of 4 requests failed"),
        (WRITES % GOOD.replace("4", "0"), Failed, "4 of 4 requests failed"),
        (WRITES % GOOD.replace("4", '4, "failed": 2'), Failed, "2 of 6 requests failed"),
        ("import time; time.sleep(600)", BenchError, r"did not end in 1 s"),
    ],
)
def test_a_benchmark_that_fails(engine: Path, script: str, error: type[BenchError], words: str) -> None:
    (engine / "benchmark/serving.py").write_text(script)
    timeout_s = 1.0 if "600" in script else 60.0
    with pytest.raises(error, match=words):
        measure(Target("sglang", "http://127.0.0.1:9", "m", "m"), Traffic(requests=4), 1, timeout_s=timeout_s)


def test_a_good_window(engine: Path) -> None:
    (engine / "benchmark/serving.py").write_text(WRITES % GOOD)
    window = measure(Target("sglang", "http://127.0.0.1:9", "m", "m"), Traffic(requests=4), 1)
    assert (window.requests, window.output_tokens_per_s, window.hit_rate) == (4, 9.0, None)
