"""The HTTP side of live swaps, the same for every engine: who may change the policy, what is asked for, and the way
from `prepare` to `commit`. An adapter gives it a :class:`Channel` into its schedulers and puts it on the engine's app.

Answers are ``(status, JSON)``. 200: applied. 400: no policy, with its diagnostics. 403: not allowed, with what to do.
409: another policy runs than the caller expected, or another change came between. 413: too large. 422: this server
cannot run it without a restart. 500: a scheduler failed. Whatever is not 200 leaves the policy that ran.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from kvpolicy.language import has_errors, load_text
from kvpolicy.language.dump import dump

from .plan import make_plan

__all__ = ["APPLY_ENV", "MAX_BODY_BYTES", "Channel", "Desk", "answer_request", "may_read", "uncut", "why_forbidden"]

logger = logging.getLogger("kvpolicy")

APPLY_ENV = "KVPOLICY_APPLY"
MAX_BODY_BYTES = 256 * 1024
#: How long the schedulers may take to answer one message; a swap takes hundreds, one between two steps.
TIMEOUT_S = 60.0
_STATUS = {"applied": 200, "conflict": 409, "refused": 422}

Result = tuple[int, dict[str, Any]]
T = TypeVar("T")


class Channel(Protocol):
    """The way to the schedulers of every data-parallel group."""

    engine: str  # as the language calls it

    async def send(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """One message to all of them, between two steps; each one's answer as ``Answer.to_json``."""

    async def running(self) -> dict[str, Any]:
        """The flattened policy that runs."""

    async def effective(self) -> dict[str, Any]:
        """What the engines use of what a policy may wish for, by its path."""


def why_forbidden(
    authorization: str | None, peer: str | None, keys: Sequence[str], environ: Mapping[str, str]
) -> str | None:
    """Why a caller may not change the policy; None: it may. Any of the server's ``keys`` will do."""
    if keys:
        scheme, _, shown = (authorization or "").partition(" ")
        matches = [hmac.compare_digest(shown.strip().encode(), key.encode()) for key in keys]
        if scheme.lower() == "bearer" and any(matches):
            return None
        return "the server's key was not shown: kvpolicy apply --api-key KEY, or KVPOLICY_API_KEY"
    if environ.get(APPLY_ENV) == "loopback":
        if peer in ("127.0.0.1", "::1"):
            return None
        return f"{APPLY_ENV}=loopback lets this machine's own callers change the policy, and {peer} is none of them"
    return (
        "this server has no admin or API key, so nobody may change its policy: start it with one, or with "
        f"{APPLY_ENV}=loopback to let this machine's own callers do it"
    )


def may_read(authorization: str | None, peer: str | None, keys: Sequence[str]) -> bool:
    """Whether a caller may see the policy itself, which may name tenants: with a key, or from this machine."""
    return why_forbidden(authorization, peer, keys, {APPLY_ENV: "loopback"}) is None


