"""The policy's way into child processes: the whole flattened document in one environment variable, with its digest.

Children never read the policy file, so a file that changes while a server starts changes nothing. Every process
computes the digest again from what it received.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any

from .active import Conflict, Setting
from .flags import CARRY_ENV

__all__ = ["Carried", "export", "read", "withdraw"]

# Linux refuses a single environment string above 128 KiB (MAX_ARG_STRLEN), with an error that names no cause.
_MAX_ENV_BYTES = 128 * 1024 - 64


@dataclass(slots=True)
class Carried:
    """What a launcher hands to its children."""

    digest: str
    flat: dict[str, Any]
    source: str  # the policy as the user named it
    handshake_dir: str
    settings: dict[str, Setting] = field(default_factory=dict)
    conflicts: list[Conflict] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)


def export(carried: Carried) -> None:
    """Put the policy into this process's environment, which spawned children inherit."""
    text = json.dumps(asdict(carried), separators=(",", ":"))
    packed = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    value = f"{os.getpid()}:{packed}"
    if len(CARRY_ENV) + 1 + len(value) > _MAX_ENV_BYTES:
        raise SystemExit(
            f"kvpolicy: {carried.source}: the policy is too large to hand to child processes "
            f"({len(value)} bytes packed, at most {_MAX_ENV_BYTES})"
        )
    os.environ[CARRY_ENV] = value


def withdraw() -> None:
    """Take the policy out of the environment again."""
    os.environ.pop(CARRY_ENV, None)


def read(value: str) -> Carried:
    """Unpack what :func:`export` wrote and check the digest. Raises ValueError on anything else."""
    from kvpolicy.language import digest_of

    try:
        data = json.loads(zlib.decompress(base64.b64decode(value.partition(":")[2], validate=True)))
        carried = Carried(
            digest=data["digest"],
            flat=data["flat"],
            source=data["source"],
            handshake_dir=data["handshake_dir"],
            settings={name: Setting(**setting) for name, setting in data["settings"].items()},
            conflicts=[Conflict(**conflict) for conflict in data["conflicts"]],
            origins=data["origins"],
        )
    except (ValueError, TypeError, KeyError, zlib.error) as error:
        raise ValueError(f"{CARRY_ENV} is damaged: {error}") from error
    found = digest_of(carried.flat)
    if found != carried.digest:
        raise ValueError(f"{CARRY_ENV} is damaged: its policy has digest {found[:12]}, not {carried.digest[:12]}")
    return carried
