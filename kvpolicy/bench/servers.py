"""Servers that a benchmark starts itself, and what it asks of any: start, empty the cache, capacity, stop."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from kvpolicy.bench.base import BenchError, Target
from kvpolicy.live.client import HttpFailure, LiveError, NotAKvpolicyServer, fetch_metrics, request_json

__all__ = ["Launch", "empty_cache", "kv_tokens", "target_at"]

_POLL_S = 0.25
_STOP_S = 20.0
_IDLE_S = 60.0  # an answer reaches its client a step before its request is gone
#: At the start of a line, or behind what a logger puts there.
_CAUSE = re.compile(r"(?:^|\] )((?:\w+\.)*\w*(?:Error|Exception): .*|kvpolicy: .*cannot be honoured.*)")


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a server of ``engine``; ``policy`` None: without one."""

    engine: str
    model: str
    policy: str | None
    arguments: tuple[str, ...] = ()
    api_key: str | None = None
    start_timeout_s: float = 1800.0

    @contextmanager
    def running(self) -> Iterator[Target]:
        """A healthy server, of which no process is left when the block ends. BenchError where it ends before."""
        port = _free_port()
        environ = {**os.environ, "KVPOLICY_APPLY": "loopback", "VLLM_SERVER_DEV_MODE": "1"}
        if self.policy is None:
            environ["KVPOLICY_DISABLE"] = "1"
        with tempfile.NamedTemporaryFile("wb", prefix="kvpolicy-bench-", suffix=".log", delete=False) as log:
            process = subprocess.Popen(
                self._command(port), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ,
                start_new_session=True,
            )  # fmt: skip
            try:
                url = f"http://127.0.0.1:{port}"
                self._wait(process, url, log.name)
                yield Target(self.engine, url, self.model, self.model, self.api_key, is_ours=True)
            except BenchError as error:
                if log.name in str(error):
                    raise  # the log stays: it says why
                os.unlink(log.name)
                raise
            except BaseException:
                os.unlink(log.name)
                raise
            else:
                os.unlink(log.name)
            finally:
                _stop(process)

    def _command(self, port: int) -> list[str]:
        where = ["--host", "127.0.0.1", "--port", str(port)]
        policy = [] if self.policy is None else ["--kv-policy", self.policy]
        if self.engine == "vllm":
            module = ["vllm.entrypoints.cli.main", "serve", self.model]
        else:
            module = ["sglang.launch_server", "--model-path", self.model, "--enable-metrics"]
        return [sys.executable, "-m", *module, *where, *policy, *self.arguments]

    def _wait(self, process: subprocess.Popen[bytes], url: str, log: str) -> None:
        deadline = time.monotonic() + self.start_timeout_s
        while time.monotonic() < deadline:
            if (code := process.poll()) is not None:
                raise BenchError(
                    f"{self.engine} with {self.policy or 'no policy'} ended with exit code {code} before it was "
                    f"healthy: {_cause(log)} (its log: {log})"
                )
            with suppress(OSError), urllib.request.urlopen(url + "/health", timeout=5) as answer:
                if answer.status == 200:
                    return
            time.sleep(_POLL_S)
        raise BenchError(f"{self.engine} was not healthy after {self.start_timeout_s:g} s (its log: {log})")


def target_at(url: str, model: str | None, api_key: str | None) -> Target:
    """What serves at ``url``: its engine, the name of its model, and where the tokenizer is. LiveError, BenchError."""
    models = request_json(url, "/v1/models", api_key=api_key)
    try:
        first = models["data"][0]
        name, root = str(first["id"]), str(first.get("root") or first["id"])
        engine = str(first.get("owned_by"))
    except (KeyError, IndexError, TypeError):
        raise NotAKvpolicyServer(f"{url}/v1/models names no model; is it an SGLang or a vLLM?") from None
    if engine not in ("sglang", "vllm"):
        raise BenchError(f"{url} is a server of {engine}, neither sglang nor vllm")
    base = url if "://" in url else f"http://{url}"
    return Target(engine, base.rstrip("/"), name, model or root, api_key)


def kv_tokens(target: Target) -> int | None:
    """Tokens in the KV pool; None where the server does not say."""
    with suppress(LiveError, KeyError, TypeError, ValueError):
        if target.engine == "sglang":
            return int(_server_info(target)["max_total_num_tokens"])
        configured = [s for s in fetch_metrics(target.url, target.api_key) if s.name == "vllm:cache_config_info"]
        # One sample an engine; one of its blocks is the null block, which holds no tokens.
        return sum((int(s.labels["num_gpu_blocks"]) - 1) * int(s.labels["block_size"]) for s in configured) or None
    return None


def empty_cache(target: Target) -> None:
    """Drop what is cached, once nothing runs. BenchError where the server will not."""
    path = "/flush_cache" if target.engine == "sglang" else "/reset_prefix_cache"
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    deadline = time.monotonic() + _IDLE_S
    while True:
        try:
            request = urllib.request.Request(target.url + path, b"", headers, method="POST")
            with urllib.request.urlopen(request, timeout=_IDLE_S):
                return
        except OSError as error:
            busy = isinstance(error, urllib.error.HTTPError) and error.code == 400
            if not busy or time.monotonic() > deadline:
                raise BenchError(f"{target.url}{path}: the cache could not be emptied: {error}") from None
        time.sleep(_POLL_S)


def _server_info(target: Target) -> dict[str, Any]:
    try:
        found = request_json(target.url, "/server_info", api_key=target.api_key)
    except HttpFailure as failure:
        if failure.status != 404:
            raise
        found = request_json(target.url, "/get_server_info", api_key=target.api_key)
    return found if isinstance(found, dict) else {}


def _cause(log: str) -> str:
    """The first exception that a log shows: later ones only say that a process has failed; else its last words."""
    with open(log, encoding="utf-8", errors="replace") as file:
        lines: Sequence[str] = [line.rstrip() for line in file if line.strip()]
    found = next(filter(None, map(_CAUSE.search, lines)), None)
    return (found[1] if found else lines[-1] if lines else "it said nothing").strip()[:300]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and all its children, which share its process group, and wait: the next needs their memory."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
    with suppress(ProcessLookupError):
        deadline = time.monotonic() + _STOP_S
        while time.monotonic() < deadline:
            os.killpg(process.pid, signal.SIGKILL)
            process.poll()
            time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
