"""The expression language of scores and rules: a small, typed, total subset of Python's expression syntax.

Text -> ``scan`` (characters) -> ``check`` (Python's ``ast``, white-listed, unit-checked, folded) -> ``classify`` (how a
score moves) -> ``codegen`` (one code object). ``numerics`` and ``interpret`` define what everything means.
"""

from .compiled import CompiledAdmit, CompiledMatch, CompiledScore, compile_admit, compile_match, compile_score
from .errors import ExpressionError
from .fields import ADMIT_FIELDS, MATCH_FIELDS, SCORE_FIELDS
from .functions import FUNCTIONS

__all__ = [
    "ADMIT_FIELDS",
    "FUNCTIONS",
    "MATCH_FIELDS",
    "SCORE_FIELDS",
    "CompiledAdmit",
    "CompiledMatch",
    "CompiledScore",
    "ExpressionError",
    "compile_admit",
    "compile_match",
    "compile_score",
]
