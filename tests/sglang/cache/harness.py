"""Build one of SGLang's caches with kvpolicy attached, outside a server: what `install` does in a scheduler, called directly."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kvpolicy_sglang.active import ActivePolicy
from kvpolicy_sglang.cache_hooks import build_cache


class StandIn:
    def __init__(self): self.nodes={}; self.held=[]
    def add(self,n): self.nodes[n]=None
    def discard(self,n): self.nodes.pop(n,None)
    def begin(self): self.held=[]
    def pop(self):
        if not self.nodes: return None
        n=min(self.nodes); self.nodes.pop(n); return n
    def end(self): pass
    def reset(self,p): self.nodes={}


def build_ours(params: Any, policy: str, factory: Callable[[Any], Any]) -> tuple[Any, ActivePolicy]:
    eviction = SimpleNamespace(make_index=lambda pool: StandIn(), needs_metadata=False)
    active = ActivePolicy(policy=None, flat={}, digest="", role="scheduler", compiled=SimpleNamespace(eviction=eviction))
    cache = build_cache(active, lambda ctx: factory(ctx.params), SimpleNamespace(params=params))
    return cache, active
