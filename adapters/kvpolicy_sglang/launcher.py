"""The launcher's side: accept the flag, load and carry the policy, resolve, and verify the schedulers.

It runs in the process that parses arguments (`python -m sglang.launch_server`, `sglang serve`) or constructs the
Engine. Policy errors end the start before anything heavy is imported.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvpolicy.runtime import carry, flags, handshake, launch
from kvpolicy.runtime.active import ActivePolicy, current
from kvpolicy.runtime.loading import load_active
from kvpolicy.runtime.support import refusal

from . import (
    attention_cascade_hooks,
    attention_pages_hooks,
    cache_hooks,
    cache_support,
    cache_time,
    live_http,
    pool_hooks,
    probe,
    resolution,
)
from .hooks import HookSet
from .machine import possible_on

__all__ = ["PENDING", "Pending", "register"]

_SERVER_ARGS = "sglang.srt.server_args.ServerArgs"
_START_SCHEDULERS = "sglang.srt.entrypoints.engine.Engine._launch_scheduler_processes"
#: ServerArgs modes whose workers load no plugin or have no KV cache, with the words for a person.
_REFUSED = {
    "use_ray": "--use-ray: Ray actors load no plugins",
    "encoder_only": "--encoder-only: an encoder has no KV cache",
    "smg_grpc_mode": "--smg-grpc-mode: that server starts its schedulers by itself",
    "grpc_mode": "--grpc-mode: that server starts its schedulers by itself",
}


@dataclass(slots=True)
class Pending:
    """What is known of the start under way, between parsing and resolution."""

    active: ActivePolicy | None = None
    explicit: Mapping[str, str] | None = None  # field -> how the operator gave it; None: not known
    hooks: HookSet = field(default_factory=HookSet)


PENDING = Pending()


def register() -> None:
    """Hook argument parsing and resolution; called while plugins load, before argparse exists."""
    from sglang.srt.plugins.hook_registry import HookType
    from sglang.srt.server_args import ServerArgs

    hooks = PENDING.hooks
    if hooks.targets:
        return
    hooks.register(f"{_SERVER_ARGS}.add_cli_args", _add_flag, HookType.AFTER)
    hooks.register(f"{_SERVER_ARGS}.from_cli_args", _from_cli_args, HookType.AROUND)
    if not flags.disabled(os.environ):
        hooks.register(f"{_SERVER_ARGS}.{probe.resolve_seam(ServerArgs)}", _resolve, HookType.AROUND)


# -- the flag ---------------------------------------------------------------------------------------------------------


def _add_flag(_result: None, parser: argparse.ArgumentParser) -> None:
    """After `add_cli_args`: our flag, and a note of which of the fields that matter were really given."""
    PENDING.hooks.verify()
    launch.add_flag(parser, resolution.FIELDS)


def _from_cli_args(original: Callable[..., Any], cls: type, args: argparse.Namespace) -> Any:
    PENDING.active, PENDING.explicit = launch.policy_in(args, "sglang"), launch.explicit_in(args)
    return original(cls, args)


# -- resolution -------------------------------------------------------------------------------------------------------


def _resolve(original: Callable[..., Any], server_args: Any, *args: Any, **kwargs: Any) -> Any:
    """Around the engine's argument resolution: ask before it, compare after it, then carry the policy along."""
    if hasattr(server_args, "_kv_policy") or getattr(server_args, "_resolution_finished", False):
        return original(server_args, *args, **kwargs)
    active = PENDING.active
    if active is None and (source := os.environ.get(flags.FILE_ENV)):
        active = load_active(source, "sglang")
    if active is None:
        carry.withdraw()  # of an earlier engine in this process
        return original(server_args, *args, **kwargs)

    PENDING.hooks.verify()
    explicit = PENDING.explicit
    if explicit is None:
        explicit = resolution.explicit_by_value(server_args, _defaults(type(server_args)))
    resolution.ask(active, server_args, explicit, possible_on(getattr(server_args, "device", None)))
    result = original(server_args, *args, **kwargs)
    for name, why in _REFUSED.items():
        if probe.resolved(server_args, name):
            raise SystemExit(f"kvpolicy: {active.source}: a policy cannot be used with {why}")
    resolution.compare_resolved(active, server_args)
    _refuse_unsupported_cache(active, server_args)
    _carry(active, server_args)
    PENDING.active = PENDING.explicit = None
    return result


