"""Tenants at run time: who is over its cap, above its floor or within it.

A tenant is a ``cache_salt``; units without one belong to one tenant of their own. Under pressure victims come from
tenants over their cap, then from those above their floor (or without one), and only then from those within their
floor.

A floor is held by each named tenant that has one and by the ``max_floors`` other tenants with most hit tokens, first
come first where they are equal; a tenant without a hit holds none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvpolicy.eviction.base import KeyChange
from kvpolicy.eviction.heap import LazyHeap

__all__ = ["ABOVE_FLOOR", "OVER_CAP", "WITHIN_FLOOR", "CompiledTenants", "Shares", "Tenant", "TenantTable"]

#: Classes in the order in which they give victims.
OVER_CAP, ABOVE_FLOOR, WITHIN_FLOOR = 0, 1, 2


@dataclass(frozen=True)
class Shares:
    """Floor and cap as shares of the pool; ``None``: none."""

    floor: float | None = None
    cap: float | None = None


@dataclass(frozen=True)
class CompiledTenants:
    """The policy's ``tenants`` section."""

    default: Shares = Shares()
    max_floors: int = 8
    named: Mapping[str, Shares] = field(default_factory=dict)


class Tenant:
    """One salt's accounts, in tokens."""

    __slots__ = (
        "cap_tokens",
        "floor_tokens",
        "hit_tokens",
        "holds_floor",
        "klass",
        "order",
        "resident_tokens",
        "salt",
        "units",
    )

    def __init__(self, salt: str | None, order: int, floor_tokens: int | None, cap_tokens: int | None) -> None:
        self.salt = salt
        self.order = order  # by first appearance
        self.floor_tokens = floor_tokens
        self.cap_tokens = cap_tokens
        self.units = 0
        self.resident_tokens = 0
        self.hit_tokens = 0
        self.holds_floor = False
        self.klass = ABOVE_FLOOR


class TenantTable:
    """All tenants with resident units, the named ones, and those that hold a floor; others are forgotten with their
    hits.

    ``changed`` is told of each tenant whose class changed, ``forgotten`` of each that is kept no more.
    """

    def __init__(
        self,
        compiled: CompiledTenants,
        pool_tokens: int,
        changed: Callable[[Tenant], None],
        forgotten: Callable[[Tenant], None],
    ) -> None:
        self._compiled = compiled
        self._changed = changed
        self._forgotten = forgotten
        self._tenants: dict[str | None, Tenant] = {}
        self._holders: LazyHeap[Tenant] = LazyHeap(lambda t: (t.hit_tokens, -t.order), KeyChange.GROWS)
        self.clear(pool_tokens)

    def clear(self, pool_tokens: int) -> None:
        """Forget everybody: what was resident is gone, and with it the hits that floors are given for."""
        self._pool_tokens = pool_tokens
        self._tenants.clear()
        self._holders.clear()
        self._seen = 0

    def get(self, salt: str | None) -> Tenant:
        tenant = self._tenants.get(salt)
        if tenant is None:
            shares = self._compiled.default if salt is None else self._compiled.named.get(salt, self._compiled.default)
            floor, cap = self._tokens(shares.floor), self._tokens(shares.cap)
            tenant = self._tenants[salt] = Tenant(salt, self._seen, floor, cap)
            self._seen += 1
        return tenant

    def all(self) -> list[Tenant]:
        """Those kept now, by first appearance."""
        return list(self._tenants.values())

    def resident(self, tenant: Tenant, units: int, tokens: int) -> None:
        """The tenant got (or lost) that many units with that many tokens in all."""
        tenant.units += units
        tenant.resident_tokens += tokens
        self._classify(tenant)
        if tenant.units == 0:
            self._forget_if_idle(tenant)

    def units_in_class(self, tenant: Tenant, size_tokens: int, most: int) -> int:
        """How many of its units, of that size, the tenant loses before its class changes: the last one changes it."""
        if tenant.klass == OVER_CAP:
            limit_tokens = tenant.cap_tokens
        else:
            limit_tokens = tenant.floor_tokens if tenant.klass == ABOVE_FLOOR and tenant.holds_floor else None
        if limit_tokens is None:
            return most
        return -((limit_tokens - tenant.resident_tokens) // size_tokens)

    def hit(self, tenant: Tenant, tokens: int) -> None:
        """A request found that many of the tenant's tokens."""
        tenant.hit_tokens += tokens
        if tenant.holds_floor or tenant.floor_tokens is None:
            return
        if self._is_named(tenant):
            self._hold(tenant, True)
        elif self._compiled.max_floors > 0:
            if len(self._holders) >= self._compiled.max_floors:
                weakest = self._holders.peek()
                if weakest is None or weakest[0] >= (tenant.hit_tokens, -tenant.order):
                    return
                self._holders.discard(weakest[1])
                self._hold(weakest[1], False)
                if weakest[1].units == 0:
                    self._forget_if_idle(weakest[1])
            self._holders.add(tenant)
            self._hold(tenant, True)

    def check(self) -> None:
        """Debug: classes, floor holders and the bound on idle tenants."""
        for tenant in self._tenants.values():
            assert min(tenant.units, tenant.resident_tokens) >= 0, "a tenant owns less than nothing"
            assert tenant.klass == _class_of(tenant), "a tenant's class was not updated"
            assert not tenant.holds_floor or tenant.hit_tokens > 0, "a floor without a hit"
        unnamed = [t for t in self._tenants.values() if t.holds_floor and not self._is_named(t)]
        assert len(unnamed) <= self._compiled.max_floors, "more floors than allowed"
        self._holders.check()

    def _tokens(self, share: float | None) -> int | None:
        return None if share is None else int(share * self._pool_tokens)

    def _is_named(self, tenant: Tenant) -> bool:
        return tenant.salt is not None and tenant.salt in self._compiled.named

    def _hold(self, tenant: Tenant, holds: bool) -> None:
        tenant.holds_floor = holds
        self._classify(tenant)

    def _classify(self, tenant: Tenant) -> None:
        klass = _class_of(tenant)
        if klass != tenant.klass:
            tenant.klass = klass
            self._changed(tenant)

    def _forget_if_idle(self, tenant: Tenant) -> None:
        if not tenant.holds_floor and not self._is_named(tenant):
            del self._tenants[tenant.salt]
            self._forgotten(tenant)


def _class_of(tenant: Tenant) -> int:
    if tenant.cap_tokens is not None and tenant.resident_tokens > tenant.cap_tokens:
        return OVER_CAP
    if tenant.holds_floor and tenant.floor_tokens is not None and tenant.resident_tokens <= tenant.floor_tokens:
        return WITHIN_FLOOR
    return ABOVE_FLOOR
