"""`GET PATH`, `POST PATH/apply` and `POST PATH/rollback` on an engine's own FastAPI app, which brings FastAPI."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from . import server

__all__ = ["PATH", "add_routes"]

PATH = "/kvpolicy"


def add_routes(
    app: Any,
    desk: server.Desk,
    keys: Sequence[str],
    status: Callable[[bool], Awaitable[dict[str, Any]]],
    protect: Callable[[Any], None] = lambda _handler: None,
) -> None:
    """`status(whether the caller may see the policy itself)` answers the GET; a fault there is answered with 503.

    `protect` gets the two handlers that change something, for an engine with a check of its own.
    """
    from fastapi import Request
    from fastapi.responses import JSONResponse

    def caller(request: Request) -> tuple[str | None, str | None, Sequence[str]]:
        peer = request.client.host if request.client is not None else None
        return request.headers.get("authorization"), peer, keys

    def forbidden(request: Request) -> str | None:
        return server.why_forbidden(*caller(request), os.environ)

    async def kvpolicy_status(request: Request) -> JSONResponse:
        try:
            return JSONResponse(await status(server.may_read(*caller(request))))
        except Exception as error:
            return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 503)

    async def kvpolicy_apply(request: Request) -> JSONResponse:
        code, answer = await server.answer_request(request, desk.apply, forbidden(request))
        return JSONResponse(answer, code)

    async def kvpolicy_rollback(request: Request) -> JSONResponse:
        code, answer = await server.answer_request(request, desk.rollback, forbidden(request))
        return JSONResponse(answer, code)

    for handler in (kvpolicy_status, kvpolicy_apply, kvpolicy_rollback):
        handler.__annotations__["request"] = Request  # FastAPI looks the name up in this module, which has it not
    for handler in (kvpolicy_apply, kvpolicy_rollback):
        protect(handler)
    app.add_api_route(PATH, kvpolicy_status, methods=["GET"], include_in_schema=False)
    app.add_api_route(f"{PATH}/apply", kvpolicy_apply, methods=["POST"], include_in_schema=False)
    app.add_api_route(f"{PATH}/rollback", kvpolicy_rollback, methods=["POST"], include_in_schema=False)
