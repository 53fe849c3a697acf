"""What this vLLM offers: features by looking, the supported range by version."""

from __future__ import annotations

from typing import Any

from kvpolicy.runtime.support import require_supported

__all__ = [
    "adopt_logging",
    "call_every_engine",
    "engine_version",
    "has_cascade",
    "local_engine_pids",
    "require_supported_engine",
]


def engine_version() -> str:
    """The running vLLM's version as it states it itself (it may be a build under another distribution's name)."""
    from vllm.version import __version__

    return str(__version__)


def has_cascade() -> bool:
    """Whether backends can be asked for cascade attention: up to 0.31; the option outlives it without an effect."""
    from vllm.v1.attention.backend import AttentionMetadataBuilder

    return hasattr(AttentionMetadataBuilder, "use_cascade_attention")


def require_supported_engine() -> None:
    """SystemExit where the running vLLM is outside the supported range."""
    require_supported("vllm", "vLLM", engine_version())


def local_engine_pids(arguments: tuple[Any, ...]) -> list[int] | None:
    """Processes of the engines that `wait_for_engine_startup(*arguments)` waits for and that run on this machine.

    None: this launcher starts none of its own. Up to 0.26 the process manager is an argument, later it is held by one.
    """
    for argument in arguments:
        manager = getattr(argument, "engine_manager", argument)
        if processes := getattr(manager, "processes", None):
            return [process.pid for process in processes]
    return None


async def call_every_engine(client: Any, method: str, *args: Any) -> list[Any]:
    """Call a method of each EngineCore behind an asynchronous core client; one result an engine, in rank order."""
    if hasattr(client, "call_utility_all_async"):  # from 0.32
        return list(await client.call_utility_all_async(method, *args))
    import asyncio

    calls = [client._call_utility_async(method, *args, engine=engine) for engine in client.core_engines]
    return list(await asyncio.gather(*calls))


def adopt_logging() -> None:
    """Let our log lines go where vLLM's go: it configures its own logger only, so they would be lost below WARNING."""
    import logging

    logging.getLogger("kvpolicy").parent = logging.getLogger("vllm")
