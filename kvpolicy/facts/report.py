"""The facts part of ``kvpolicy check``: what engine, model and GPU make of a policy, as diagnostics.

Conflicts (the engine settles on something the policy does not accept) are errors or warnings by ``on_conflict``. The
rest are info items whose ``data`` holds the figures.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvpolicy.facts.cache_kind import report_cache_kind
from kvpolicy.facts.decode_traffic import parse_traffic, report_traffic
from kvpolicy.facts.effective import asked_of, report_effective
from kvpolicy.facts.engines import parse_engine
from kvpolicy.facts.errors import FactsArgumentError
from kvpolicy.facts.figures import report_figures
from kvpolicy.facts.findings import Deployment, Findings, Locate, nowhere
from kvpolicy.facts.gpus import parse_gpu, parse_memory_bytes
from kvpolicy.facts.measured import load_measured
from kvpolicy.facts.measured_findings import report_measured
from kvpolicy.facts.model import load_model
from kvpolicy.facts.sglang_pools import report_pool
from kvpolicy.language import Diagnostic, Policy

__all__ = ["DEFAULT_LENGTH_TOKENS", "deployment", "report", "report_on"]

DEFAULT_LENGTH_TOKENS = 32768


def deployment(
    *,
    engine: str | None = None,
    model: str | None = None,
    gpu: str | None = None,
    memory: str | None = None,
    tp: int = 1,
    length_tokens: int = DEFAULT_LENGTH_TOKENS,
    evidence: Sequence[str] = (),
    traffic: str | None = None,
) -> Deployment:
    """Read the arguments of ``check``.

    ``engine``: ``sglang==0.5.23``. ``model``: a directory or config.json. ``gpu``: a name of ``gpus.GPUS``. ``memory``:
    bytes of the KV pool on one rank, like ``60GiB`` (without it, an estimate). ``length_tokens``: the request to count
    index entries for. ``evidence``: files of `kvpolicy fidelity`, which need engine and model. ``traffic``:
    ``batch=128,shared=8192,unique=256``, which needs engine, model and gpu. Raises
    :class:`FactsArgumentError` for one that cannot be used: bad usage, not a bad policy.
    """
    for name, number in (("tp", tp), ("length", length_tokens)):
        if number < 1:
            raise FactsArgumentError(name, f"--{name} {number} is not a positive number")
    if evidence and (engine is None or model is None):
        raise FactsArgumentError("evidence", "--evidence says nothing by itself", "add --engine and --model")
    if traffic is not None and (engine is None or model is None or gpu is None):
        raise FactsArgumentError("traffic", "--traffic says nothing by itself", "add --engine, --model and --gpu")
    return Deployment(
        target=parse_engine(engine) if engine is not None else None,
        gpu=parse_gpu(gpu) if gpu is not None else None,
        model=load_model(model) if model is not None else None,
        pool_bytes=parse_memory_bytes(memory) if memory is not None else None,
        tp=tp,
        length_tokens=length_tokens,
        evidence=tuple(load_measured(path) for path in evidence),
        traffic=parse_traffic(traffic) if traffic is not None else None,
    )


def report_on(policy: Policy, where: Deployment, *, locate: Locate = nowhere) -> list[Diagnostic]:
    """Findings about ``policy`` on a deployment; what a missing argument would tell is left out."""
    findings = Findings(policy, locate)
    outcome = None
    if where.target is not None:
        outcome = report_effective(findings, where, where.target)
    starts = outcome is None or not outcome.refusals
    if where.target is not None and where.model is not None:
        report_cache_kind(findings, where.target.name, where.model)
        if where.target.name == "sglang":
            report_pool(findings, where.target, where.model, outcome.kv_dtype if outcome else "auto")
    if starts:
        report_measured(findings, where, outcome.kv_dtype if outcome else asked_of(policy).kv_dtype)
    if where.model is not None and starts:
        report_figures(findings, where, where.model, outcome)
        if where.traffic is not None and where.gpu is not None and outcome is not None:
            report_traffic(findings, where, where.gpu, where.model, where.traffic, outcome)
    return findings.items


def report(
    policy: Policy,
    *,
    engine: str | None = None,
    model: str | None = None,
    gpu: str | None = None,
    memory: str | None = None,
    tp: int = 1,
    length_tokens: int = DEFAULT_LENGTH_TOKENS,
    locate: Locate = nowhere,
) -> list[Diagnostic]:
    """:func:`deployment` and :func:`report_on` in one call."""
    where = deployment(engine=engine, model=model, gpu=gpu, memory=memory, tp=tp, length_tokens=length_tokens)
    return report_on(policy, where, locate=locate)
