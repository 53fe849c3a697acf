"""The client against a real HTTP server of the test's own, in every way a server can disappoint."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kvpolicy.live import client

BLOCK = {"name": "p", "digest": "0" * 64}
Answers = dict[str, tuple[int, Any]]  # by path: status and body


@contextmanager
def serving(answers: Answers, key: str | None = None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, {"detail": "Not Found"}))
            if key is not None and self.headers.get("Authorization") != f"Bearer {key}":
                status, body = 401, {"error": "Unauthorized"}
            raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: Any) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}"
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


@pytest.mark.parametrize(
    "answers",
    [
        {"/kvpolicy": (200, {"engines": [BLOCK, BLOCK]})},
        {"/server_info": (200, {"internal_states": [{"kvpolicy": BLOCK}, {"kvpolicy": BLOCK}]})},
        {"/get_server_info": (200, {"internal_states": [{"kvpolicy": BLOCK}, {"kvpolicy": BLOCK}]})},
    ],
    ids=["own route", "sglang", "sglang before 0.5.19"],
)
def test_a_block_a_rank(answers: Answers) -> None:
    with serving(answers) as url:
        assert client.fetch_statuses(url) == [BLOCK, BLOCK]
        assert client.fetch_statuses(url.removeprefix("http://") + "/") == [BLOCK, BLOCK]


@pytest.mark.parametrize(
    ("answers", "kind", "words"),
    [
        ({}, client.NotAKvpolicyServer, "neither /kvpolicy nor"),
        ({"/kvpolicy": (200, "<html>")}, client.NotAKvpolicyServer, "answers no JSON"),
        ({"/kvpolicy": (200, [1])}, client.NotAKvpolicyServer, "is it another server"),
        ({"/kvpolicy": (200, {"engines": []})}, client.NoPolicy, "--kv-policy"),
        ({"/server_info": (200, {"internal_states": [{}]})}, client.NoPolicy, "--kv-policy"),
        ({"/server_info": (200, {"version": "1"})}, client.NotAKvpolicyServer, "is it another server"),
        (
            {"/server_info": (200, {"internal_states": [{"kvpolicy": {"error": "Boom: x"}}]})},
            client.NotAKvpolicyServer,
            "Boom: x",
        ),
        ({"/kvpolicy": (503, {"error": "Dead: engine\nline two"})}, client.HttpFailure, "503 .*Dead: engine line two"),
        ({"/kvpolicy": (403, {"error": "no key configured"})}, client.Forbidden, "403: no key configured"),
    ],
)
def test_what_a_server_may_answer_instead(answers: Answers, kind: type[Exception], words: str) -> None:
    with serving(answers) as url, pytest.raises(kind, match=words) as caught:
        client.fetch_statuses(url)
    assert isinstance(caught.value, client.LiveError)
    assert "\n" not in str(caught.value)


def test_a_key() -> None:
    with serving({"/kvpolicy": (200, {"engines": [BLOCK]})}, key="s3cret") as url:
        assert client.fetch_statuses(url, "s3cret") == [BLOCK]
        with pytest.raises(client.Forbidden, match="pass --api-key"):
            client.fetch_statuses(url)
        with pytest.raises(client.Forbidden, match="does not take this key") as caught:
            client.fetch_statuses(url, "wr0ng")
    assert "wr0ng" not in str(caught.value)


def test_nobody_there() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(client.Unreachable, match="nothing listens at"):
            client.fetch_statuses(f"127.0.0.1:{closed.getsockname()[1]}")


def _greet_and_close(peer: socket.socket) -> None:
    peer.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
    peer.close()


@pytest.mark.parametrize(
    ("meet", "words"), [(_greet_and_close, "cannot reach"), (lambda peer: peer.close(), "cannot reach")]
)
def test_no_http_at_all(meet: Callable[[socket.socket], None], words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=lambda: meet(listening.accept()[0]))
        thread.start()
        with pytest.raises(client.Unreachable, match=words):
            client.fetch_statuses(f"127.0.0.1:{listening.getsockname()[1]}")
        thread.join()


def test_no_answer_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, pytest.raises(client.Unreachable, match=r"0\.05 s"):
        client.fetch_statuses(f"127.0.0.1:{listening.getsockname()[1]}", timeout_s=0.05)


@pytest.mark.parametrize("url", ["", "ftp://host", "http://", "http://host:port", "host:99999", "a b", "http://h\n/"])
def test_no_url(url: str) -> None:
    with pytest.raises(client.Unreachable, match="is no URL"):
        client.fetch_statuses(url)


def test_metrics() -> None:
    text = (
        "# HELP a_total some\n# TYPE a_total counter\na_total 3.0\n"
        'b_bucket{le="+Inf",rule="a \\"b\\", \\\\c"} 2e-05\nc NaN 1712345\nnot a sample\n'
    )
    with serving({"/metrics": (200, text)}) as url:
        first, second, third = client.fetch_metrics(url)
    assert first == client.Sample("a_total", {}, 3.0)
    assert second == client.Sample("b_bucket", {"le": "+Inf", "rule": 'a "b", \\c'}, 2e-05)
    assert third.name == "c"
    assert third.value != third.value
    with serving({}) as url, pytest.raises(client.NotAKvpolicyServer, match="--enable-metrics"):
        client.fetch_metrics(url)
