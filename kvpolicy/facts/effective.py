"""Findings about what the engine really runs: page size, KV dtype, attention backend, conflicts, evidence."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from kvpolicy.facts import vllm_device
from kvpolicy.facts.dtypes import AUTO, canonical
from kvpolicy.facts.engines import ENGINES, EngineTarget, is_supported, supported_span
from kvpolicy.facts.evidence import evidence_for
from kvpolicy.facts.findings import Deployment, Findings
from kvpolicy.facts.gpus import Gpu
from kvpolicy.facts.model import ORDINARY
from kvpolicy.facts.resolve import Outcome, Refusal, Settings, Step, refused_by_device, resolve_sglang
from kvpolicy.facts.resolve_vllm import resolve_vllm
from kvpolicy.facts.rules import Field, Note, Rule, Value
from kvpolicy.facts.sglang_cascade import report_sglang_cascade
from kvpolicy.facts.sglang_encodings import report_encoding
from kvpolicy.facts.sglang_layers import report_layers
from kvpolicy.facts.sglang_page_plans import plans_by_pages, report_page_plans
from kvpolicy.facts.short_prefix import report_short_prefixes
from kvpolicy.facts.vllm_findings import report_cascade, report_vllm
from kvpolicy.language import Policy

__all__ = ["asked_of", "report_effective"]

# Field of a rule -> (name for people, dotted field of the policy).
_FIELDS: dict[Field, tuple[str, str]] = {
    "page_size": ("page size", "cache.page_size"),
    "kv_dtype": ("KV dtype", "cache.kv_dtype"),
    "attention": ("attention backend", "backend.attention"),
    "prefill_attention": ("prefill attention backend", "backend.attention"),
    "decode_attention": ("decode attention backend", "backend.attention"),
}


def asked_of(policy: Policy) -> Settings:
    """What an adapter asks the engine for: the policy's first choices."""
    cache, backend = policy.cache, policy.backend
    page = cache.page_size.prefer if cache and cache.page_size else None
    dtype = cache.kv_dtype.prefer if cache and cache.kv_dtype else None
    attention = backend.attention.prefer if backend and backend.attention else None
    return Settings(page_size=page, kv_dtype=canonical(dtype or AUTO), attention=attention)


def report_effective(findings: Findings, where: Deployment, target: EngineTarget) -> Outcome | None:
    """Add the findings; None where the device is not known and nothing can be resolved."""
    if target.asked and not is_supported(target.name, target.asked):
        message = (
            f"a server with a policy does not start on {target.name} {target.asked}: that release is not supported"
        )
        findings.add("KVP514", "error", "", message, f"supported: {supported_span(target.name)}")
    elif not target.exact:
        message = f"{target.name} {target.asked} is not known here: the facts are those of {target.facts_version}"
        findings.add("KVP513", "warning", "", message, f"known: {', '.join(ENGINES[target.name])}")
    if target.name == "vllm":
        report_cascade(findings, where, target)
    if where.gpu is None:
        message = "what the engine really runs depends on the device, which was not given"
        findings.add("KVP515", "info", "", message, "add --gpu h200")
        return None
    asked = asked_of(findings.policy)
    layers = _layers_of(findings.policy)
    fallbacks = _fallbacks(findings.policy, asked, target, where.gpu)
    tried = replace(asked, **{name: value for name, (value, _) in fallbacks.items()})  # type: ignore[arg-type]
    outcome = _resolve(tried, where, target, where.gpu, layers)
    if where.model is None:
        message = "no model was given: an ordinary grouped-query model in bf16 is assumed"
        findings.add("KVP515", "info", "", message, "add --model with the model's folder or config.json")
    for refusal in outcome.refusals:
        _refused(findings, where, target, where.gpu, outcome, refusal)
    if outcome.refusals:
        return outcome  # the engine does not start: what it would have settled on would mislead
    why = {name: rule.reason for name, (_, rule) in fallbacks.items()}
    _settled(findings, where, outcome, "KVP501", "page_size", asked.page_size, outcome.page_size, why.get("page_size"))
    kv_dtype = _unless_auto(asked.kv_dtype)
    _settled(findings, where, outcome, "KVP502", "kv_dtype", kv_dtype, outcome.kv_dtype, why.get("kv_dtype"))
    _evidence(findings, where, outcome.kv_dtype)
    backend = outcome.requested.attention if "attention" not in fallbacks else asked.attention
    _settled(findings, where, outcome, "KVP503", "attention", backend, outcome.attention, why.get("attention"))
    if target.name == "vllm":
        report_vllm(findings, where, outcome, layers)
    else:
        report_layers(findings, where, target, outcome, layers)
        report_encoding(findings, where, outcome)
        report_page_plans(findings, where, outcome)
        report_sglang_cascade(findings, where, outcome)
    report_short_prefixes(findings, outcome.page_size, why=_last_reason(outcome))
    for step in outcome.notes:
        if step.rule.engine_allocator and _hands_out_slots(findings.policy):
            continue
        if step.rule.engine_plan and plans_by_pages(findings.policy, where.model, outcome):
            continue
        severity: Any = "warning" if isinstance(step.rule.effect, Note) and step.rule.effect.warn else "info"
        findings.add("KVP507", severity, _FIELDS[step.rule.field][1], step.why, None, _cite(step))
    return outcome


def _hands_out_slots(policy: Policy) -> bool:
    """Whether the policy takes the place of the engine's slot allocator."""
    allocator = policy.allocator
    return allocator is not None and (allocator.order is not None or allocator.guard not in (None, "off"))


