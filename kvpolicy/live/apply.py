"""The client's half of live swaps: ask a server what it runs, plan against it, apply, roll back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvpolicy.language import LoadResult, load_policy

from .client import Forbidden, HttpFailure, LiveError, NoPolicy, NotAKvpolicyServer, request_json

__all__ = ["Refused", "Running", "apply_off", "apply_policy", "load_for", "post", "rollback", "running"]

#: One slice of the cache is prepared between two steps: seconds, for a large cache and slow steps minutes.
TIMEOUT_S = 600.0


class Refused(LiveError):
    """The server kept its policy; ``why`` says why, one reason a line."""

    def __init__(self, status: int, answer: Any) -> None:
        found = answer if isinstance(answer, dict) else {}
        self.status = status
        self.why: list[str] = [str(line) for line in found.get("why") or [found.get("error", answer)]]
        self.why += [
            f"{d.get('file')}:{d.get('line')}:{d.get('col')}: {d.get('code')} {d.get('severity')}: {d.get('message')}"
            for d in found.get("diagnostics", ())
        ]
        super().__init__("; ".join(self.why))


@dataclass(frozen=True, slots=True)
class Running:
    """What a server runs."""

    engine: str
    flat: dict[str, Any]
    digest: str
    blocks: list[dict[str, Any]]  # the status of each engine


def running(url: str, api_key: str | None = None) -> Running:
    """Raises LiveError, e.g. NoPolicy where the server has none."""
    try:
        answer = request_json(url, "/kvpolicy", api_key=api_key)
    except HttpFailure as failure:
        if failure.status != 404:
            raise
        raise NotAKvpolicyServer(
            f"{url} has no /kvpolicy: it is no server with a policy, or it has several tokenizer workers, whose policy "
            "cannot be changed while they run"
        ) from None
    found = answer if isinstance(answer, dict) else {}
    blocks, flat = found.get("engines"), found.get("policy")
    if not blocks:
        raise NoPolicy(f"{url} runs without a policy: start it with --kv-policy")
    if not isinstance(flat, dict):
        raise Forbidden(
            f"{url} shows its policy to callers with its key, and without one to its own machine: --api-key"
        )
    return Running(str(found["engine"]), flat, str(blocks[0]["digest"]), blocks)


def load_for(source: str, engine: str) -> LoadResult:
    """The policy as the server's engine reads it, with its parents merged in here."""
    return load_policy(source, engine)


def apply_policy(
    url: str, flat: dict[str, Any], source: str, *, expect_digest: str | None = None, api_key: str | None = None
) -> dict[str, Any]:
    """Swap to a flattened policy; the server's answer. Raises Refused where the server kept its own, and LiveError."""
    return post(url, "apply", {"policy": flat, "source": source, "expect_digest": expect_digest}, api_key, "applied")


def apply_off(url: str, *, expect_digest: str | None = None, api_key: str | None = None) -> dict[str, Any]:
    """Leave everything to the engine."""
    return post(url, "apply", {"off": True, "expect_digest": expect_digest}, api_key, "applied")


def rollback(url: str, *, expect_digest: str | None = None, api_key: str | None = None) -> dict[str, Any]:
    """Return to the policy before the last change."""
    return post(url, "rollback", {"expect_digest": expect_digest}, api_key, "applied")


def post(
    url: str, path: str, body: dict[str, Any], api_key: str | None, expect: str, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """What a kvpolicy server answers at that route: an object with the key ``expect``.

    Raises Refused, with the server's reasons, and LiveError.
    """
    try:
        answer = request_json(url, f"/kvpolicy/{path}", body, api_key=api_key, timeout_s=timeout_s)
    except Forbidden:
        raise
    except HttpFailure as failure:
        if failure.status == 404:
            raise NotAKvpolicyServer(
                f"{url} has no /kvpolicy/{path}: no policy, or several tokenizer workers"
            ) from None
        raise Refused(failure.status, failure.answer) from None
    if not isinstance(answer, dict) or expect not in answer:
        raise NotAKvpolicyServer(f"{url}/kvpolicy/{path} answers something else than kvpolicy does")
    return answer
