"""The registry of topics, one module a group: what is kept and evicted, and what surrounds a running server."""

from __future__ import annotations

from kvpolicy.language.topics.base import Topic
from kvpolicy.language.topics.keeping import KEEPING
from kvpolicy.language.topics.serving import SERVING

__all__ = ["TOPICS", "Topic"]

TOPICS: dict[str, Topic] = {**KEEPING, **SERVING}