def _resolve(
    asked: Settings, where: Deployment, target: EngineTarget, gpu: Gpu, layers: tuple[tuple[str, str], ...] = ()
) -> Outcome:
    model = where.model or ORDINARY
    if target.name == "vllm":
        return resolve_vllm(asked, version=target.facts, gpu=gpu, model=model, tp=where.tp, layers=layers)
    return resolve_sglang(asked, version=target.facts, gpu=gpu, model=model, tp=where.tp)


def _fallbacks(policy: Policy, asked: Settings, target: EngineTarget, gpu: Gpu) -> dict[Field, tuple[Value, Rule]]:
    """As the adapter does at start: where the device cannot run the first choice, the first accepted one it can."""
    of_engine = vllm_device.refused_by_device if target.name == "vllm" else refused_by_device
    refused = partial(of_engine, version=target.facts, traits=gpu.traits)
    found: dict[Field, tuple[Value, Rule]] = {}
    names: tuple[Field, ...] = ("attention", "kv_dtype", "page_size")
    for name in names:
        first: Value | None = getattr(asked, name)
        rule = refused(name, first) if first is not None else None
        for value in _accepted(policy, name) if rule is not None else ():
            if refused(name, value) is None:
                assert rule is not None
                found[name] = (value, rule)
                break
    return found


def _settled(
    findings: Findings,
    where: Deployment,
    outcome: Outcome,
    code: str,
    name: Field,
    asked: Value | None,
    value: Value,
    fallback: str | None = None,
) -> None:
    """A fact, or a conflict where the engine settles on something the policy does not accept."""
    label, path = _FIELDS[name]
    steps = outcome.why(name)
    shown = str(value)
    data: dict[str, Any] = {"field": path, "asked": asked, "effective": value}
    if name == "attention":
        steps += outcome.why("prefill_attention") + outcome.why("decode_attention")
        if outcome.prefill_attention != outcome.decode_attention:
            shown = f"{outcome.prefill_attention} for prefill, {outcome.decode_attention} for decode"
            data |= {"prefill": outcome.prefill_attention, "decode": outcome.decode_attention}
    data["rules"] = [_cite(step) for step in steps]
    reasons = [fallback] if fallback else []
    reasons += [step.why for step in steps]
    why = "; ".join(reasons) or (outcome.kv_dtype_why if name == "kv_dtype" else "")
    because = f": {why}" if why else ""
    if asked is None or value == asked or value in _accepted(findings.policy, name):
        told = f" (asked {asked})" if asked is not None else ""
        findings.info(code, path, f"{label} {shown}{told}{because}", data)
        return
    severity: Any = "error" if findings.policy.on_conflict == "error" else "warning"
    message = f"{label} {asked} becomes {shown} in {where.engine_label}{because}"
    help = f"ask for {value}, or list it in accept"
    if isinstance(value, int) and value & (value - 1):  # no policy can name it
        help = "leave the page size to the engine: engines: {vllm: {cache: {page_size: auto}}}"
    findings.add("KVP511", severity, path, message, help, data)


def _refused(
    findings: Findings, where: Deployment, target: EngineTarget, gpu: Gpu, outcome: Outcome, refusal: Refusal
) -> None:
    rule = refusal.rule
    label, path = _FIELDS[rule.field]
    message = f"{where.engine_label} does not start with {label} {refusal.value}: {rule.reason}"
    help = None
    for value in (*_accepted(findings.policy, rule.field), AUTO if rule.field == "kv_dtype" else None):
        retry: Settings = replace(outcome.requested, **{rule.field: value})  # type: ignore[arg-type]
        if retry != outcome.requested and not _resolve(retry, where, target, gpu).refusals:
            help = f"{AUTO if value is None else value} would start"
            break
    data = {"field": path, "value": refusal.value, "rule": rule.name, "reason": rule.reason, "source": rule.source}
    findings.add("KVP512", "error", path, message, help, data)


def _evidence(findings: Findings, where: Deployment, kv_dtype: str) -> None:
    engine = where.target.name if where.target is not None else ""
    row = evidence_for(kv_dtype, where.model, where.gpu, engine) if where.model is not None else None
    if row is None:
        return
    path, data = "cache.kv_dtype", {"kv_dtype": kv_dtype, "level": row.level, "source": row.source}
    if row.level == "known bad":
        message = f"{kv_dtype} KV was reported bad for this model in {row.source}: {row.text}"
        findings.add(
            "KVP521",
            "warning",
            path,
            message,
            "measure it on your model with kvpolicy fidelity, and your task, before serving it",
            data,
        )
    else:
        findings.info("KVP522", path, f"{kv_dtype} KV is {row.level}: {row.text}", data)


def _accepted(policy: Policy, name: Field) -> tuple[Value, ...]:
    cache, backend = policy.cache, policy.backend
    if name == "page_size":
        return tuple(cache.page_size.accept) if cache and cache.page_size else ()
    if name == "kv_dtype":
        return tuple(canonical(dtype) for dtype in cache.kv_dtype.accept) if cache and cache.kv_dtype else ()
    return tuple(backend.attention.accept) if backend and backend.attention else ()


def _last_reason(outcome: Outcome) -> str:
    steps = outcome.why("page_size")
    return steps[-1].why if steps else ""


def _layers_of(policy: Policy) -> tuple[tuple[str, str], ...]:
    return tuple(policy.cache.kv_dtype.layers) if policy.cache and policy.cache.kv_dtype else ()


def _unless_auto(kv_dtype: str) -> str | None:
    return None if kv_dtype == AUTO else kv_dtype


def _cite(step: Step) -> dict[str, str]:
    return {"rule": step.rule.name, "reason": step.why, "source": step.rule.source}
