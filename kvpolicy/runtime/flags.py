"""How a process learns whether it has a policy: `--kv-policy`, `KVPOLICY_FILE`, a `--config` file, or a carried one.

Read by every process of every engine that has kvpolicy installed, before anything heavy: standard library only.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence

__all__ = [
    "CARRY_ENV",
    "DISABLE_ENV",
    "FILE_ENV",
    "FLAG",
    "FLAG_HELP",
    "UNTESTED_ENV",
    "WHY_ENV",
    "Role",
    "disabled",
    "explains",
    "role_of_process",
]

FLAG = "--kv-policy"
FLAG_HELP = (
    "KV-cache policy: a YAML file or the name of a shipped policy (kvpolicy list). It decides page size, KV dtype, "
    "attention backend and what is evicted."
)
FILE_ENV = "KVPOLICY_FILE"  # a policy file or shipped name; the flag wins over it
DISABLE_ENV = "KVPOLICY_DISABLE"  # "1": stock behaviour, whatever the flag says
CARRY_ENV = "KVPOLICY_CARRY"  # written by a launcher for its children, never by a person
WHY_ENV = "KVPOLICY_WHY"  # "1": remember evictions under any order, to explain misses; "0": under none
UNTESTED_ENV = "KVPOLICY_ALLOW_UNTESTED_ENGINE"  # "1": try a version outside the supported range


class Role(enum.Enum):
    """What a process is to kvpolicy."""

    NONE = "none"  # no policy: leave the process alone
    LAUNCHER = "launcher"  # parses arguments, loads the policy, starts the schedulers
    CHILD = "child"  # started by such a launcher


def disabled(environ: Mapping[str, str]) -> bool:
    """Whether the operator switched kvpolicy off for this start."""
    return environ.get(DISABLE_ENV, "").strip().lower() in {"1", "true", "yes", "on"}


def explains(environ: Mapping[str, str], needs_metadata: bool) -> bool:
    """Whether evictions are remembered, to say why something is missing.

    Of itself where the policy keeps metadata anyway: the memory then costs little. For an engine's own order it would
    be most of the cost, so there it must be asked for.
    """
    asked = environ.get(WHY_ENV, "").strip().lower()
    if asked in {"0", "false", "no", "off"}:
        return False
    return needs_metadata or asked in {"1", "true", "yes", "on"}


def role_of_process(
    argv: Sequence[str], environ: Mapping[str, str], *, is_spawned: bool, is_help: bool = False
) -> Role:
    """Decide from the command line, the environment, and whether multiprocessing started this process.

    A process that inherits a carried policy otherwise (a server started by a server) is no child in this sense. With
    `KVPOLICY_DISABLE=1` only a launcher given the flag is one: it must still accept the flag. `is_help`: this command
    line prints the engine's options, which should list the flag.
    """
    if disabled(environ):
        return Role.LAUNCHER if _flag_given(argv) and not is_spawned else Role.NONE  # children inherit argv
    carried = environ.get(CARRY_ENV, "")
    is_own = bool(carried) and carried.startswith(f"{os.getpid()}:")
    if carried and is_spawned and not is_own:
        return Role.CHILD
    if is_own or environ.get(FILE_ENV) or _flag_given(argv) or is_help:
        return Role.LAUNCHER
    return Role.NONE


def _flag_given(argv: Sequence[str]) -> bool:
    return any(arg == FLAG or arg.startswith(FLAG + "=") for arg in argv) or _config_has_flag(argv)


def _config_has_flag(argv: Sequence[str]) -> bool:
    """Whether the engine's `--config FILE` (YAML, merged into argv) names a policy; the engine reports bad files."""
    path = None
    for at, arg in enumerate(argv):
        if arg == "--config" and at + 1 < len(argv):
            path = argv[at + 1]
        elif arg.startswith("--config="):
            path = arg.partition("=")[2]
    if path is None:
        return False
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            config = yaml.safe_load(file)
    except (OSError, ValueError, yaml.YAMLError):
        return False
    return isinstance(config, dict) and FLAG.removeprefix("--") in config
