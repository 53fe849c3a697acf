"""What one rule, or all retain hints together, may keep resident."""

from __future__ import annotations

from typing import Any

from kvpolicy.eviction.base import Handle

__all__ = ["Budget"]


class Budget:
    """The tokens that one rule's units keep resident.

    ``refs[unit]`` is 1 if the unit itself is a member, plus the number of its children on a member's path; the unit's
    own tokens count while it is above 0. Joining walks up only as far as the path is not counted yet.
    """

    def __init__(self, limit_tokens: int, members: Any) -> None:
        self.limit_tokens = limit_tokens
        self.used_tokens = 0
        self.members = members  # an Order: what is shed first
        self.refs: dict[Handle, int] = {}

    def join(self, handle: Handle) -> None:
        self.members.add(handle)
        refs = self.refs
        node: Any = handle
        while node is not None and node.kvp is not None:
            count = refs.get(node, 0)
            refs[node] = count + 1
            if count:
                return
            self.used_tokens += node.kvp.tokens
            node = node.kvp.parent

    def leave(self, handle: Handle) -> None:
        self.members.discard(handle)
        self._release(handle)

    def _release(self, handle: Handle) -> None:
        refs = self.refs
        node: Any = handle
        while node is not None and node in refs:
            count = refs[node] = refs[node] - 1
            if count:
                return
            del refs[node]
            self.used_tokens -= node.kvp.tokens
            node = node.kvp.parent

    def split(self, upper: Handle, lower: Handle, is_member: bool) -> None:
        """``upper`` took over the first tokens of ``lower``: the same tokens count as before."""
        if lower in self.refs:
            self.refs[upper] = 1 + is_member
        if is_member:
            self.members.add(upper)

    def trimmed(self, handle: Handle, tokens: int, is_member: bool) -> None:
        """A run of :attr:`refs` lost that many of its tokens, and has another key now."""
        self.used_tokens -= tokens
        if is_member:
            self.members.discard(handle)
            self.members.add(handle)

    def forget(self, handle: Handle) -> None:
        """A unit of :attr:`refs` is resident no more. Its children went before it: its own membership is left."""
        self.refs[handle] = 1
        self.leave(handle)

    def check(self) -> None:
        """Debug: the count from scratch, and the limit."""
        path: dict[Handle, None] = {}
        for member in self.members:
            node: Any = member
            while node is not None and node.kvp is not None and node not in path:
                path[node] = None
                node = node.kvp.parent
        assert path.keys() == self.refs.keys(), "a rule counts units off its members' paths"
        assert self.used_tokens == sum(node.kvp.tokens for node in path), "a rule's token count is off"
        assert self.used_tokens <= self.limit_tokens, "a rule holds more than its budget"
