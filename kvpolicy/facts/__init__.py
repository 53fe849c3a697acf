"""What engines, models and GPUs force or allow, as data with sources; no engine is imported.

Sits on the language, below the compiler and the command line::

    report(policy, engine="sglang==0.5.23", model="config.json", gpu="h200")   # list of diagnostics
    unprotected_room(policy, pool_tokens, max_request_tokens)                  # also called by adapters at start
"""

from kvpolicy.facts.engines import ENGINES
from kvpolicy.facts.errors import FactsArgumentError
from kvpolicy.facts.findings import Deployment
from kvpolicy.facts.gpus import GPUS
from kvpolicy.facts.kv_bytes import KvBytes, kv_bytes_per_token
from kvpolicy.facts.model import ModelFacts, load_model, model_from_config
from kvpolicy.facts.report import DEFAULT_LENGTH_TOKENS, deployment, report, report_on
from kvpolicy.facts.resolve import Outcome, Settings, resolve_sglang
from kvpolicy.facts.unprotected import protected_share, unprotected_room

__all__ = [
    "DEFAULT_LENGTH_TOKENS",
    "ENGINES",
    "GPUS",
    "Deployment",
    "FactsArgumentError",
    "KvBytes",
    "ModelFacts",
    "Outcome",
    "Settings",
    "deployment",
    "kv_bytes_per_token",
    "load_model",
    "model_from_config",
    "protected_share",
    "report",
    "report_on",
    "resolve_sglang",
    "unprotected_room",
]
