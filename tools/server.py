"""Starts a real SGLang or vLLM server on the CPU, talks to it, stops all of its processes. Standard library only."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.environment import EngineEnv
from tools.preloaded import Process, start

START_TIMEOUT_S = 420.0  # 14-36 s alone; many times that where other work holds all cores
STOP_TIMEOUT_S = 20.0
VLLM_MODULE = "vllm.entrypoints.cli.main"  # what the command `vllm` runs
VLLM_BLOCK_TOKENS = 32  # the smallest that its CPU backend reads
POOL_TOKENS = 4096  # left to itself SGLang takes more than half of the machine's memory


class ServerExited(RuntimeError):
    """The server ended before it was healthy. `returncode` as of `subprocess`; `log` is all it printed."""

    def __init__(self, returncode: int, log: str) -> None:
        super().__init__(f"the server ended with exit code {returncode} before it was healthy:\n{log[-6000:]}")
        self.returncode = returncode
        self.log = log


@dataclass
class Server:
    """A server that answered healthy."""

    port: int
    process: subprocess.Popen[bytes] | Process
    log_path: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def generate(self, prompt: str | Sequence[int], max_new_tokens: int = 8, **request: Any) -> dict[str, Any]:
        """Greedy generation from a text or from token ids: `text`, `output_ids` and `meta_info` (cached_tokens, ...).

        `request` goes into the body of the native `/generate` (priority=..., extra_key=..., sampling_params merged).
        """
        sampling = {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": True}
        sampling.update(request.pop("sampling_params", {}))
        body = {"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}
        answer = self._request("/generate", {**body, "sampling_params": sampling, **request})
        assert isinstance(answer, dict)
        return answer

    def chat(self, messages: Sequence[Mapping[str, str]], max_tokens: int = 16, **request: Any) -> dict[str, Any]:
        """One turn on the OpenAI route; start with `--enable-cache-report` to see cached tokens in `usage`."""
        body = {"model": "default", "messages": list(messages), "temperature": 0, "max_tokens": max_tokens, **request}
        answer = self._request("/v1/chat/completions", body)
        assert isinstance(answer, dict)
        return answer

    def server_info(self) -> dict[str, Any]:
        """`/server_info` (0.5.18: `/get_server_info`)."""
        try:
            info = self._request("/server_info")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            info = self._request("/get_server_info")
        assert isinstance(info, dict)
        return info

    def internal_state(self) -> dict[str, Any]:
        """The first scheduler's own part of `/server_info`, where a policy's status is."""
        state = self.server_info()["internal_states"][0]
        assert isinstance(state, dict)
        return state

    def status(self) -> dict[str, Any]:
        """The live `kvpolicy` block of the first scheduler."""
        block = self.internal_state()["kvpolicy"]
        assert isinstance(block, dict)
        return block

    def metrics(self) -> dict[str, float]:
        """`/metrics` as {'name{label="value"}': number}; SGLang needs `--enable-metrics`."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=30) as response:
            lines = response.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def flush_cache(self, timeout_s: float = 30) -> None:
        """Empty the prefix cache once nothing runs: an answer reaches its client a step before its request is gone."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._request("/flush_cache", {})
                return
            except urllib.error.HTTPError as error:
                if error.code != 400 or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def _request(self, path: str, body: Mapping[str, Any] | None = None, timeout_s: float = 180) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            text = response.read().decode()
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text


class VllmServer(Server):
    """The same questions to a vLLM; start it with `vllm_arguments`."""

    def generate(self, prompt: str | Sequence[int], max_new_tokens: int = 8, **request: Any) -> dict[str, Any]:
        """Greedy generation, answered in the shape of SGLang's: `text`, `output_ids` and `meta_info`.

        `request` goes into the body of `/v1/completions` (priority=..., cache_salt=..., vllm_xargs=...).
        """
        body = {
            "model": "default",
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "temperature": 0,
            "max_tokens": max_new_tokens,
            "ignore_eos": True,
            "return_token_ids": True,
            **request,
        }
        answer = self._request("/v1/completions", body)
        assert isinstance(answer, dict)
        (choice,), usage = answer["choices"], answer["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        meta = {"prompt_tokens": usage["prompt_tokens"], "cached_tokens": cached}
        return {"text": choice["text"], "output_ids": choice.get("token_ids"), "meta_info": meta}

    def statuses(self) -> list[dict[str, Any]]:
        """The `kvpolicy` block of each engine (one a data-parallel rank)."""
        engines = self._request("/kvpolicy")["engines"]
        assert isinstance(engines, list)
        return engines

    def status(self) -> dict[str, Any]:
        return self.statuses()[0]


def server_arguments(model: Path | str, flags: Sequence[str], policy: Path | str | None, port: int) -> list[str]:
    """What every server here gets. Page size, KV dtype and attention backend are absent: they are the policy's.

    A flag given twice counts as given last.
    """
    arguments = [
        "--model-path", str(model), "--device", "cpu", "--dtype", "bfloat16", "--sampling-backend", "pytorch",
        "--disable-cuda-graph", "--skip-server-warmup", "--host", "127.0.0.1", "--port", str(port),
        "--max-total-tokens", str(POOL_TOKENS),
    ]  # fmt: skip
    if policy is not None:
        arguments += ["--kv-policy", str(policy)]
    return [*arguments, *flags]


def vllm_arguments(
    model: Path | str, flags: Sequence[str], policy: Path | str | None, port: int, pool_tokens: int = POOL_TOKENS
) -> list[str]:
    """What every vLLM here gets, after `vllm serve`. Block size, KV dtype and attention backend are the policy's.

    The pool is counted in blocks, so a policy must ask for blocks of VLLM_BLOCK_TOKENS to get `pool_tokens`.
    """
    arguments = [
        str(model), "--served-model-name", "default", "--enforce-eager", "--host", "127.0.0.1", "--port", str(port),
        "--max-model-len", str(min(pool_tokens, 2048)), "--max-num-seqs", "8", "--max-num-batched-tokens", "2048",
        "--enable-prompt-tokens-details",
        "--num-gpu-blocks-override", str(pool_tokens // VLLM_BLOCK_TOKENS + 1),  # one is the null block
    ]  # fmt: skip
    if policy is not None:
        arguments += ["--kv-policy", str(policy)]
    return [*arguments, *flags]


@contextmanager
def run_server(
    engine: EngineEnv,
    model: Path | str,
    *flags: str,
    policy: Path | str | None = None,
    log_path: Path,
    cwd: Path | None = None,
    start_timeout_s: float = START_TIMEOUT_S,
    fresh: bool = False,
) -> Iterator[Server]:
    """A healthy server for the length of the block; afterwards none of its processes is left.

    `fresh`: in new interpreters, as a user starts it; otherwise by tools/preloaded.py.

    Raises ServerExited if it ends first, TimeoutError if it is not healthy in time; both show the log.
    """
    port = free_port()
    if engine.name == "vllm":
        command = ["-m", VLLM_MODULE, "serve", *vllm_arguments(model, flags, policy, port)]
    else:
        command = ["-m", "sglang.launch_server", *server_arguments(model, flags, policy, port)]
    with log_path.open("wb") as log:
        process = start(engine, command, output=log, cwd=cwd, fresh=fresh)
    server = (VllmServer if engine.name == "vllm" else Server)(port, process, log_path)
    try:
        wait_healthy(server, start_timeout_s)
        yield server
    finally:
        stop_group(process)


def wait_healthy(server: Server, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if (code := server.process.poll()) is not None:
            raise ServerExited(code, server.log())
        try:
            with urllib.request.urlopen(server.url + "/health", timeout=5) as response:
                if response.status == 200:
                    return
        except OSError:  # not listening yet, or answering "starting"
            pass
        time.sleep(0.25)
    raise TimeoutError(f"the server was not healthy after {timeout_s:.0f} s:\n{server.log()[-6000:]}")


def stop_group(process: subprocess.Popen[bytes] | Process) -> None:
    """End the server and all its children at once: they share the process group that its session made.

    Asked to end by itself, an SGLang whose children get the signal too waits for five seconds first.
    """
    deadline = time.monotonic() + STOP_TIMEOUT_S
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, signal.SIGKILL)
            process.poll()  # the parent of its children reaps them, a moment later
            time.sleep(0.05)


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
