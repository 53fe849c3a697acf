"""One server's kvpolicy status and metrics over HTTP.

Every failure is a :class:`LiveError` whose text is one line that says what to do; commands print it and exit with 2.
"""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

__all__ = [
    "TIMEOUT_S",
    "Forbidden",
    "HttpFailure",
    "LiveError",
    "NoPolicy",
    "NotAKvpolicyServer",
    "Sample",
    "Unreachable",
    "fetch_metrics",
    "fetch_statuses",
    "request_json",
]

TIMEOUT_S = 10.0
#: Where an SGLang without our route shows the block: now, and up to 0.5.18.
_SGLANG_STATUS = ("/server_info", "/get_server_info")


class LiveError(Exception):
    """A question that the server did not answer."""


class Unreachable(LiveError):
    """Nobody listens there, or no answer came in time, or the URL is none."""


class NotAKvpolicyServer(LiveError):
    """Something answered that is no SGLang or vLLM with kvpolicy installed."""


class NoPolicy(LiveError):
    """The server runs, without a policy."""


class Forbidden(LiveError):
    """401 or 403: the server wants another key, or refuses this in principle."""


class HttpFailure(LiveError):
    """Any other HTTP status; `status` is its number, `answer` the body as JSON where it is JSON, else as text."""

    def __init__(self, message: str, status: int, answer: Any) -> None:
        super().__init__(message)
        self.status = status
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of `/metrics`."""

    name: str  # as exposed: with `_total`, `_bucket`, `_sum` or `_count`
    labels: dict[str, str]
    value: float


def fetch_statuses(url: str, api_key: str | None = None, timeout_s: float = TIMEOUT_S) -> list[dict[str, Any]]:
    """The kvpolicy status block of every engine behind `url`, one a data-parallel rank, in rank order.

    Raises NoPolicy and NotAKvpolicyServer besides what :func:`request_json` raises.
    """
    base = _base(url)
    try:
        return _blocks(base, request_json(base, "/kvpolicy", api_key=api_key, timeout_s=timeout_s))
    except HttpFailure as failure:
        if failure.status != 404:
            raise
    for path in _SGLANG_STATUS:
        try:
            return _server_info(base, request_json(base, path, api_key=api_key, timeout_s=timeout_s))
        except HttpFailure as failure:
            if failure.status != 404:
                raise
    raise NotAKvpolicyServer(
        f"{base} answers, but neither /kvpolicy nor {_SGLANG_STATUS[0]}: it is no server with kvpolicy installed and a "
        "policy; was it started with --kv-policy?"
    )


def _blocks(base: str, answer: Any) -> list[dict[str, Any]]:
    """Out of what our own route answers."""
    if not isinstance(answer, dict) or not isinstance(answer.get("engines"), list):
        raise NotAKvpolicyServer(
            f"{base}/kvpolicy answers something else than a kvpolicy status; is it another server?"
        )
    return _whole(base, answer["engines"])


def _server_info(base: str, answer: Any) -> list[dict[str, Any]]:
    """Out of SGLang's own status."""
    states = answer.get("internal_states") if isinstance(answer, dict) else None
    if not isinstance(states, list) or not all(isinstance(state, dict) for state in states):
        raise NotAKvpolicyServer(f"{base}/server_info answers no status of an SGLang; is it another server?")
    return _whole(base, [state["kvpolicy"] for state in states if "kvpolicy" in state])


def _whole(base: str, blocks: list[Any]) -> list[dict[str, Any]]:
    if not blocks:
        raise NoPolicy(f"{base} runs without a policy: start it with --kv-policy")
    for block in blocks:
        if not isinstance(block, dict) or "digest" not in block:
            said = block.get("error", block) if isinstance(block, dict) else block
            raise NotAKvpolicyServer(f"{base} could not say what it runs: {_short(said)}")
    return blocks