def _defaults(server_args_class: type) -> dict[str, Any]:
    """Field defaults of ServerArgs, a msgspec Struct from 0.5.20 and a dataclass before."""
    if hasattr(server_args_class, "__struct_fields__"):
        import msgspec

        return {found.name: found.default for found in msgspec.structs.fields(server_args_class)}
    import dataclasses

    return {found.name: found.default for found in dataclasses.fields(server_args_class)}


def _refuse_unsupported_cache(active: ActivePolicy, server_args: Any) -> None:
    """Where the arguments alone tell that eviction or watermarks cannot work, end before a model is loaded.

    Under `on_conflict: warn` the scheduler says it, which also knows what only the model tells.
    """
    for hooks in (pool_hooks, attention_pages_hooks, attention_cascade_hooks):
        if refused := hooks.refused(active, server_args):
            raise SystemExit(refused)
    needs = cache_hooks.needs_of(active)
    verdicts = [cache_support.supported(server_args, needs=needs)]
    if active.compiled.allocator.watermark is not None:
        verdicts.append(cache_support.watermark_supported(server_args))
    for verdict in verdicts:
        if refused := refusal(active, verdict):
            raise SystemExit(refused)
    if needs.index and needs.time:
        cache_time.install_tokenizer(PENDING.hooks)
        PENDING.hooks.apply_now()


def _carry(active: ActivePolicy, server_args: Any) -> None:
    if _START_SCHEDULERS not in PENDING.hooks.targets:
        from sglang.srt.plugins.hook_registry import HookType

        PENDING.hooks.register(_START_SCHEDULERS, _start_schedulers, HookType.AROUND)
        PENDING.hooks.apply_now()
    server_args._kv_policy = active.digest
    server_args._kv_policy_handshake = launch.hand_on(active)


# -- the schedulers ---------------------------------------------------------------------------------------------------


def _start_schedulers(original: Callable[..., Any], cls: type, server_args: Any, *args: Any, **kwargs: Any) -> Any:
    """Around the start of the scheduler processes: being ready includes having proved the policy."""
    started, processes = original(cls, server_args, *args, **kwargs)
    active, directory = current(), getattr(server_args, "_kv_policy_handshake", None)
    if active is None or directory is None:
        return started, processes
    wait_for_ready = started.wait_for_ready

    def wait_for_ready_and_verify() -> None:
        try:
            wait_for_ready()
            pids = [pid for info in started.scheduler_infos for pid in info.get("scheduler_pids", ())]
            pids = pids or [process.pid for process in processes]
            reports = handshake.verify(directory, active.digest, pids, allowlist="SGLANG_PLUGINS")
        except handshake.Mismatch as error:
            for process in processes:
                process.kill()
            raise SystemExit(f"kvpolicy: {active.source}: not started: {error}") from None
        except BaseException as error:
            if why := handshake.failure(directory):
                raise SystemExit(why) from error
            raise
        finally:
            handshake.discard(directory)
        started.scheduler_infos[0]["kvpolicy"] = _verified(active, reports)
        try:
            live_http.register(active, server_args, PENDING.hooks)
        except Exception:
            active.note_fallback("live", "this server has no /kvpolicy: adding it to the engine's app raised")

    started.wait_for_ready = wait_for_ready_and_verify
    return started, processes


def _verified(active: ActivePolicy, reports: list[dict[str, Any]]) -> dict[str, Any]:
    """The start's facts for `/server_info`, and one line that says them."""
    launch.say_verified(active, reports, f"{len(reports)} scheduler process(es)")
    facts = {key: value for key, value in reports[0].items() if not key.endswith(("pid", "rank"))}
    return {**facts, "verified_schedulers": len(reports)}
