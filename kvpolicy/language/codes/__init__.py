"""The registry of diagnostic codes, one module a group.

KVP1xx the file and its YAML, 2xx keys, types and units, 3xx meaning across fields, 4xx expressions, 5xx facts of
engine, model and GPU, 6xx conflicts with an engine.
"""

from __future__ import annotations

from kvpolicy.language.codes.base import Code
from kvpolicy.language.codes.conflicts import CONFLICTS
from kvpolicy.language.codes.expressions import EXPRESSIONS
from kvpolicy.language.codes.facts import FACTS
from kvpolicy.language.codes.files import FILES
from kvpolicy.language.codes.meaning import MEANING
from kvpolicy.language.codes.policy_tests import POLICY_TESTS
from kvpolicy.language.codes.schema import SCHEMA

__all__ = ["CODES", "Code"]

CODES: dict[str, Code] = {**FILES, **SCHEMA, **MEANING, **POLICY_TESTS, **EXPRESSIONS, **FACTS, **CONFLICTS}
