"""plan, apply and rollback against a server that answers, refuses, or is none."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kvpolicy.cli.main import main
from kvpolicy.language import load_policy
from kvpolicy.live.plan import make_plan

RUNS = load_policy("chat", "vllm").flat


class Stub(BaseHTTPRequestHandler):
    """Runs `chat`; answers each POST with ``answer``, or as a server that applied `rag` does."""

    answer: tuple[int, dict[str, Any]] | None = None
    policy: dict[str, Any] | None = RUNS
    posted: list[tuple[str, dict[str, Any], str | None]]

    def do_GET(self) -> None:
        self._answer(200, {"engine": "vllm", "engines": [{"digest": "d" * 64}], "policy": self.policy})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.posted.append((self.path, body, self.headers.get("Authorization")))
        plan = make_plan(RUNS, load_policy("rag", "vllm").flat).to_json()
        applied = {"applied": "e" * 64, "off": bool(body.get("off")), "engines": 2, "plan": plan}
        self._answer(*(self.answer or (200, applied)))

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def stub() -> Iterator[type[Stub]]:
    yield from serve(type("Handler", (Stub,), {"posted": []}))


def serve(handler: type[Stub]) -> Iterator[type[Stub]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        handler.url = f"http://127.0.0.1:{server.server_address[1]}"  # type: ignore[attr-defined]
        yield handler
        server.shutdown()


def run(stub: Any, *arguments: str) -> int:
    return main([*arguments, "--url", stub.url])


def test_plan_compares_with_what_runs(stub: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(stub, "plan", "rag") == 0
    out = capsys.readouterr().out
    assert out.startswith("policy chat -> rag")
    assert "-/+ cache.page_size" in out
    assert run(stub, "plan", "rag", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["class"] == "restart"
    assert run(stub, "plan", "chat") == 0
    assert "No changes." in capsys.readouterr().out
    assert stub.posted == []


def test_apply_sends_the_merged_policy_never_a_path(
    stub: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVPOLICY_API_KEY", "secret")
    head = "apiVersion: kvpolicy/v1\nkind: KVPolicy\n"
    (child := tmp_path / "child.yaml").write_text(
        head + "extends: builtin:rag\nengines: {vllm: {eviction: {policy: lfu}}}\n"
    )
    assert run(stub, "apply", str(child), "--expect-digest", "dd") == 0
    ((path, body, authorization),) = stub.posted
    assert (path, authorization, body["expect_digest"]) == ("/kvpolicy/apply", "Bearer secret", "dd")
    assert body["policy"] == load_policy(child, "vllm").flat
    assert "extends" not in body["policy"]
    assert body["policy"]["eviction"]["policy"] == "lfu"
    assert capsys.readouterr().out.endswith("Applied on 2 engine(s): digest eeeeeeeeeeeeeeee.\n")


def test_off_and_rollback(stub: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(stub, "apply", "--off") == 0
    assert "Switched off on 2 engine(s)" in capsys.readouterr().out
    assert run(stub, "rollback", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["engines"] == 2
    assert [(path, body.get("off")) for path, body, _ in stub.posted] == [
        ("/kvpolicy/apply", True),
        ("/kvpolicy/rollback", None),
    ]


@pytest.mark.parametrize(
    ("status", "answer", "code", "said"),
    [
        (422, {"error": "a; b", "why": ["a: needs a restart", "b"]}, 1, "  a: needs a restart\n  b\n"),
        (409, {"error": "the server runs another policy"}, 1, "  the server runs another policy\n"),
        (403, {"error": "this server has no key"}, 2, "this server has no key"),
        (404, {"detail": "Not Found"}, 2, "has no /kvpolicy/apply"),
        (200, {"hello": "world"}, 2, "answers something else"),
    ],
)
def test_a_server_that_does_not(
    stub: Any, capsys: pytest.CaptureFixture[str], status: int, answer: dict[str, Any], code: int, said: str
) -> None:
    stub.answer = (status, answer)
    assert run(stub, "apply", "rag") == code
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_a_server_that_hides_its_policy_says_how_to_see_it(stub: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stub.policy = None
    assert run(stub, "plan", "rag") == 2
    assert "--api-key" in capsys.readouterr().err


def test_bad_usage(stub: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(stub, "apply") == 2
    assert run(stub, "apply", "rag", "--off") == 2
    (bad := tmp_path / "bad.yaml").write_text("kind: nothing\n")
    assert run(stub, "apply", str(bad)) == 1
    assert main(["plan", "rag", "--url", "http://127.0.0.1:1"]) == 2
    assert stub.posted == []
    capsys.readouterr()


SHADOWS = {"engines": [{"policies": 2}]}


def test_shadows_are_sent_flattened(stub: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    stub.answer = (200, SHADOWS)
    (child := tmp_path / "child.yaml").write_text(
        "apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {name: child}\nextends: builtin:chat\n"
    )
    assert run(stub, "shadow", "add", str(child), "gdsf", "--api-key", "secret") == 0
    path, body, authorization = stub.posted[-1]
    assert (path, authorization) == ("/kvpolicy/shadows", "Bearer secret")
    first, second = body["add"]
    assert first["eviction"] == load_policy("chat", "vllm").flat["eviction"]
    assert "extends" not in first
    assert second["eviction"]["policy"] == "gdsf"
    assert "2 shadows run on 1 engine(s)" in capsys.readouterr().out
    assert run(stub, "shadow", "clear") == 0
    assert stub.posted[-1][1] == {"clear": True}


def test_a_refused_shadow_says_why(stub: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stub.answer = (422, {"error": "x", "why": ["8 shadows run, and at most 8 may: clear them first"]})
    assert run(stub, "shadow", "add", "rag") == 1
    assert "at most 8 may" in capsys.readouterr().err
    assert run(stub, "shadow", "add", "no_such_policy") == 2


def test_a_recording_is_written(stub: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    engine = {"rank": 0, "dropped_requests": 3, "trace": "{}\n{}\n"}
    stub.answer = (200, {"ran_s": 2.04, "engines": [engine]})
    file = tmp_path / "traffic.jsonl"
    assert run(stub, "record", "-o", str(file), "--for", "2s") == 0
    assert stub.posted[-1][:2] == ("/kvpolicy/record", {"for_s": 2.0})
    assert file.read_text() == "{}\n{}\n"
    assert f"2 requests recorded in 2 s, 3 dropped: {file}" in capsys.readouterr().err
    # Each data-parallel group has a cache of its own, so each has a trace.
    stub.answer = (200, {"ran_s": 300.2, "engines": [engine, {**engine, "rank": 1}]})
    assert run(stub, "record", "-o", str(file), "--for", "2s") == 0
    assert (tmp_path / "traffic.dp1.jsonl").read_text() == "{}\n{}\n"
    assert "recorded in 5 min" in capsys.readouterr().err
    stub.answer = (409, {"error": "another recording is under way"})
    assert run(stub, "record", "-o", str(file)) == 1
    assert "another recording" in capsys.readouterr().err
    assert run(stub, "record", "-o", str(tmp_path / "none" / "x")) == 2


class Interrupting(Stub):
    """Records until it is told to end; interrupts the client that waits, and once more when ``patience`` is over."""

    over: threading.Event
    patience: int

    def do_POST(self) -> None:
        if json.loads(self.rfile.read(int(self.headers["Content-Length"]))).get("end"):
            self.posted.append(("end", {}, None))
            self._answer(200, {"ended": True})
            if len(self.posted) > self.patience:
                self.over.wait(0.5)  # raised while it closes this connection, an interrupt would be lost
                self._interrupt()
            else:
                self.over.set()
            return
        self._interrupt()
        if self.over.wait(60):
            self._answer(200, {"ran_s": 0.5, "engines": [{"rank": 0, "dropped_requests": 0, "trace": "{}\n"}]})

    def _interrupt(self) -> None:
        main_thread = threading.main_thread().ident
        assert main_thread is not None
        signal.pthread_kill(main_thread, signal.SIGINT)


@pytest.fixture
def interrupting() -> Iterator[Any]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    yield from serve(type("Handler", (Interrupting,), {"posted": [], "over": threading.Event(), "patience": 1}))
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_a_recording_and_loses_nothing(
    interrupting: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "traffic.jsonl"
    before = signal.getsignal(signal.SIGINT)
    assert run(interrupting, "record", "-o", str(file), "--for", "1h") == 0
    assert file.read_text() == "{}\n"
    assert f"1 requests recorded in 0.5 s: {file}" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_leaves_without_the_recording(interrupting: Any, tmp_path: Path) -> None:
    interrupting.patience = 0
    assert run(interrupting, "record", "-o", str(tmp_path / "traffic.jsonl"), "--for", "1h") == 130
    assert not list(tmp_path.iterdir())
    interrupting.over.set()
