"""Size and build SGLang's KV pool with what the policy stores in it: dtypes of single layers, or int8 and int4.

Two hooks: what a token costs, before the pool is sized, and which class is built. Both ask the same table, so tokens
that are promised are tokens that are there; a scheduler that built another pool all the same does not start.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from kvpolicy.facts.dtypes import AUTO, canonical
from kvpolicy.facts.encodings import ENCODED
from kvpolicy.facts.layer_dtypes import dtypes_by_layer
from kvpolicy.runtime.active import ActivePolicy, Setting
from kvpolicy.runtime.support import Verdict, refusal, yield_to_engine

from . import pool_support
from .hooks import HookSet

__all__ = ["CONSTRUCTION", "SIZING", "install", "refused"]

SIZING = "sglang.srt.model_executor.pool_configurator.DefaultPoolConfigurator._compute_cell_size"
CONSTRUCTION = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._build_mha_kv_pool"
TRITON = "sglang.srt.layers.attention.triton_backend.TritonAttnBackend.__init__"


def section_of(active: ActivePolicy) -> str | None:
    """What of the policy asks for a pool of ours, unless a flag or feature has won over it already."""
    chosen = active.settings.get("kv_cache_dtype")
    if chosen is not None and chosen.effective in ENCODED:
        section = pool_support.ENCODING
    elif active.compiled.cache.layer_dtypes:
        section = pool_support.LAYERS
    else:
        return None
    return section if all(one.setting != section for one in active.conflicts) else None


def refused(active: ActivePolicy, server_args: Any) -> str | None:
    """Why the server must not start with these arguments, in words."""
    section = section_of(active)
    return None if section is None else refusal(active, pool_support.supported(server_args, active=active))


def install(active: ActivePolicy, hooks: HookSet) -> Callable[[Any], None]:
    """Register the pool's hooks of `active` in a scheduler, if its policy asks for them.

    What is to be called with the pool once the scheduler is built: SystemExit where it is not the one that was sized.
    """
    section = section_of(active)
    if section is None:
        return lambda _pool: None
    from sglang.srt.plugins.hook_registry import HookType

    pools: Pools = EncodedPools(active, hooks) if section == pool_support.ENCODING else LayeredPools(active)
    hooks.register(SIZING, pools.cell_bytes, HookType.AROUND)
    hooks.register(CONSTRUCTION, pools.build, HookType.AROUND)
    return pools.require_built


class Pools(ABC):
    """The two hooks, and what they decided once."""

    section: str  # of the policy
    drop: str  # what to take out of the policy, in words

    def __init__(self, active: ActivePolicy) -> None:
        self.active = active
        self._verdict: Verdict | None = None
        self.has_built = False

    @abstractmethod
    def cell_of(self, uniform_bytes: int, kvc: Any) -> int:
        """Bytes of K and V a token on this rank, from what upstream counts with one dtype."""

    @abstractmethod
    def class_of(self, kvc: Any) -> type | None:
        """The pool class; None where upstream's does."""

    @abstractmethod
    def say_built(self) -> None:
        """The pool is in use: the status says so."""

    def _is_ours(self, configurator: Any) -> bool:
        """SystemExit where the policy cannot be honoured and `on_conflict` is `error`."""
        if self._verdict is None:
            self._verdict = pool_support.supported(configurator.server_args, configurator, active=self.active)
            if refused := refusal(self.active, self._verdict):
                raise SystemExit(refused)
            if self._verdict.kind != "supported":
                yield_to_engine(self.active, self._verdict)
        return self._verdict.kind == "supported"

    def cell_bytes(self, original: Callable[..., int], sizer: Any, kvc: Any, num_layers: int, *args: Any) -> int:
        """Around `_compute_cell_size`."""
        uniform = original(sizer, kvc, num_layers, *args)
        return self.cell_of(uniform, kvc) if self._is_ours(kvc) else uniform

    def build(self, original: Callable[..., Any], kvc: Any, *args: Any, mha_pool_class: type, **kwargs: Any) -> Any:
        """Around `_build_mha_kv_pool`."""
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        is_plain = mha_pool_class is MHATokenToKVPool and kwargs.get("quant_method") is None
        if not (is_plain and self._is_ours(kvc)):
            return original(kvc, *args, mha_pool_class=mha_pool_class, **kwargs)
        mha_pool_class = self.class_of(kvc) or mha_pool_class
        pool = original(kvc, *args, mha_pool_class=mha_pool_class, **kwargs)
        self.has_built = isinstance(pool, mha_pool_class)
        return pool

    def require_built(self, pool: Any) -> None:
        """SystemExit where another pool was built than the one that was sized; the status says what is in it."""
        if self._verdict is not None and self._verdict.kind != "supported":
            return
        if not self.has_built:
            raise SystemExit(
                f"kvpolicy: {self.active.source}: the policy cannot be honoured:\n"
                f"  conflict: {self.section}: SGLang built a {type(pool).__name__}, which has one dtype "
                f"(policy: {self.active.origin(self.section)})\n  help: {self.drop}"
            )
        self.say_built()


