"""How a process learns whether it has a policy: `--kv-policy`, `KVPOLICY_FILE`, a `--config` file, or a carried one.

Read before any engine module is imported, so it stays free of them.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence

__all__ = ["CARRY_ENV", "DISABLE_ENV", "FILE_ENV", "FLAG", "Role", "disabled", "role_of_process"]

FLAG = "--kv-policy"
FILE_ENV = "KVPOLICY_FILE"  # a policy file or shipped name; the flag wins over it
DISABLE_ENV = "KVPOLICY_DISABLE"  # "1": stock behaviour, whatever the flag says
CARRY_ENV = "KVPOLICY_CARRY"  # written by a launcher for its children, never by a person


class Role(enum.Enum):
    """What a process is to kvpolicy."""

    NONE = "none"  # no policy: leave the process alone
    LAUNCHER = "launcher"  # parses arguments, loads the policy, starts the schedulers
    CHILD = "child"  # started by such a launcher


def disabled(environ: Mapping[str, str]) -> bool:
    """Whether the operator switched kvpolicy off for this start."""
    return environ.get(DISABLE_ENV, "").strip().lower() in {"1", "true", "yes", "on"}


def role_of_process(argv: Sequence[str], environ: Mapping[str, str], *, is_spawned: bool) -> Role:
    """Decide from the command line, the environment, and whether multiprocessing started this process.

    A process that inherits a carried policy otherwise (a server started by a server) is no child in this sense. With
    `KVPOLICY_DISABLE=1` only a launcher given the flag is one: it must still accept the flag.
    """
    if disabled(environ):
        return Role.LAUNCHER if _flag_given(argv) and not is_spawned else Role.NONE  # children inherit argv
    carried = environ.get(CARRY_ENV, "")
    is_own = bool(carried) and carried.startswith(f"{os.getpid()}:")
    if carried and is_spawned and not is_own:
        return Role.CHILD
    if is_own or environ.get(FILE_ENV) or _flag_given(argv) or _help_asked(argv):
        return Role.LAUNCHER
    return Role.NONE


def _flag_given(argv: Sequence[str]) -> bool:
    return any(arg == FLAG or arg.startswith(FLAG + "=") for arg in argv) or _config_has_flag(argv)


def _help_asked(argv: Sequence[str]) -> bool:
    """`python -m sglang.launch_server --help` should list the flag. (`sglang serve --help` loads no plugins.)"""
    return os.path.basename(argv[0] if argv else "") == "launch_server.py" and not {"-h", "--help"}.isdisjoint(argv)


def _config_has_flag(argv: Sequence[str]) -> bool:
    """Whether SGLang's own `--config FILE` (YAML, merged into argv) names a policy. SGLang reports a bad file."""
    if "--config" not in argv:
        return False
    where = list(argv).index("--config") + 1
    if where >= len(argv):
        return False
    import yaml

    try:
        with open(argv[where], encoding="utf-8") as file:
            config = yaml.safe_load(file)
    except (OSError, ValueError, yaml.YAMLError):
        return False
    return isinstance(config, dict) and FLAG.removeprefix("--") in config