def fetch_metrics(url: str, api_key: str | None = None, timeout_s: float = TIMEOUT_S) -> list[Sample]:
    """All samples of the server's `/metrics`, in its order.

    Raises NotAKvpolicyServer where there are none, besides what :func:`request_json` raises.
    """
    base = _base(url)
    try:
        text = _ask(base, "/metrics", None, "GET", api_key, timeout_s).decode(errors="replace")
    except HttpFailure as failure:
        if failure.status != 404:
            raise
        raise NotAKvpolicyServer(f"{base} has no /metrics: SGLang has them with --enable-metrics") from None
    return [sample for line in text.splitlines() if (sample := _sample(line)) is not None]


_LINE = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'\s*(?P<name>\w+)\s*=\s*"(?P<value>(?:[^"\\]|\\.)*)"\s*,?')
_ESCAPED = re.compile(r"\\(.)")


def _sample(line: str) -> Sample | None:
    """A line of Prometheus's text format 0.0.4; None for comments and what is no sample."""
    if line.startswith("#") or (found := _LINE.fullmatch(line)) is None:
        return None
    try:
        value = float(found["value"])
    except ValueError:
        return None
    labels = {
        label["name"]: _ESCAPED.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], label["value"])
        for label in _LABEL.finditer(found["labels"] or "")
    }
    return Sample(found["name"], labels, value)


def request_json(
    url: str,
    path: str,
    body: Any = None,
    *,
    method: str | None = None,
    api_key: str | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Any:
    """What `path` of the server at `url` answers, as JSON. With a `body` (any JSON value) it is a POST.

    Raises Unreachable, Forbidden, HttpFailure, and NotAKvpolicyServer for an answer that is no JSON.
    """
    base = _base(url)
    raw = _ask(base, path, body, method or ("GET" if body is None else "POST"), api_key, timeout_s)
    try:
        return json.loads(raw)
    except ValueError:
        raise NotAKvpolicyServer(f"{base}{path} answers no JSON: {_short(raw.decode(errors='replace'))}") from None


def _ask(base: str, path: str, body: Any, method: str, api_key: str | None, timeout_s: float) -> bytes:
    headers = {"Accept": "application/json, text/plain"}
    data = None
    if body is not None:
        data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    request = urllib.request.Request(base + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            raw: bytes = response.read()
            return raw
    except urllib.error.HTTPError as error:
        raise _refused(base, path, error, api_key) from None
    except urllib.error.URLError as error:
        raise Unreachable(_no_answer(base, error.reason, timeout_s)) from None
    except (OSError, http.client.HTTPException) as error:  # while the answer was read
        raise Unreachable(_no_answer(base, error, timeout_s)) from None


def _refused(base: str, path: str, error: urllib.error.HTTPError, api_key: str | None) -> LiveError:
    """In words; the server's own first, where it says any."""
    try:
        raw = error.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        raw = ""
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = raw
    said = answer
    if isinstance(answer, dict):
        said = next((answer[key] for key in ("error", "detail", "message") if key in answer), answer)
    said = f": {_short(said)}" if said else ""
    if error.code in (401, 403):
        way = "the server does not take this key" if api_key else "pass --api-key or set KVPOLICY_API_KEY"
        return Forbidden(f"{base}{path}: {error.code}{said}; {way}")
    return HttpFailure(f"{base}{path}: {error.code} {error.reason}{said}", error.code, answer)


def _no_answer(base: str, reason: Any, timeout_s: float) -> str:
    if isinstance(reason, ConnectionRefusedError):
        return f"nothing listens at {base}: is the server up, and the port right?"
    if isinstance(reason, TimeoutError):
        return f"{base} did not answer in {timeout_s:g} s; a busy server may need a longer --timeout"
    return f"cannot reach {base}: {_short(reason) or type(reason).__name__}"


def _base(url: str) -> str:
    """`host:port`, with or without a scheme and a path's slash, as `http://host:port`."""
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urllib.parse.urlsplit(whole)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # the port
        valid = False
    if not valid or any(c.isspace() or not c.isprintable() for c in url):
        raise Unreachable(f"'{_short(url)}' is no URL of a server; write http://host:port")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _short(value: Any, most: int = 160) -> str:
    """Others' words on one line."""
    text = " ".join(str(value).split())
    return text if len(text) <= most else text[: most - 3] + "..."
