"""Where a policy's text comes from: a file, a shipped policy by name, or given bytes."""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path

from kvpolicy.language.fields import did_you_mean
from kvpolicy.language.source import MAX_BYTES, Problem, Source, decode

__all__ = ["BUILTIN", "locate", "read", "shipped"]

BUILTIN = "builtin:"


@cache
def shipped() -> dict[str, Path]:
    """The shipped policies by name: inside the wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_policies", package.parent / "policies"):
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return {}


def locate(argument: str) -> tuple[str, Path]:
    """(name to show, file) of what a person typed: `builtin:NAME`, a path, or the bare name of a shipped policy.

    A file of that name wins over a shipped policy, a folder does not.

    Raises:
        Problem: KVP101 when there is neither.
    """
    if argument.startswith(BUILTIN):
        return argument, _builtin(argument.removeprefix(BUILTIN), "KVP101")
    path = Path(argument)
    known = shipped()
    if not argument.strip():
        raise Problem("KVP101", "the argument is empty", f"give a file, or a shipped policy: {', '.join(known)}")
    bare = os.sep not in argument and not argument.endswith((".yaml", ".yml"))
    name = argument.replace("-", "_")
    if bare and name in known and (not _exists(path) or path.is_dir()):
        return f"{BUILTIN}{name}", known[name]
    if bare and not _exists(path):
        guess = did_you_mean(name, list(known))
        raise Problem(
            "KVP101",
            f"there is no file and no shipped policy '{argument[:80]}'",
            guess or f"shipped: {', '.join(known)}",
        )
    return argument, path


def parent_of(reference: str, child: Source, folder: Path | None) -> tuple[str, Path]:
    """As :func:`locate`, for the value of `extends` in a file of ``folder`` (None: text that came without a file).

    Raises:
        Problem: KVP118 missing, KVP121 not local, KVP122 neither a builtin nor a path.
    """
    if reference.startswith(BUILTIN):
        return reference, _builtin(reference.removeprefix(BUILTIN), "KVP118")
    if "://" in reference or reference.startswith(("git@", "//")):
        raise Problem(
            "KVP121",
            f"`extends` reads local files only, not '{reference[:80]}'",
            "a policy must mean the same tomorrow: download the file and give its path",
        )
    if "\0" in reference or not reference.strip():
        raise Problem("KVP122", "`extends` names no file", "give builtin:NAME or a path relative to this file")
    path = (folder or Path()) / reference
    shown = os.path.normpath(os.path.join(os.path.dirname(child.name), reference)) if folder else reference
    if not _exists(path):
        name = reference.replace("-", "_")
        hint = f"did you mean '{BUILTIN}{name}'?" if name in shipped() else _near_file(path)
        raise Problem("KVP118", f"the parent '{reference[:80]}' does not exist", hint or f"looked for {shown}")
    return shown, path


def read(shown: str, path: Path, *, is_parent: bool = False) -> Source:
    """The text of a file.

    Raises:
        Problem: KVP101 (KVP118 for a parent) when it cannot be opened; otherwise as :func:`source.decode`.
    """
    code = "KVP118" if is_parent else "KVP101"
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
                raise Problem(code, "this is not a file")
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, IsADirectoryError):
            raise Problem(
                code, "this is a directory, not a policy file", f"name the files: {shown.rstrip('/')}/*.yaml"
            ) from None
        reason = getattr(error, "strerror", None) or str(error)
        hint = _near_file(path) if isinstance(error, FileNotFoundError) else None
        raise Problem(code, f"cannot open the file: {reason}", hint) from None
    return Source(shown, decode(raw))


def _builtin(name: str, code: str) -> Path:
    known = shipped()
    if name.replace("-", "_") not in known:
        raise Problem(
            code,
            f"there is no shipped policy '{name[:80]}'",
            did_you_mean(name, list(known)) or f"shipped: {', '.join(known)}",
        )
    return known[name.replace("-", "_")]


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _near_file(path: Path) -> str | None:
    try:
        names = [entry.name for entry in os.scandir(path.parent)][:1000]
    except (OSError, ValueError):
        return None
    return did_you_mean(path.name, names)
