"""Size and build SGLang's KV pool with the dtypes that the policy gives single layers.

Two hooks: what a token costs, before the pool is sized, and which class is built. Both ask the same table, so tokens
that are promised are tokens that are there; a scheduler that built another pool all the same does not start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvpolicy.facts.dtypes import AUTO, canonical
from kvpolicy.facts.layer_dtypes import dtypes_by_layer
from kvpolicy.runtime.active import ActivePolicy, Setting
from kvpolicy.runtime.support import Verdict, refusal, yield_to_engine

from .pool_support import SECTION, supported

__all__ = ["CONSTRUCTION", "SIZING", "install", "is_asked_for"]

SIZING = "sglang.srt.model_executor.pool_configurator.DefaultPoolConfigurator._compute_cell_size"
CONSTRUCTION = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._build_mha_kv_pool"


def is_asked_for(active: ActivePolicy) -> bool:
    """Whether the policy gives single layers a dtype, and no flag or feature has won over that already."""
    return bool(active.compiled.cache.layer_dtypes) and all(one.setting != SECTION for one in active.conflicts)


def install(active: ActivePolicy, hooks: Any) -> Callable[[Any], None]:
    """Register the pool's hooks of `active` in a scheduler, if its policy asks for them.

    What is to be called with the pool once the scheduler is built: SystemExit where it is not the one that was sized.
    """
    if not is_asked_for(active):
        return lambda _pool: None
    from sglang.srt.plugins.hook_registry import HookType

    pools = _Pools(active)
    hooks.register(SIZING, pools.cell_bytes, HookType.AROUND)
    hooks.register(CONSTRUCTION, pools.build, HookType.AROUND)
    return pools.require_built


class _Pools:
    """The two hooks, and what they decided once."""

    def __init__(self, active: ActivePolicy) -> None:
        self.active = active
        self._verdict: Verdict | None = None
        self.has_built = False

    def _is_ours(self, configurator: Any) -> bool:
        """SystemExit where the policy cannot be honoured and `on_conflict` is `error`."""
        if self._verdict is None:
            self._verdict = supported(configurator.server_args, configurator)
            if refused := refusal(self.active, self._verdict):
                raise SystemExit(refused)
            if self._verdict.kind != "supported":
                yield_to_engine(self.active, self._verdict)
        return self._verdict.kind == "supported"

    def cell_bytes(self, original: Callable[..., int], sizer: Any, kvc: Any, num_layers: int, *args: Any) -> int:
        """Around `_compute_cell_size`: bytes of K and V a token on this rank, which upstream counts with one dtype."""
        uniform = original(sizer, kvc, num_layers, *args)
        if not self._is_ours(kvc):
            return uniform
        dtypes = self._dtypes(kvc)
        return uniform * sum(dtype.itemsize for dtype in dtypes) // (kvc.kv_cache_dtype.itemsize * len(dtypes))

    def build(self, original: Callable[..., Any], kvc: Any, *args: Any, mha_pool_class: type, **kwargs: Any) -> Any:
        """Around `_build_mha_kv_pool`."""
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        from .pool_layers import LayeredKVPool

        is_plain = mha_pool_class is MHATokenToKVPool and kwargs.get("quant_method") is None
        if not (is_plain and self._is_ours(kvc)):
            return original(kvc, *args, mha_pool_class=mha_pool_class, **kwargs)
        dtypes = self._dtypes(kvc)
        if set(dtypes) != {kvc.kv_cache_dtype}:
            mha_pool_class = LayeredKVPool.of(dtypes)
        self.has_built = True
        return original(kvc, *args, mha_pool_class=mha_pool_class, **kwargs)

    def require_built(self, pool: Any) -> None:
        """SystemExit where another pool was built than the one whose layers were counted; the status says them."""
        if self._verdict is not None and self._verdict.kind != "supported":
            return
        origin = self.active.origin(SECTION)
        if not self.has_built:
            raise SystemExit(
                f"kvpolicy: {self.active.source}: the policy cannot be honoured:\n"
                f"  conflict: {SECTION}: SGLang built a {type(pool).__name__}, which has one dtype (policy: {origin})\n"
                "  help: drop the layers"
            )
        layers = {text: canonical(name) for text, name in self.active.compiled.cache.layer_dtypes}
        self.active.settings[SECTION] = Setting(SECTION, "layers", layers, layers, origin=origin)

    def _dtypes(self, kvc: Any) -> list[Any]:
        """The torch dtype of each layer of this rank, in order."""
        from .pool_layers import TORCH_DTYPES

        asked = self.active.compiled.cache.layer_dtypes
        try:
            names = dtypes_by_layer(asked, kvc.model_config.num_hidden_layers)
            known = {**TORCH_DTYPES, AUTO: kvc.model_config.dtype}
            by_layer = {layer: known[name] for layer, name in names.items()}
        except ValueError as error:
            raise SystemExit(
                f"kvpolicy: {self.active.source}: {error} (policy: {self.active.origin(SECTION)})"
            ) from None
        except KeyError as error:
            raise SystemExit(
                f"kvpolicy: {self.active.source}: no layer can have {error.args[0]} of its own in SGLang "
                f"(policy: {self.active.origin(SECTION)}); those that can be mixed: {', '.join(TORCH_DTYPES)}"
            ) from None
        return [
            by_layer.get(layer, kvc.kv_cache_dtype)
            for layer in range(kvc.layer_info.start_layer, kvc.layer_info.end_layer)
        ]
