"""What this vLLM offers: features by looking, the supported range by version."""

from __future__ import annotations

import os
import re
from typing import Any

from kvpolicy.runtime.flags import UNTESTED_ENV

__all__ = [
    "FIRST",
    "LAST",
    "adopt_logging",
    "call_every_engine",
    "engine_version",
    "local_engine_pids",
    "require_supported_engine",
]

FIRST, LAST = (0, 26), (0, 33)


def engine_version() -> str:
    """The running vLLM's version as it states it itself (it may be a build under another distribution's name)."""
    from vllm.version import __version__

    return str(__version__)


def require_supported_engine() -> None:
    """SystemExit outside 0.26-0.33, since the seams are private there and nobody looked; see UNTESTED_ENV."""
    version = engine_version()
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and FIRST <= tuple(int(part) for part in found.groups()) <= LAST:
        return
    span = f"{'.'.join(map(str, FIRST))} to {'.'.join(map(str, LAST))}"
    if os.environ.get(UNTESTED_ENV) == "1":
        import logging

        logging.getLogger("kvpolicy").warning("vLLM %s is outside the supported range %s; continuing", version, span)
        return
    raise SystemExit(
        f"kvpolicy: vLLM {version} is not supported: the places where a policy goes in are known for {span}.\n"
        f"Remove --kv-policy, use a supported version, or set {UNTESTED_ENV}=1 to try it on your own risk."
    )


def local_engine_pids(arguments: tuple[Any, ...]) -> list[int] | None:
    """Processes of the engines that `wait_for_engine_startup(*arguments)` waits for and that run on this machine.

    None: this launcher starts none of its own. Up to 0.26 the process manager is an argument, later it is held by one.
    """
    for argument in arguments:
        manager = getattr(argument, "engine_manager", argument)
        if processes := getattr(manager, "processes", None):
            return [process.pid for process in processes]
    return None


async def call_every_engine(client: Any, method: str) -> list[Any]:
    """Call a method of each EngineCore behind an asynchronous core client; one result an engine, in rank order."""
    if hasattr(client, "call_utility_all_async"):  # from 0.32
        return list(await client.call_utility_all_async(method))
    import asyncio

    calls = [client._call_utility_async(method, engine=engine) for engine in client.core_engines]
    return list(await asyncio.gather(*calls))


def adopt_logging() -> None:
    """Let our log lines go where vLLM's go: it configures its own logger only, so they would be lost below WARNING."""
    import logging

    logging.getLogger("kvpolicy").parent = logging.getLogger("vllm")
