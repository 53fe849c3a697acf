"""Prints what the adapter says of this process's environment, with and without a need for time (test_support.py)."""

from __future__ import annotations

import json
from types import SimpleNamespace

from kvpolicy_sglang.cache_support import Needs, supported

if __name__ == "__main__":
    needs = {"time": Needs(time=True), "no time": Needs()}
    print(json.dumps({name: supported(SimpleNamespace(), None, need).kind for name, need in needs.items()}))
