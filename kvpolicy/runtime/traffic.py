"""What requests asked of the cache, and found: the figures behind a hit rate, and what keeps prompts from ever hitting.

Counted where an adapter sees each request, which is where the policy keeps metadata. Only reports read this.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

__all__ = ["Traffic"]

#: Salts told apart; of more, the one not seen for longest counts as new when it comes back.
_SALTS = 4096


@dataclass(slots=True)
class Traffic:
    """One scheduler's requests, each counted once, when its prompt was first looked up."""

    requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0  # of those, found in the cache
    short_prompts: int = 0  # shorter than a page: neither cached nor found, ever
    salted_requests: int = 0  # with a cache_salt
    new_salts: int = 0  # of those, with one not seen before: nothing can be found under it
    _salts: OrderedDict[str, None] = field(default_factory=OrderedDict, repr=False)

    def asked(self, prompt_tokens: int, hit_tokens: int, page_tokens: int, salt: str | None) -> None:
        self.requests += 1
        self.prompt_tokens += prompt_tokens
        self.hit_tokens += hit_tokens
        self.short_prompts += prompt_tokens < page_tokens
        if salt is None:
            return
        self.salted_requests += 1
        if salt in self._salts:
            self._salts.move_to_end(salt)
            return
        self.new_salts += 1
        self._salts[salt] = None
        if len(self._salts) > _SALTS:
            self._salts.popitem(last=False)
