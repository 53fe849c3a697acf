"""What this SGLang offers: features by looking, the supported range by version."""

from __future__ import annotations

from typing import Any

from kvpolicy.runtime.support import require_supported

__all__ = [
    "engine_version",
    "overrider",
    "ranks",
    "require_supported_engine",
    "resolve_seam",
    "resolved",
    "size",
]


def engine_version() -> str:
    """The running SGLang's version as it states it itself (it may not be an installed distribution)."""
    from sglang.version import __version__

    return str(__version__)


def require_supported_engine() -> None:
    """SystemExit where the running SGLang is outside the supported range."""
    require_supported("sglang", "SGLang", engine_version())


def resolve_seam(server_args_class: type) -> str:
    """The ServerArgs method that resolves arguments: a declared one from 0.5.20, construction before."""
    return "resolve_once" if hasattr(server_args_class, "resolve_once") else "__post_init__"


def resolved(server_args: Any, name: str) -> Any:
    """The value of one field after the engine's resolution (0.5.20+ keeps decisions beside the record)."""
    try:
        from sglang.srt.arg_groups.overrides import resolution_result
    except ImportError:
        return getattr(server_args, name, None)
    return resolution_result(server_args, name)


def ranks(scheduler: Any) -> dict[str, int]:
    """Where a scheduler stands: tp_rank, pp_rank, dp_rank, and attn_tp_rank (0: the one that answers and reports)."""
    place = _place(scheduler)
    return {name: getattr(place, name) or 0 for name in ("tp_rank", "pp_rank", "dp_rank", "attn_tp_rank")}


def size(scheduler: Any, name: str) -> int:
    """One of a scheduler's parallel sizes, like `pp_size`; 1 where this version has no such one."""
    return int(getattr(_place(scheduler), name, 1) or 1)


def _place(scheduler: Any) -> Any:
    place = getattr(scheduler, "ps", None)
    if place is None:  # later versions keep it beside the scheduler
        from sglang.srt.runtime_context import get_parallel

        place = get_parallel()
    return place


def overrider(server_args: Any, name: str) -> str | None:
    """Which engine rule set `name` last, or None where the engine does not say."""
    for source, fields in reversed(getattr(server_args, "_resolved_overrides", None) or ()):
        if name in fields:
            return str(source)
    return None
