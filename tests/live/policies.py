"""A policy and requests that leave something to explain: everything protected is evicted for lack of room, and so is
what nothing protects."""

from __future__ import annotations

import random
from pathlib import Path

POOL_TOKENS = 1024

_POLICY = """
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {name: explained}
cache: {page_size: PAGE}
eviction:
  score: log1p(hits) - 0.01 * idle_requests
  rules:
    - name: kept
      match: request.priority == 1 and not is_output
      retain: {weight: 8}
"""


def write_policy(folder: Path, page_tokens: int) -> Path:
    path = folder / "explained.yaml"
    path.write_text(_POLICY.replace("PAGE", str(page_tokens)))
    return path


def tokens(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 250) for _ in range(count)]
