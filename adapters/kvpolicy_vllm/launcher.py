"""The launcher's side: accept the flag, load and carry the policy, resolve, and verify the engines.

It runs in the process that parses arguments (`vllm serve`, `vllm bench`) or constructs the `LLM`. Policy errors end the
start before a model is looked at. API servers that a launcher starts beside the engines take the carried policy.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvpolicy.runtime import carry, flags, handshake, launch
from kvpolicy.runtime.active import ActivePolicy, current, set_current
from kvpolicy.runtime.loading import activate, load_active
from kvpolicy.runtime.support import refusal

from . import api_server, cache_hooks, engine_core, hooks, probe, resolution
from .worker import CONFIG_KEY

__all__ = ["PENDING", "Pending", "register", "register_child"]


@dataclass(slots=True)
class Pending:
    """What this process was asked to run, by its command line or by :func:`kvpolicy_vllm.LLM`."""

    active: ActivePolicy | None = None  # as loaded; each engine gets a copy
    explicit: Mapping[str, str] | None = None  # field -> how the operator gave it; None: not known


PENDING = Pending()


def register() -> None:
    """Hook argument parsing and configuration; called while plugins load, before arguments are added."""
    from vllm.engine.arg_utils import EngineArgs

    hooks.wrap(EngineArgs, "add_cli_args", _add_flag)
    hooks.wrap(EngineArgs, "from_cli_args", _from_cli_args)
    if not flags.disabled(os.environ):
        hooks.wrap(EngineArgs, "create_engine_config", _create_engine_config)


def register_child() -> None:
    """Hook the configuration in an API server that a launcher started; its arguments arrive parsed."""
    from vllm.engine.arg_utils import EngineArgs

    hooks.wrap(EngineArgs, "create_engine_config", _create_engine_config)


# -- the flag ---------------------------------------------------------------------------------------------------------


def _add_flag(original: Callable[..., Any], parser: Any, *args: Any, **kwargs: Any) -> Any:
    """Around `EngineArgs.add_cli_args`: our flag, and a note of which of the fields that matter were really given."""
    parser = original(parser, *args, **kwargs)
    if all(flags.FLAG not in action.option_strings for action in parser._actions):
        launch.add_flag(parser, resolution.FIELDS)
    return parser


def _from_cli_args(original: Callable[..., Any], cls: type, args: argparse.Namespace, *more: Any, **kwargs: Any) -> Any:
    if PENDING.active is None:  # `vllm serve` comes here twice: what the policy warns of is said once
        PENDING.active = launch.policy_in(args, "vllm")
    if PENDING.active is not None:
        hooks.verify()
    PENDING.explicit = launch.explicit_in(args)
    return original(cls, args, *more, **kwargs)


# -- configuration ----------------------------------------------------------------------------------------------------


def _create_engine_config(original: Callable[..., Any], engine_args: Any, *args: Any, **kwargs: Any) -> Any:
    """Around `EngineArgs.create_engine_config`: ask before it, compare after it, then carry the policy along."""
    if (inherited := _inherited()) is not None:
        active = activate(inherited, "vllm")
        resolution.inherit(active, engine_args)
        _put_into_configuration(active, engine_args)
        set_current(active)
        api_server.register()
        return original(engine_args, *args, **kwargs)

    active = _asked_for()
    if active is None:
        carry.withdraw()  # of an earlier engine in this process
        set_current(None)
        return original(engine_args, *args, **kwargs)
    explicit = PENDING.explicit
    if explicit is None:
        explicit = resolution.explicit_by_value(engine_args)
    resolution.ask(active, engine_args, explicit)
    _put_into_configuration(active, engine_args)
    vllm_config = original(engine_args, *args, **kwargs)
    resolution.skip_layers(active, vllm_config, explicit)
    resolution.compare_resolved(active, vllm_config)
    _refuse(active, vllm_config)
    _carry(active)
    api_server.register()
    return vllm_config


def _inherited() -> carry.Carried | None:
    """What the launcher of this API server carried; None in a launcher."""
    packed = os.environ.get(flags.CARRY_ENV)
    return None if packed is None or packed.startswith(f"{os.getpid()}:") or not _is_spawned() else carry.read(packed)


def _is_spawned() -> bool:
    import multiprocessing

    return multiprocessing.parent_process() is not None


def _asked_for() -> ActivePolicy | None:
    """A policy of its own for the engine that is being configured; None: nobody asks for one."""
    if PENDING.active is None and (source := os.environ.get(flags.FILE_ENV)):
        return load_active(source, "vllm")
    if PENDING.active is None:
        return None
    return dataclasses.replace(PENDING.active, settings={}, conflicts=[], fallbacks=Counter())


def _put_into_configuration(active: ActivePolicy, engine_args: Any) -> None:
    """The flattened policy and its digest, which vLLM hands to every engine and worker."""
    before = engine_args.additional_config or {}
    if not isinstance(before, dict):
        raise SystemExit(f"kvpolicy: {active.source}: a policy cannot be used with --additional-config as an object")
    engine_args.additional_config = {**before, CONFIG_KEY: {"digest": active.digest, "policy": active.flat}}


def _refuse(active: ActivePolicy, vllm_config: Any) -> None:
    """Where the configuration alone tells that the policy cannot work, end before a model is loaded."""
    parallel = vllm_config.parallel_config
    for flag, value in (
        ("--distributed-executor-backend ray", parallel.distributed_executor_backend),
        ("--data-parallel-backend ray", parallel.data_parallel_backend),
    ):
        if value == "ray":
            raise SystemExit(
                f"kvpolicy: {active.source}: a policy cannot be used with {flag}: Ray actors do not inherit it"
            )
    if refused := refusal(active, cache_hooks.start_verdict(active, vllm_config, None)):
        raise SystemExit(refused)


def _carry(active: ActivePolicy) -> None:
    import vllm.v1.engine.utils as engine_utils

    engine_core.register()  # for engines in this process, and in processes forked from it, which load no plugins
    hooks.wrap(engine_utils, "wait_for_engine_startup", _wait_for_engine_startup)
    hooks.verify()
    launch.hand_on(active)


# -- the engines ------------------------------------------------------------------------------------------------------


def _wait_for_engine_startup(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around the wait for the engine processes: being ready includes having proved the policy."""
    active, packed = current(), os.environ.get(flags.CARRY_ENV)
    if active is None or packed is None:
        return original(*args, **kwargs)
    directory = carry.read(packed).handshake_dir
    try:
        result = original(*args, **kwargs)
        pids = probe.local_engine_pids((*args, *kwargs.values()))
        if pids is None:
            return result
        reports = handshake.verify(directory, active.digest, pids, what="engine", allowlist="VLLM_PLUGINS")
    except handshake.Mismatch as error:
        raise SystemExit(f"kvpolicy: {active.source}: not started: {error}") from None
    except Exception as error:
        if why := handshake.failure(directory):
            raise SystemExit(why) from error
        raise
    finally:
        handshake.discard(directory)
    workers = sum(int(report["workers"]) for report in reports)
    launch.say_verified(active, reports, f"{len(reports)} engine(s) with {workers} worker(s)")
    return result
