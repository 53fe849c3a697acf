"""The routes of :mod:`kvpolicy.live.routes` on SGLang's own HTTP app.

The app exists once, in the launching process, and asks through SGLang's own tokenizer manager. With several tokenizer
workers requests are answered by processes that load no plugins: such a server has no routes of ours.
"""

from __future__ import annotations

import sys
from typing import Any

from kvpolicy.compiler import compile_policy
from kvpolicy.language import Policy
from kvpolicy.live import server
from kvpolicy.live.plan import effective_of
from kvpolicy.live.routes import add_routes
from kvpolicy.live.shadows import ShadowDesk
from kvpolicy.runtime.active import ActivePolicy

from . import cache_time, live_carrier, probe
from .hooks import HookSet

__all__ = ["register"]

_HTTP_SERVER = "sglang.srt.entrypoints.http_server"


def register(active: ActivePolicy, server_args: Any, hooks: HookSet) -> None:
    """Add the routes, if this process is about to serve HTTP. Raises what goes wrong."""
    module = sys.modules.get(_HTTP_SERVER)
    if module is None or not hasattr(module, "app"):
        return  # sglang.Engine
    channel = _Schedulers(module, active)
    desk = server.Desk(channel, _Stamps(active, hooks).ready_for)
    key = probe.resolved(server_args, "admin_api_key") or probe.resolved(server_args, "api_key")
    keys = [key] if key else []

    async def status(may_read: bool) -> dict[str, Any]:
        blocks = await channel.blocks()
        policy = channel.known.get(blocks[0]["digest"]) if may_read else None
        return {"engine": "sglang", "engines": blocks, "policy": policy}

    add_routes(module.app, desk, ShadowDesk(channel), keys, status, _protect)


def _protect(handler: Any) -> None:
    """SGLang's own check asks for the admin key there too, where it has one."""
    try:
        from sglang.srt.utils.auth import AuthLevel, auth_level
    except ImportError:
        return
    auth_level(AuthLevel.ADMIN_OPTIONAL)(handler)


class _Schedulers:
    """A :class:`~kvpolicy.live.server.Channel` through SGLang's tokenizer manager, and a
    :class:`~kvpolicy.live.shadows.ShadowChannel`."""

    engine = "sglang"

    def __init__(self, module: Any, active: ActivePolicy) -> None:
        self._module = module
        #: Flattened policies that ran here, by digest; schedulers answer with digests.
        self.known = {active.digest: active.flat}

    @property
    def _manager(self) -> Any:
        return self._module._global_state.tokenizer_manager

    async def send(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        if "flat" in message:
            from kvpolicy.language import digest_of

            self.known[digest_of(message["flat"])] = message["flat"]
        if any(await self._manager.set_internal_state(live_carrier.pack(message))) and message["op"] == "continue":
            return [_GOES_ON]
        return [block.get("live") or _NO_SEAT for block in await self.blocks()]

    async def shadow(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        if message["op"] != "shadow_look":
            await self._manager.set_internal_state(live_carrier.pack(message))
        return [block.get("shadows") or _NO_SHADOWS for block in await self.blocks()]

    async def blocks(self) -> list[dict[str, Any]]:
        states = await self._manager.get_internal_state()
        return [state["kvpolicy"] for state in states if "kvpolicy" in state]

    async def running(self) -> dict[str, Any]:
        return self.known[(await self.blocks())[0]["digest"]]

    async def effective(self) -> dict[str, Any]:
        return effective_of((await self.blocks())[0])


_GOES_ON = {"state": "preparing", "more": True}  # some group does
_NO_SEAT = {
    "state": "refused",
    "digest": "",
    "why": ["this scheduler cannot swap policies; see its log"],
    "more": False,
}
_NO_SHADOWS = {"rank": 0, "state": "none", "refused": "this scheduler can have no shadows; see its log"}


class _Stamps:
    """Arrival times for a policy that needs them, where the one before did not."""

    def __init__(self, active: ActivePolicy, hooks: HookSet) -> None:
        self._hooks = hooks
        self._is_stamping = bool(active.compiled.eviction.needs_time)

    def ready_for(self, policy: Policy) -> str | None:
        if self._is_stamping or not compile_policy(policy, "sglang").eviction.needs_time:
            return None
        try:
            cache_time.install_tokenizer(self._hooks)
            self._hooks.apply_now()
        except (Exception, SystemExit) as error:
            return f"requests cannot be given arrival times on this server, so ttl would stand still: {error}"
        self._is_stamping = True
        return None
