"""Room that protection leaves: a request larger than it makes eviction dig into protected units, every time."""

from __future__ import annotations

from kvpolicy.facts.findings import Locate, nowhere
from kvpolicy.language import Diagnostic, Policy

__all__ = ["protected_share", "unprotected_room"]


def protected_share(policy: Policy) -> float:
    """Largest share of the pool that rules, hints and floors may protect at once, at most 1. A retain without budget:
    all."""
    eviction, hints = policy.eviction, policy.hints
    share = hints.budget if hints is not None and "retain" in hints.allow else 0.0
    if eviction is None:
        return share
    for rule in eviction.rules:
        if rule.retain is not None:
            share += 1.0 if rule.retain.budget is None else rule.retain.budget
    tenants = eviction.tenants
    if tenants is not None:
        share += tenants.max_floors * (tenants.floor or 0.0)
        share += sum(tenant.floor or 0.0 for tenant in tenants.named.values())
    return min(share, 1.0)


def unprotected_room(
    policy: Policy, pool_tokens: int, max_request_tokens: int, *, locate: Locate = nowhere
) -> Diagnostic | None:
    """KVP523 when what protection can leave free is smaller than one maximal request, else None.

    ``pool_tokens``: capacity of the KV pool on one rank. ``max_request_tokens``: prompt and output of the longest
    request the server takes. Protection is soft, so such a server still works; its protected units just do not stay.
    """
    share = protected_share(policy)
    largest = min(max_request_tokens, pool_tokens)
    room = pool_tokens - int(pool_tokens * share)
    if share == 0.0 or room >= largest:
        return None
    rules = policy.eviction.rules if policy.eviction else ()
    boundless = [rule.name for rule in rules if rule.retain is not None and rule.retain.budget is None]
    if boundless:
        text = f"rule '{boundless[0]}' has no budget, so the whole pool may be protected"
        help = "give its retain a budget, like budget: 20%"
    else:
        who = "rules, hints and floors" if policy.hints is not None and policy.hints.allow else "rules and floors"
        text = f"{who} may protect {share:.0%} of {pool_tokens:,} tokens, which leaves {room:,}"
        help = "lower the budgets and floors, or enlarge the pool"
    file, line, col = locate("eviction.rules" if policy.eviction is not None else "hints.budget")
    return Diagnostic(
        file, line, col, "KVP523", "warning",
        f"{text}: less than one request of {largest:,} tokens, which will evict what is protected",
        help,
        {
            "protected_share": share,
            "pool_tokens": pool_tokens,
            "unprotected_tokens": room,
            "max_request_tokens": largest,
        },
    )  # fmt: skip
