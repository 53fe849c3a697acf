"""The HTTP side: the routes of :mod:`kvpolicy.live.routes`, and `kvpolicy_*` in `/metrics`.

vLLM's endpoint plugins are off unless VLLM_PLUGINS names them, which would turn every other plugin off. So the app that
vLLM builds gets one route more, and its `/metrics` is asked through ours. A failure of ours leaves vLLM's answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from kvpolicy.live import server
from kvpolicy.live.plan import effective_of
from kvpolicy.live.routes import PATH, add_routes
from kvpolicy.live.shadows import ShadowDesk

from . import hooks, probe
from .engine_core import LIVE_METHOD, STATUS_METHOD

__all__ = ["register"]

logger = logging.getLogger("kvpolicy")

#: What a scrape waits for the engines. Prometheus gives up after 10 s, and would lose vLLM's own metrics with ours.
SCRAPE_TIMEOUT_S = 5.0
#: Where vLLM looks up `build_app` when it serves: up to 0.28, and later.
_BUILDERS = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.launchers.api_server.entry")


def register() -> None:
    """Add to the app that this process will build, if it is one that serves."""
    for name in (*_BUILDERS, "__main__"):
        module = sys.modules.get(name)
        if name == "__main__" and getattr(getattr(module, "__spec__", None), "name", None) not in _BUILDERS:
            continue
        if module is not None and hasattr(module, "build_app"):
            hooks.wrap(module, "build_app", _build_app)


def _build_app(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    app = original(*args, **kwargs)
    given = getattr(args[0] if args else kwargs.get("args"), "api_key", None) or [os.environ.get("VLLM_API_KEY")]
    try:
        _extend(app, [key for key in given if key])
    except Exception:
        logger.exception("kvpolicy: the server has no %s and no kvpolicy metrics", PATH)
    return app


def _extend(app: Any, keys: list[str]) -> None:
    from starlette.routing import Route

    async def status(may_read: bool) -> dict[str, Any]:
        engines = await ask_engines(app)
        policy = engines[0]["policy"] if engines and may_read else None
        return {"engine": "vllm", "engines": [engine["block"] for engine in engines], "policy": policy}

    channel = _Engines(app)
    add_routes(app, server.Desk(channel), ShadowDesk(channel), keys, status)
    if any(getattr(route, "path", None) == "/metrics" for route in app.routes):
        app.router.routes.insert(0, Route("/metrics", _Metrics(app)))


async def ask_engines(app: Any) -> list[dict[str, Any]]:
    """What each engine behind this server answers of its policy."""
    answers = await probe.call_every_engine(app.state.engine_client.engine_core, STATUS_METHOD)
    return [answer for answer in answers if answer is not None]


class _Engines:
    """A :class:`~kvpolicy.live.server.Channel` through vLLM's utility calls, and a
    :class:`~kvpolicy.live.shadows.ShadowChannel`."""

    engine = "vllm"

    def __init__(self, app: Any) -> None:
        self._app = app

    async def send(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        client = self._app.state.engine_client.engine_core
        return await probe.call_every_engine(client, LIVE_METHOD, json.dumps(message))

    async def shadow(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        return await self.send(message)

    async def running(self) -> dict[str, Any]:
        engines = await ask_engines(self._app)
        policy: dict[str, Any] = engines[0]["policy"]
        return policy

    async def effective(self) -> dict[str, Any]:
        return effective_of((await ask_engines(self._app))[0]["block"])


async def kvpolicy_families(app: Any) -> list[Any]:
    """Our metrics for one scrape; none, with a warning, where an engine fails or does not answer in time."""
    from .metrics import families

    try:
        return list(families(await asyncio.wait_for(ask_engines(app), SCRAPE_TIMEOUT_S)))
    except asyncio.TimeoutError:
        why = f"no answer from the engines in {SCRAPE_TIMEOUT_S:g} s"
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    logger.warning("kvpolicy: no kvpolicy metrics in this scrape: %s", why)
    return []


class _Metrics:
    """`/metrics` as vLLM serves it, with ours behind; an engine that does not answer costs ours only."""

    def __init__(self, app: Any) -> None:
        from prometheus_client import make_asgi_app
        from vllm.v1.metrics.prometheus import get_prometheus_registry

        from .metrics import JoinedRegistry

        self.__name__ = "metrics"  # vLLM lists its routes with the name of each endpoint
        self._app = app
        self._registry: Any = JoinedRegistry(get_prometheus_registry())
        self._serve = make_asgi_app(registry=self._registry)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._registry.ours = await kvpolicy_families(self._app)
        await self._serve(scope, receive, send)
