"""Numbers that name contents of SGLang's tree: 64 bits over a namespace and the tokens from the root on.

However the path is cut into nodes, equal tokens have equal numbers, so a longer prompt that comes back is recognised
where its old content began. The hash of a whole path is kept at each node that got a child (`kvp.path_state`), so that
every token is hashed about once.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import Any

__all__ = ["ask_below", "key_of"]


def key_of(node: Any, page_tokens: int, start_tokens: int = 0) -> int:
    """The number of the content that ends one page after `start_tokens` of the node, a whole number of pages."""
    state = _state_at_end(node.parent, node).copy()
    _add(state, node, min(start_tokens + page_tokens, len(node.key)))
    return int.from_bytes(state.digest(), "big")


def ask_below(ghosts: Any, meta: Any, node: Any, page_tokens: int) -> None:
    """A new node, with that metadata, may hold what several nodes held before: ask for each next one where the one
    above it ended.

    Never raises.
    """
    try:
        size_tokens, at = len(node.key), ghosts.found_tokens
        while 0 < at < size_tokens:
            found = ghosts.asked(meta, key_of(node, page_tokens, at), at)
            at = at + found if found else 0
    except Exception as error:
        ghosts.stop(error)


def _state_at_end(node: Any, below: Any) -> Any:
    """The hash over the path from the root to the end of `node`; of the root: over the namespace, as `below` has it."""
    if node.parent is None:
        namespace = f"{below.key.extra_key}\0{getattr(below.key, 'cache_salt', None)}"
        return blake2b(namespace.encode(), digest_size=8)
    path = []
    state = None
    while node.parent is not None:
        if node.kvp is not None and node.kvp.path_state is not None:
            state = node.kvp.path_state
            break
        path.append(node)
        below, node = node, node.parent
    if state is None:
        state = _state_at_end(node, below)
    for node in reversed(path):
        state = state.copy()
        _add(state, node, len(node.key))
        if node.kvp is not None:
            node.kvp.path_state = state
    return state


def _add(state: Any, node: Any, tokens: int) -> None:
    token_ids = node.key.token_ids
    if isinstance(token_ids, array) and token_ids.typecode == "q":
        state.update(memoryview(token_ids)[:tokens])
    else:
        state.update(array("q", token_ids[:tokens]))
