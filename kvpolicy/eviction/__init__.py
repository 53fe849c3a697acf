"""The engine-neutral eviction layer: algorithms, scores, rules, tenants, and the index that answers with victims."""

from kvpolicy.eviction.base import Handle, KeyChange, PolicyClock, RequestInfo, UnitMeta
from kvpolicy.eviction.index import Counters, EvictionIndex
from kvpolicy.eviction.plan import CompiledEviction, compile_eviction

__all__ = [
    "CompiledEviction",
    "Counters",
    "EvictionIndex",
    "Handle",
    "KeyChange",
    "PolicyClock",
    "RequestInfo",
    "UnitMeta",
    "compile_eviction",
]
