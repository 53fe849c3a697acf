"""`kvpolicy_vllm.LLM(policy=..., **kwargs)`: vLLM's own LLM, started with a policy and verified."""

from __future__ import annotations

import os
from typing import Any

from kvpolicy.runtime import carry, flags

__all__ = ["LLM", "StartError", "status"]


class StartError(RuntimeError):
    """The engine was not started: the policy is wrong, cannot be honoured, or did not reach every process."""


def LLM(*args: Any, policy: str | os.PathLike[str], **kwargs: Any) -> Any:
    """Start `vllm.LLM(*args, **kwargs)` with a policy (a file or a shipped name) and return that very object.

    Keyword arguments count as explicit: one that differs from the policy is a conflict, as a flag would be. Every
    engine and worker has proved that it has the policy when this returns. The environment is as before afterwards.

    Raises:
        StartError: with the same words a server would exit with. vLLM ends the processes of a start that fails.
    """
    import vllm
    from vllm.plugins import load_general_plugins

    from kvpolicy.runtime.loading import load_active, say

    if flags.disabled(os.environ):
        say(f"kvpolicy: {flags.DISABLE_ENV} is set: policy {policy} is ignored, the engine runs stock")
        return vllm.LLM(*args, **kwargs)
    try:
        from . import launcher, probe, resolution

        probe.require_supported_engine()
        probe.adopt_logging()
        active = load_active(os.fspath(policy), "vllm")
        launcher.PENDING.active = active
        launcher.PENDING.explicit = {name: f"{name}={kwargs[name]!r}" for name in resolution.FIELDS if name in kwargs}
        load_general_plugins()
        launcher.register()
        llm = vllm.LLM(*args, **kwargs)
        found = status(llm)
        if not found or any(block["digest"] != active.digest for block in found):
            raise SystemExit(f"kvpolicy: {active.source}: not started: the engine runs without the policy")
        return llm
    except SystemExit as error:
        raise StartError(str(error)) from error
    finally:
        if "launcher" in locals():
            launcher.PENDING.active = launcher.PENDING.explicit = None
        carry.withdraw()


def status(llm: Any) -> list[dict[str, Any]]:
    """The `kvpolicy` status block of each engine behind a `vllm.LLM`; empty where no policy runs."""
    from .engine_core import STATUS_METHOD

    client = llm.llm_engine.engine_core
    inner = getattr(client, "engine_core", None)  # in this process
    if inner is not None:
        call = getattr(inner, STATUS_METHOD, lambda: None)
        found = [call()]
    else:
        found = [client.call_utility(STATUS_METHOD)]
    return [one["block"] for one in found if one is not None]
