"""`kvpolicy_sglang.Engine(policy=..., **kwargs)`: sglang's own Engine, started with a policy and verified."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from kvpolicy.runtime import carry, flags

__all__ = ["Engine", "StartError"]


class StartError(RuntimeError):
    """The engine was not started: the policy is wrong, cannot be honoured, or did not reach every scheduler."""


def Engine(policy: str | os.PathLike[str], **kwargs: Any) -> Any:
    """Start `sglang.Engine(**kwargs)` with a policy (a file or a shipped name) and return that very object.

    Keyword arguments count as explicit: one that differs from the policy is a conflict, as a flag would be. Every
    scheduler process has proved that it runs the policy when this returns. The environment is as before afterwards.

    Raises:
        StartError: with the same words a server would exit with. No process is left behind.
    """
    import sglang
    from sglang.srt.plugins import load_plugins

    from kvpolicy.runtime.loading import load_active, say

    from . import launcher, probe, resolution

    if flags.disabled(os.environ):
        say(f"kvpolicy: {flags.DISABLE_ENV} is set: policy {policy} is ignored, the engine runs stock")
        return sglang.Engine(**kwargs)
    before = _children()
    try:
        probe.require_supported_engine()
        pending = launcher.PENDING
        pending.active = load_active(os.fspath(policy), "sglang")
        digest = pending.active.digest
        if "server_args" not in kwargs:
            pending.explicit = {name: f"{name}={kwargs[name]!r}" for name in resolution.FIELDS if name in kwargs}
        launcher.register()
        load_plugins()
        pending.hooks.apply_now()
        engine = sglang.Engine(**kwargs)
        if getattr(engine.server_args, "_kv_policy", None) != digest:
            raise SystemExit("kvpolicy: these server_args were resolved before the policy: pass keywords instead")
        return engine
    except SystemExit as error:
        _kill(_children() - before)
        raise StartError(str(error)) from error
    finally:
        launcher.PENDING.active = launcher.PENDING.explicit = None
        carry.withdraw()


def _children() -> set[Any]:
    import psutil

    return set(psutil.Process().children(recursive=True))


def _kill(processes: set[Any]) -> None:
    """End what the failed start left behind, and nothing that the program had started before."""
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(list(processes), timeout=60)
