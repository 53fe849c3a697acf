"""Findings on a running server, from its status: what is wrong, what hurts, what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .words import counted, number, page_tokens, share

__all__ = ["Finding", "examine"]

Block = Mapping[str, Any]

#: Below so many requests or evicted tokens in pools, shares say nothing.
_ENOUGH_REQUESTS, _ENOUGH_EVICTED = 100, 0.5
#: Shares from which something is worth saying.
_NEW_SALTS, _SHORT_PROMPTS, _USED, _AGAIN, _PROTECTED = 0.5, 0.1, 0.95, 0.25, 0.8


@dataclass(frozen=True, slots=True)
class Finding:
    """`rank`: the data-parallel rank, None where the server has one only, or the finding is about all."""

    code: str
    severity: Literal["error", "warning", "info"]
    message: str
    help: str
    rank: int | None = None
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def examine(blocks: Sequence[Block]) -> list[Finding]:
    """All findings on one server's status blocks, one a data-parallel rank; errors first."""
    found = list(_ranks(blocks))
    for rank, block in enumerate(blocks):
        for check in _CHECKS:
            for finding in check(block):
                place = rank if len(blocks) > 1 else None
                found.append(
                    Finding(finding.code, finding.severity, finding.message, finding.help, place, finding.data)
                )
    return sorted(found, key=lambda finding: ("error", "warning", "info").index(finding.severity))


def _ranks(blocks: Sequence[Block]) -> Iterator[Finding]:
    digests = sorted({block["digest"][:12] for block in blocks})
    if len(digests) > 1:
        yield Finding(
            "KVP703",
            "error",
            f"the ranks of this server run {len(digests)} policies: digests {', '.join(digests)}",
            "restart the server with one policy",
            data={"digests": digests},
        )


def _victims(block: Block) -> Iterator[Finding]:
    digests = (block.get("live") or {}).get("rank_victim_digests") or ()
    if len(set(digests)) > 1:
        yield Finding(
            "KVP704",
            "error",
            f"the ranks of this scheduler had evicted different units by the last swap: {', '.join(map(str, digests))}",
            "restart the server: its ranks' caches differ; and please report the policy",
            data={"rank_victim_digests": list(digests)},
        )


def _settings(block: Block) -> Iterator[Finding]:
    for conflict in block["conflicts"]:
        yield Finding("KVP701", "error", conflict, "change one side, or extend the accept list, and restart")
    for path, setting in block["settings"].items():
        requested, effective = setting["requested"], setting["effective"]
        said = any(conflict.startswith(f"{path}:") for conflict in block["conflicts"])
        if requested not in (None, effective) and effective is not None and not said:
            yield Finding(
                "KVP702",
                "info",
                f"{path}: the policy prefers {requested} ({setting['origin']}), {effective} runs "
                f"({setting['decided_by']})",
                f"nothing, if {effective} is what you want",
                data={"path": path, "requested": requested, "effective": effective},
            )


def _faults(block: Block) -> Iterator[Finding]:
    if fallbacks := block["fallbacks"]:
        kinds = ", ".join(f"{reason} {number(count)}" for reason, count in fallbacks.items())
        last = f"; the last inside the policy: {block['last_fault']}" if block["last_fault"] else ""
        yield Finding(
            "KVP711",
            "error",
            f"{counted(sum(fallbacks.values()), 'call')} of the policy failed ({kinds}){last}",
            "look for `kvpolicy:` in the server's log: each kind's first traceback is there",
            data={"fallbacks": dict(fallbacks)},
        )
    if faults := (block.get("allocator") or {}).get("faults"):
        kinds = ", ".join(f"{kind} {number(count)}" for kind, count in faults.items())
        yield Finding(
            "KVP712",
            "error",
            f"the allocator's guard found misused slots or pages, and repaired them: {kinds}",
            "look for `allocator guard` in the server's log, and keep `allocator: {guard: full}` until it is found",
            data={"faults": dict(faults)},
        )
    if fault := (block.get("why") or {}).get("fault"):
        yield Finding("KVP713", "warning", f"evictions are remembered no more: {fault}", "restart to have it again")


def _requests(block: Block) -> Iterator[Finding]:
    traffic = block.get("traffic")
    if traffic is None or traffic["requests"] < _ENOUGH_REQUESTS:
        return
    salted, new = traffic["salted_requests"], traffic["new_salts"]
    if salted >= _ENOUGH_REQUESTS and new > _NEW_SALTS * salted:
        yield Finding(
            "KVP721",
            "warning",
            f"{number(new)} of {number(salted)} requests with a cache_salt came with a new one ({share(new, salted)}): "
            "they can find nothing in the cache",
            "send one salt a tenant, not one a request",
            data={"salted_requests": salted, "new_salts": new},
        )
    requests, short = traffic["requests"], traffic["short_prompts"]
    if short > _SHORT_PROMPTS * requests:
        page = page_tokens(block)
        yield Finding(
            "KVP722",
            "warning",
            f"{number(short)} of {number(requests)} prompts ({share(short, requests)}) are shorter than a page"
            f"{f' of {page} tokens' if page else ''}: nothing of them is ever cached",
            "a smaller page size (`cache: {page_size: ...}`) would cache them",
            data={"requests": requests, "short_prompts": short},
        )


def _pressure(block: Block) -> Iterator[Finding]:
    size, pool = block["pool_tokens"], block.get("occupancy")
    if pool is not None and size and pool["used_tokens"] > _USED * size:
        yield Finding(
            "KVP731",
            "warning",
            f"running requests hold {share(pool['used_tokens'], size)} of the pool of {number(size)} tokens right now",
            "a larger pool, a smaller KV dtype, or fewer requests at a time",
            data=dict(pool),
        )
    held = sum(each["tokens"] for each in block.get("protected", {}).values())
    if size and held > _PROTECTED * size:
        yield Finding(
            "KVP733",
            "warning",
            f"rules protect {share(held, size)} of the pool: {number(held)} of {number(size)} tokens",
            "give the rules budgets that leave room, or narrower conditions",
            data={"protected_tokens": held, "pool_tokens": size},
        )
    evicted = sum(block["evicted_tokens"].values())
    again = sum((block.get("why") or {}).get("evicted_before_reuse_tokens", {}).values())
    if evicted > _ENOUGH_EVICTED * size and again > _AGAIN * evicted:
        yield Finding(
            "KVP732",
            "warning",
            f"{number(again)} of {number(evicted)} evicted tokens ({share(again, evicted)}) were asked for again",
            "see `kvpolicy why`; `kvpolicy recommend` looks for a policy that keeps them",
            data={"evicted_tokens": evicted, "asked_for_again_tokens": again},
        )
    if not evicted and block["core"] == "kvpolicy":
        yield Finding(
            "KVP734", "info", "nothing was evicted yet: the policy has had nothing to decide", "look again under load"
        )


_CHECKS: tuple[Callable[[Block], Iterator[Finding]], ...] = (_victims, _settings, _faults, _requests, _pressure)
