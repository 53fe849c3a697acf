"""What check says of single layers' KV dtypes on SGLang."""

from __future__ import annotations

import pytest

from kvpolicy.facts.layer_dtypes import dtypes_by_layer
from tests.facts.helpers import codes, found, policy, report
