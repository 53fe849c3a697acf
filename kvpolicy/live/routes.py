"""`GET PATH`, and `POST PATH/apply`, `/rollback`, `/shadows` and `/record` on an engine's own FastAPI app, which brings
FastAPI.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from . import server
from .shadows import ShadowDesk

__all__ = ["PATH", "add_routes"]

PATH = "/kvpolicy"


def add_routes(
    app: Any,
    desk: server.Desk,
    shadows: ShadowDesk,
    keys: Sequence[str],
    status: Callable[[bool], Awaitable[dict[str, Any]]],
    protect: Callable[[Any], None] = lambda _handler: None,
) -> None:
    """`status(whether the caller may see the policy itself)` answers the GET; a fault there is answered with 503.

    `protect` gets the handlers that change something, for an engine with a check of its own.
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

    def changing(
        act: Callable[[bytes], Coroutine[Any, Any, server.Result]],
    ) -> Callable[[Request], Awaitable[JSONResponse]]:
        async def kvpolicy_change(request: Request) -> JSONResponse:
            code, answer = await server.answer_request(request, act, forbidden(request))
            return JSONResponse(answer, code)

        return kvpolicy_change

    routes = {"apply": desk.apply, "rollback": desk.rollback, "shadows": shadows.shadows, "record": shadows.record}
    posts = {f"{PATH}/{name}": changing(act) for name, act in routes.items()}
    for handler in (kvpolicy_status, *posts.values()):
        handler.__annotations__["request"] = Request  # FastAPI looks the name up in this module, which has it not
    app.add_api_route(PATH, kvpolicy_status, methods=["GET"], include_in_schema=False)
    for path, handler in posts.items():
        protect(handler)
        app.add_api_route(path, handler, methods=["POST"], include_in_schema=False)
