"""Which figures got worse, and the guard that rolls back because of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kvpolicy.cli import apply as command
from kvpolicy.cli.main import main
from kvpolicy.language import load_policy
from kvpolicy.live.client import Sample
from kvpolicy.live.plan import make_plan
from kvpolicy.live.watch import FIGURES, means, totals, worse


def test_the_command_knows_the_figures() -> None:
    assert tuple(FIGURES) == command.NAMES


def test_totals_add_up_over_labels_and_know_both_engines() -> None:
    samples = [
        Sample("sglang:cached_tokens_total", {"cache_source": "device"}, 30.0),
        Sample("sglang:cached_tokens_total", {"cache_source": "host"}, 10.0),
        Sample("sglang:prompt_tokens_total", {}, 100.0),
        Sample("kvpolicy_evict_seconds_sum", {"dp_rank": "0"}, 1.0),
    ]
    assert totals(samples, FIGURES) == {"hit_rate": (40.0, 100.0)}
    samples = [Sample("vllm:prefix_cache_hits_total", {}, 3.0), Sample("vllm:prefix_cache_queries_total", {}, 9.0)]
    assert totals(samples, ["hit_rate"]) == {"hit_rate": (3.0, 9.0)}
    assert totals(samples[1:], FIGURES) == {"hit_rate": (0.0, 9.0)}  # nothing was found yet


def test_means_are_of_the_window_and_need_enough() -> None:
    assert means({"ttft": (10.0, 100.0)}, {"ttft": (20.0, 200.0)}) == {"ttft": 0.1}
    assert means({"ttft": (10.0, 100.0)}, {"ttft": (20.0, 119.0)}) == {}


@pytest.mark.parametrize(
    ("figure", "before", "after", "is_worse"),
    [
        ("hit_rate", 0.50, 0.39, True),
        ("hit_rate", 0.50, 0.41, False),
        ("hit_rate", 0.50, 0.90, False),
        ("hit_rate", 0.02, 0.011, False),  # within the slack
        ("ttft", 0.100, 0.121, True),
        ("ttft", 0.100, 0.119, False),
        ("ttft", 0.010, 0.014, False),
        ("evict_s", 0.001, 0.002, True),
        ("evict_s", 0.001, 0.0012, False),
    ],
)
def test_worse(figure: str, before: float, after: float, is_worse: bool) -> None:
    found = worse({figure: before}, {figure: after})
    assert bool(found) == is_worse
    if found:
        assert str(found[0]).startswith(f"{figure} (")
    assert worse({figure: before}, {}) == []


class Stub(BaseHTTPRequestHandler):
    """Answers as a server does whose hit rate falls with the policy that is applied."""

    flats: list[dict[str, Any]]
    posted: list[str]
    asked = 0

    def do_GET(self) -> None:
        if self.path == "/metrics":
            type(self).asked += 1
            tokens = 1000 * self.asked
            rate = 0.5 if not self.posted else 0.1
            hits = tokens * 0.5 if not self.posted else 1500 + tokens * rate / 10
            self._answer(f"vllm:prefix_cache_hits_total {hits}\nvllm:prefix_cache_queries_total {tokens}\n".encode())
        else:
            body = {"engine": "vllm", "engines": [{"digest": "d"}], "policy": self.flats[0]}
            self._answer(json.dumps(body).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.posted.append(self.path)
        plan = make_plan(*self.flats).to_json()
        self._answer(json.dumps({"applied": "e" * 64, "off": False, "engines": 1, "plan": plan}).encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def stub() -> Iterator[tuple[str, type[Stub]]]:
    handler = type("Handler", (Stub,), {"flats": [load_policy(p, "vllm").flat for p in ("chat", "rag")], "posted": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", handler
        server.shutdown()


def test_a_figure_that_gets_worse_is_rolled_back_and_named(
    stub: tuple[str, type[Stub]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = stub
    monkeypatch.setattr(command, "POLL_S", 0.01)
    guard = ["--guard", "hit_rate", "--for", "2s", "--baseline", "50ms"]
    assert main(["apply", "rag", "--url", url, *guard]) == 1
    assert handler.posted == ["/kvpolicy/apply", "/kvpolicy/rollback"]
    assert "Got worse: hit_rate (share of prompt tokens found in the cache): 0.5 before" in capsys.readouterr().err


def test_nothing_is_changed_where_nothing_can_be_guarded(
    stub: tuple[str, type[Stub]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, handler = stub
    assert main(["apply", "rag", "--url", url, "--guard", "ttft"]) == 2
    assert handler.posted == []
    with pytest.raises(SystemExit):
        main(["apply", "rag", "--url", url, "--guard", "speed"])
    assert "unknown figure 'speed'" in capsys.readouterr().err
