"""The entry point vLLM calls in every process (group `vllm.general_plugins`).

vLLM loads plugins before it adds its arguments, and where an engine or a worker is built. It logs an import that fails
and goes on, so this module imports almost nothing until a policy is asked for; what `load` raises is not swallowed.

Three cases, decided from argv, the environment and the `--config` file alone:

- nothing asks for a policy: no hook is installed and no engine module imported;
- a launcher with a policy: the argument hooks of :mod:`.launcher`;
- a child of such a launcher (it finds the carried policy in its environment): the hooks of :mod:`.engine_core` where
  an engine is being built, those of :mod:`.launcher` where requests are received. A worker needs none.
"""

from __future__ import annotations

import multiprocessing
import os
import sys

__all__ = ["load"]

_PROGRAMS = {"vllm", "main.py", "api_server.py", "entry.py"}


def load() -> None:
    """Install the hooks this process needs. Raises nothing but SystemExit; safe to call again."""
    from kvpolicy.runtime.flags import Role, role_of_process

    is_help = os.path.basename(sys.argv[0]) in _PROGRAMS and any(
        arg == "-h" or arg.partition("=")[0] == "--help" for arg in sys.argv
    )
    is_spawned = multiprocessing.parent_process() is not None
    role = role_of_process(sys.argv, os.environ, is_spawned=is_spawned, is_help=is_help)
    if role is Role.NONE:
        return
    try:
        from . import probe

        probe.require_supported_engine()
        probe.adopt_logging()
        if role is Role.LAUNCHER:
            from . import launcher

            launcher.register()
            return
        if "vllm.engine.arg_utils" in sys.modules:
            from . import launcher

            launcher.register_child()
        if "vllm.v1.engine.core" in sys.modules:
            from . import engine_core

            engine_core.register()
    except Exception as error:
        import traceback

        traceback.print_exc()
        raise SystemExit(f"kvpolicy: cannot start with a policy: {type(error).__name__}: {error}") from error
