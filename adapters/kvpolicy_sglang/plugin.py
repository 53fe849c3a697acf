"""The entry point SGLang calls in every process (group `sglang.srt.plugins`).

SGLang loads plugins before it parses arguments, and it swallows their exceptions. So this module imports almost
nothing until a policy is asked for, and turns every failure into a `SystemExit`, which is not swallowed: a server
never runs without the policy it was started with.

Three cases, decided from argv, the environment and the `--config` file alone:

- nothing asks for a policy: no hook is registered and no engine module imported;
- a launcher with a policy: the argument hooks of :mod:`.launcher`;
- a child of such a launcher (it finds the carried policy in its environment): the hooks of :mod:`.scheduler`.
"""

from __future__ import annotations

import multiprocessing
import os
import sys

__all__ = ["load"]


def load() -> None:
    """Register the hooks this process needs. Raises nothing but SystemExit."""
    from kvpolicy.runtime.flags import Role

    from . import flags

    role = flags.role_of_process(sys.argv, os.environ, is_spawned=multiprocessing.parent_process() is not None)
    if role is Role.NONE:
        return
    try:
        from . import probe

        probe.require_supported_engine()
        if role is Role.CHILD:
            from . import scheduler

            scheduler.register()
        else:
            from . import launcher

            launcher.register()
    except Exception as error:  # SGLang would log this and serve without the policy
        import traceback

        traceback.print_exc()
        raise SystemExit(f"kvpolicy: cannot start with a policy: {type(error).__name__}: {error}") from error