class Desk:
    """Takes requests to change the policy of one server, one at a time."""

    def __init__(self, channel: Channel, before_prepare: Callable[[Any], str | None] | None = None) -> None:
        """``before_prepare(policy)`` makes the HTTP process ready for a policy; in words, why it cannot."""
        self._channel = channel
        self._before_prepare = before_prepare
        self._busy = asyncio.Lock()

    async def apply(self, body: bytes) -> Result:
        """``{"policy": flattened, "source": name, "expect_digest": digest}``, or ``{"off": true}``."""
        if len(body) > MAX_BODY_BYTES:
            return 413, {"error": f"the policy is larger than {MAX_BODY_BYTES // 1024} KiB"}
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError):
            return 400, {"error": "the body is no JSON"}
        if not isinstance(asked, dict):
            return 400, {"error": "the body is no JSON object"}
        expect = asked.get("expect_digest")
        if expect is not None and not isinstance(expect, str):
            return 400, {"error": "expect_digest is a digest, or its first characters"}
        if asked.get("off") is True:
            return await self._change({"op": "prepare", "off": True, "expect": expect})
        flat = asked.get("policy")
        if not isinstance(flat, dict) or "extends" in flat:
            return 400, {"error": "`policy` is a flattened policy, without `extends`: kvpolicy apply makes one"}
        try:
            result = load_text(dump(flat).encode(), "<the policy sent>", self._channel.engine)
        except Exception as error:  # what no file can hold: a number for a key, a surrogate
            return 400, {"error": f"the policy cannot be written as a file: {type(error).__name__}"}
        if has_errors(result.diagnostics) or result.policy is None:
            return 400, {"error": "the policy has errors", "diagnostics": [d.to_json() for d in result.diagnostics]}
        if self._before_prepare is not None and (why := self._before_prepare(result.policy)):
            return 422, {"error": why, "why": [why]}
        source = str(asked.get("source", ""))[:200]
        return await self._change({"op": "prepare", "flat": result.flat, "source": source, "expect": expect})

    async def rollback(self, body: bytes) -> Result:
        """``{}`` or ``{"expect_digest": digest}``: return to the policy before the last change."""
        try:
            asked = json.loads(body[:MAX_BODY_BYTES] or b"{}")
            expect = asked.get("expect_digest")
        except (ValueError, RecursionError, AttributeError):
            return 400, {"error": "the body is no JSON object"}
        return await self._change({"op": "prepare", "rollback": True, "expect": expect})

    async def _change(self, prepare: dict[str, Any]) -> Result:
        if self._busy.locked():
            return 409, {"error": "another change is under way"}
        async with self._busy:
            try:
                return await self._swap(prepare)
            except asyncio.TimeoutError:
                await self._abort()
                return 500, {"error": f"no answer from the schedulers within {TIMEOUT_S:g} s; the old policy runs"}
            except asyncio.CancelledError:
                await asyncio.shield(self._abort())
                raise
            except Exception as error:
                logger.exception("kvpolicy: a live swap failed in the HTTP process")
                await self._abort()
                return 500, {"error": f"{type(error).__name__}: {error}"}

    async def _swap(self, prepare: dict[str, Any]) -> Result:
        send = self._send
        before = await self._channel.running()
        answers = await send(prepare)
        while any(answer["more"] for answer in answers) and _worst(answers, "preparing", "ready") is None:
            answers = await send({"op": "continue"})
        if bad := _worst(answers, "preparing", "ready") or _worst(answers, "ready"):
            await self._abort()
            return bad
        return await uncut(self._take_over(prepare, before, answers[0]["digest"]))

    async def _take_over(self, prepare: dict[str, Any], before: dict[str, Any], digest: str) -> Result:
        send = self._send
        answers = await send({"op": "commit", "digest": digest, "expect": prepare.get("expect")})
        if bad := _worst(answers, "applied"):
            if any(answer["state"] == "applied" for answer in answers):
                await self._restore(before)
            return bad
        engines = len(answers)
        while any(answer["more"] for answer in answers):
            answers = await send({"op": "continue"})
        after = await self._channel.running()
        plan = make_plan(before, after, await self._channel.effective())
        return 200, {
            "applied": digest,
            "off": bool(prepare.get("off")),
            "engines": engines,
            "plan": plan.to_json(),
        }

    async def _send(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        # Not `wait_for`: before Python 3.12 it may swallow that the caller was cut off. A message under way is not cut.
        sending = asyncio.ensure_future(self._channel.send(message))
        done, _ = await asyncio.wait({sending}, timeout=TIMEOUT_S)
        if not done:
            sending.cancel()
            raise asyncio.TimeoutError
        return sending.result()

    async def _restore(self, flat: dict[str, Any]) -> None:
        """Some groups changed and some did not: put all back."""
        await self._send({"op": "abort"})
        answers = await self._send({"op": "prepare", "flat": flat, "source": "restored"})
        while any(answer["more"] for answer in answers):
            answers = await self._send({"op": "continue"})
        await self._send({"op": "commit", "digest": answers[0]["digest"]})

    async def _abort(self) -> None:
        try:
            await self._send({"op": "abort"})
        except Exception:  # the schedulers drop by themselves what nobody asks for any more
            logger.exception("kvpolicy: the schedulers could not be told that a change ended")


def _worst(answers: list[dict[str, Any]], *wanted: str) -> Result | None:
    """The first answer that is none of ``wanted``."""
    if not answers:
        return 500, {"error": "no scheduler answered"}
    for group, answer in enumerate(answers):
        if answer["state"] not in wanted:
            why = list(answer["why"]) or [f"the scheduler answered {answer['state']}"]
            if len(answers) > 1:
                why = [f"engine {group}: {line}" for line in why]
            return _STATUS.get(answer["state"], 500), {"error": "; ".join(why), "why": why, "state": answer["state"]}
    return None


async def uncut(work: Awaitable[T]) -> T:
    """What it returns, at its end, even if whoever waits for it is cut off meanwhile."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})
    return task.result()


async def answer_request(
    request: Any, desk: Callable[[bytes], Coroutine[Any, Any, Result]], forbidden: str | None
) -> Result:
    """One POST: the key first, then a body that is read no further than it may be long. The desk is cancelled where the
    caller goes away before it is answered."""
    if forbidden is not None:
        return 403, {"error": forbidden}
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            break
    acting, leaving = asyncio.ensure_future(desk(bytes(body))), asyncio.ensure_future(_leaves(request))
    try:
        await asyncio.wait({acting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        acting.cancel()  # nothing, where it is done
        return await acting
    except asyncio.CancelledError:
        return 499, {"error": "the caller went away"}  # for the log: nobody reads it
    finally:
        leaving.cancel()


async def _leaves(request: Any) -> None:
    """Returns when the caller has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
