"""Whether an SGLang process has a policy; see `kvpolicy.runtime.flags`, which decides it for every engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from kvpolicy.runtime import flags
from kvpolicy.runtime.flags import Role

__all__ = ["role_of_process"]


def role_of_process(argv: Sequence[str], environ: Mapping[str, str], *, is_spawned: bool) -> Role:
    """`python -m sglang.launch_server --help` should list the flag. (`sglang serve --help` loads no plugins.)"""
    is_launcher = os.path.basename(argv[0] if argv else "") == "launch_server.py"
    is_help = is_launcher and not {"-h", "--help"}.isdisjoint(argv)
    return flags.role_of_process(argv, environ, is_spawned=is_spawned, is_help=is_help)
