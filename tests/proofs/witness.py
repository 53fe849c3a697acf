"""A second SGLang plugin, loaded beside kvpolicy's in test processes only: it looks into the scheduler, and breaks it.

Looking: each `/server_info` (or `Engine.get_server_info`) gets a block `witness` of what the scheduler holds at that
moment: free slots, the tree's nodes and slots, the books that do not balance, the index's own `check()`, and the victim
digest after each eviction call. It works for stock too, which shows no kvpolicy block.

Breaking: PROOF_FAULTS ("wrong-page@4,lost-slot@14") injects faults at the arrival of those requests, counted from 1, so
that each detector of these tests is seen to detect:

    wrong-page   one page of a shared prefix gets the keys and values of another slot: what a page that was freed
                 too early and written again looks like
    lost-slot    one page is taken out of the allocator and forgotten
    order-ORDER  not a fault: the policy's allocator hands out in that order from now on
    freed-twice, padding-freed, foreign-freed, in-use-and-free
                 what an allocator's guard repairs, at page sizes above 1
"""

from __future__ import annotations

import os
import sys
from typing import Any

digests: list[str] = []  # after each eviction call of this process
arrived = 0


def load() -> None:
    """The entry point. Schedulers only: elsewhere there is nothing to look at."""
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    scheduler = "sglang.srt.managers.scheduler.Scheduler"
    HookRegistry.register(f"{scheduler}.get_internal_state", add_block, HookType.AFTER)
    HookRegistry.register(f"{scheduler}.handle_generate_request", on_arrival, HookType.BEFORE)
    if "KVPOLICY_CARRY" in os.environ:
        HookRegistry.register("kvpolicy.runtime.active.ActivePolicy.observe_evict", after_evict, HookType.AFTER)


def after_evict(_result: None, active: Any, *_: Any) -> None:
    if active.index is not None:
        digests.append(f"{active.index.victim_digest:016x}")


def add_block(result: Any, scheduler: Any, *_: Any) -> None:
    result.internal_state["witness"] = look(scheduler)


def on_arrival(scheduler: Any, *_: Any) -> None:
    global arrived
    arrived += 1
    for fault in filter(None, os.environ.get("PROOF_FAULTS", "").split(",")):
        name, _, at = fault.partition("@")
        if arrived == int(at):
            FAULTS[name](scheduler)


# -- looking ----------------------------------------------------------------------------------------------------------


def look(scheduler: Any) -> dict[str, Any]:
    cache, allocator = scheduler.tree_cache, scheduler.token_to_kv_pool_allocator
    free, held = free_slots(allocator), [slot for node in nodes_of(cache) for slot in slots_of(node)]
    pool = set(range(allocator.page_size, allocator.size + allocator.page_size))  # the first page is padding
    return {
        "available_tokens": int(allocator.available_size()),
        "evictable_tokens": int(cache.evictable_size()),
        "protected_tokens": int(cache.protected_size()),
        "nodes": len(nodes_of(cache)),
        "free_slots": sorted(free),
        "held_twice": len(held) - len(set(held)),
        "free_and_held": len(free & set(held)),
        "nowhere": len(pool - free - set(held)),
        "pool_tokens": int(allocator.size),
        "check": check_index(),
        "digests": digests,
    }


def check_index() -> str:
    """The failed invariant of kvpolicy's own index; empty if there is none, or no index."""
    if "KVPOLICY_CARRY" not in os.environ:
        return ""
    from kvpolicy.runtime.active import current

    active = current()
    if active is None or active.index is None:
        return ""
    try:
        active.index.check()
    except AssertionError as error:
        return f"broken: {error}"
    return ""


def nodes_of(cache: Any) -> list[Any]:
    """Every node but the root."""
    root = cache.tree_core.root_node if hasattr(cache, "tree_core") else cache.root_node
    found, waiting = [], [root]
    while waiting:
        children = list(waiting.pop().children.values())
        found += children
        waiting += children
    return found


def slots_of(node: Any) -> list[int]:
    value = node.value if hasattr(node, "value") else node.component_data[0].value
    return [int(slot) for slot in value.tolist()]


def free_slots(allocator: Any) -> set[int]:
    parts = (allocator.free_pages, allocator.release_pages)
    pages = [page for part in parts if part is not None for page in part.tolist()]
    size = allocator.page_size
    return {page * size + offset for page in pages for offset in range(size)} if size > 1 else set(pages)


# -- breaking ---------------------------------------------------------------------------------------------------------


def wrong_page(scheduler: Any) -> None:
    """Of the first prefix that several requests share; a page in its middle, since all first tokens are alike."""
    nodes = nodes_of(scheduler.tree_cache)
    shared = next(node for node in nodes if node.children)
    other = next(node for node in nodes if node is not shared)
    slots, middle = slots_of(shared), len(shared.key) // 2
    allocator = scheduler.token_to_kv_pool_allocator
    victims = slots[middle : middle + allocator.page_size]
    source, kv = slots_of(other)[1], allocator.get_kvcache()
    for buffer in (*kv.k_buffer, *kv.v_buffer):
        buffer[victims] = buffer[source].clone()


def lost_slot(scheduler: Any) -> None:
    allocator = scheduler.token_to_kv_pool_allocator
    allocator.free_pages = allocator.free_pages[1:]


def freed_twice(scheduler: Any) -> None:
    """A page that is free already."""
    allocator = scheduler.token_to_kv_pool_allocator
    allocator.free(allocator.free_pages[:1] * allocator.page_size)


def padding_freed(scheduler: Any) -> None:
    allocator = scheduler.token_to_kv_pool_allocator
    allocator.free(allocator.free_pages[:1] * 0)


def foreign_freed(scheduler: Any) -> None:
    """A page beyond the pool."""
    allocator = scheduler.token_to_kv_pool_allocator
    allocator.free(allocator.free_pages[:1] * 0 + allocator.size + 10 * allocator.page_size)


def in_use_and_free(scheduler: Any) -> None:
    """A page of the tree is the next to be handed out."""
    allocator = scheduler.token_to_kv_pool_allocator
    held = slots_of(nodes_of(scheduler.tree_cache)[0])[0] // allocator.page_size
    allocator.free_list.give(allocator.free_pages[:1] * 0 + held)


def in_order(order: str) -> Any:
    def change(scheduler: Any) -> None:
        from kvpolicy_sglang.allocator_hooks import change_order

        from kvpolicy.runtime.active import current

        active = current()
        if active is not None:  # stock sees the same requests
            change_order(active, scheduler.token_to_kv_pool_allocator, order)

    return change


FAULTS = {
    **{f"order-{order}": in_order(order) for order in ("fifo", "lifo", "address", "runs")},
    "wrong-page": wrong_page,
    "lost-slot": lost_slot,
    "freed-twice": freed_twice,
    "padding-freed": padding_freed,
    "foreign-freed": foreign_freed,
    "in-use-and-free": in_use_and_free,
}