class LayeredPools(Pools):
    """Dtypes of single layers."""

    section, drop = pool_support.LAYERS, "drop the layers"

    def cell_of(self, uniform_bytes: int, kvc: Any) -> int:
        dtypes = self._dtypes(kvc)
        return uniform_bytes * sum(dtype.itemsize for dtype in dtypes) // (kvc.kv_cache_dtype.itemsize * len(dtypes))

    def class_of(self, kvc: Any) -> type | None:
        from .pool_layers import LayeredKVPool

        dtypes = self._dtypes(kvc)
        return LayeredKVPool.of(dtypes) if set(dtypes) != {kvc.kv_cache_dtype} else None

    def say_built(self) -> None:
        layers = {text: canonical(name) for text, name in self.active.compiled.cache.layer_dtypes}
        origin = self.active.origin(self.section)
        self.active.settings[self.section] = Setting(self.section, "layers", layers, layers, origin=origin)

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
                f"kvpolicy: {self.active.source}: {error} (policy: {self.active.origin(self.section)})"
            ) from None
        except KeyError as error:
            raise SystemExit(
                f"kvpolicy: {self.active.source}: no layer can have {error.args[0]} of its own in SGLang "
                f"(policy: {self.active.origin(self.section)}); those that can be mixed: {', '.join(TORCH_DTYPES)}"
            ) from None
        return [
            by_layer.get(layer, kvc.kv_cache_dtype)
            for layer in range(kvc.layer_info.start_layer, kvc.layer_info.end_layer)
        ]


class EncodedPools(Pools):
    """int8 and int4 in all layers."""

    section, drop = pool_support.ENCODING, "take another KV dtype"

    def __init__(self, active: ActivePolicy, hooks: HookSet) -> None:
        super().__init__(active)
        self.hooks = hooks
        self.encoding = ENCODED[active.settings["kv_cache_dtype"].effective]

    def cell_of(self, uniform_bytes: int, kvc: Any) -> int:
        head_dim = kvc.model_config.head_dim
        return uniform_bytes * self.encoding.head_bytes(head_dim) // (head_dim * kvc.kv_cache_dtype.itemsize)

    def class_of(self, kvc: Any) -> type | None:
        from .pool_quant import QuantizedKVPool

        if "triton" in pool_support.backends_of(kvc.server_args):
            self._wrap_triton()
        return QuantizedKVPool.of(self.encoding)

    def _wrap_triton(self) -> None:
        """Before the backend is made, whose module is not imported where another is in use."""
        from sglang.srt.plugins.hook_registry import HookType

        from .pool_quant_attention import wrap_backend

        if TRITON not in self.hooks.targets:
            self.hooks.register(TRITON, wrap_backend, HookType.AFTER)
            self.hooks.apply_now()

    def say_built(self) -> None:
        """`built` and the setting of `cache.kv_dtype` say it already."""
