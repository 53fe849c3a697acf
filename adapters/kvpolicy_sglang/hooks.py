"""Hooks through SGLang's own registry, with the check that it lacks: that every hook took."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang.srt.plugins.hook_registry import HookType

__all__ = ["HookSet"]


class HookSet:
    """The hooks kvpolicy registered in this process; the interface of SGLang's `HookRegistry` with memory."""

    def __init__(self) -> None:
        self.targets: list[str] = []

    def register(self, target: str, hook: Callable[..., Any], hook_type: HookType) -> None:
        """Register `hook` on a dotted path. SGLang applies it once every plugin has run."""
        from sglang.srt.plugins.hook_registry import HookRegistry, HookSource

        HookRegistry.register(target, hook, hook_type, source=HookSource("kvpolicy", "kvpolicy"))
        self.targets.append(target)

    def apply_now(self) -> None:
        """Apply hooks that were added after plugin loading, and check them."""
        from sglang.srt.plugins.hook_registry import HookRegistry

        HookRegistry.apply_hooks()
        self.verify()

    def verify(self) -> None:
        """SystemExit naming every hook that did not take: the registry logs such a failure and goes on."""
        from sglang.srt.plugins.hook_registry import HookRegistry

        missing = [target for target in self.targets if target not in HookRegistry._patched]
        if missing:
            raise SystemExit(
                "kvpolicy: this SGLang has no place for the policy: these hooks did not apply (see the log above): "
                + ", ".join(missing)
            )
