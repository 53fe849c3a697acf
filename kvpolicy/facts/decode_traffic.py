"""Would a cascade, or a larger page, pay for a given decode traffic? (`check --gpu --model --traffic`)

The answer is the cost model's (`kvpolicy.attention`), which knows FlashInfer's kernels on the GPUs it was measured on.
What an engine lets a policy do with it is said beside.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from kvpolicy.attention.cost import Constants, Heads, Load, estimate, least_shared
from kvpolicy.attention.measured import CONSTANTS, FLASHINFER_CASCADE, WORST_HELD_OUT
from kvpolicy.facts.dtypes import ELEMENT_BITS
from kvpolicy.facts.errors import FactsArgumentError
from kvpolicy.facts.findings import Deployment, Findings
from kvpolicy.facts.gpus import Gpu
from kvpolicy.facts.model import ModelFacts
from kvpolicy.facts.resolve import Outcome
from kvpolicy.facts.sglang_page_plans import plans_by_pages
from kvpolicy.facts.vllm_cascade import has_cascade
from kvpolicy.language.units import UnitError, parse_tokens

__all__ = ["parse_traffic", "report_traffic"]

_KEYS = ("batch", "shared", "unique")
_EXAMPLE = "write it as batch=128,shared=8Ki,unique=256: running requests, tokens they share, tokens of each one's own"
_PAGES = (1, 16, 64)
_ENTRY_BYTES = 4  # int32


def parse_traffic(text: str) -> Load:
    """``batch=128,shared=8192,unique=256``. FactsArgumentError for anything else."""
    values: dict[str, int] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        try:
            if not equals or key not in _KEYS or key in values:
                raise ValueError
            values[key] = parse_tokens(int(value) if value.isdecimal() else value)
        except (ValueError, UnitError):
            raise FactsArgumentError("traffic", f"cannot read traffic '{text}'", _EXAMPLE) from None
    if set(values) != set(_KEYS) or values["batch"] < 1 or values["unique"] < 1:
        raise FactsArgumentError("traffic", f"traffic '{text}' needs batch and unique above 0, and shared", _EXAMPLE)
    return Load(values["batch"], values["shared"], values["unique"])


def report_traffic(
    findings: Findings, where: Deployment, gpu: Gpu, model: ModelFacts, traffic: Load, outcome: Outcome
) -> None:
    """Add KVP541 and KVP542, or why nothing can be said."""
    if (why := _unknown(gpu, model)) is not None:
        findings.info("KVP541", "backend.cascade", f"whether a cascade pays is not known: {why}", {"known": False})
        return
    assert where.target is not None
    constants = (CONSTANTS if where.target.name == "sglang" else FLASHINFER_CASCADE)[gpu.name]
    bits = ELEMENT_BITS.get(outcome.kv_dtype, 16)
    heads = Heads(-(-model.num_heads // where.tp), max(1, model.kv_heads // where.tp), model.head_dim, bits / 8)
    load = replace(traffic, page_tokens=outcome.page_size)
    sure = _how_sure(constants, load, heads, outcome)
    _cascade(findings, where, constants, load, heads, model.full_layers, sure)
    _pages(findings, where, constants, load, heads, outcome, sure)


def _unknown(gpu: Gpu, model: ModelFacts) -> str | None:
    if gpu.name not in CONSTANTS:
        return f"decode attention was not measured on {gpu.label} (on: {', '.join(CONSTANTS)})"
    if model.is_mla:
        return "latent attention (MLA) was not measured"
    if not model.num_heads or not model.head_dim or not model.kv_heads:
        return "the model's configuration does not say how many heads it has"
    return None


def _how_sure(constants: Constants, load: Load, heads: Heads, outcome: Outcome) -> str:
    found = f"by {constants.source}, within {WORST_HELD_OUT:.0%} of a load that the model had not seen"
    if heads != constants.heads:
        found += f"; scaled from {_heads(constants.heads)} to {_heads(heads)}, which was not measured"
    elif not constants.covers(load, heads):
        found += "; beyond what was measured"
    if outcome.decode_attention != "flashinfer":
        found += f"; this deployment runs {outcome.decode_attention}, which was not measured"
    return found


def _heads(heads: Heads) -> str:
    return f"{heads.query} query and {heads.kv} KV heads of {heads.dim} with {heads.element_bytes * 8:g} bits"


def _cascade(
    findings: Findings, where: Deployment, constants: Constants, load: Load, heads: Heads, layers: int, sure: str
) -> None:
    told = estimate(constants, load, heads)
    gain_ms, least = told.gain_ms(layers), least_shared(constants, load, heads, layers)
    pays = gain_ms > 0
    begins = "never with so few requests" if least is None else f"from {least:,} shared tokens on"
    message = (
        f"{'a cascade would pay' if pays else 'a cascade would not pay'} for {load.requests:,} requests with "
        f"{load.shared_tokens:,} shared and {load.unique_tokens:,} own tokens: {told.flat_ms:.2f} ms a layer flat, "
        f"{told.cascade_ms:.2f} ms as a cascade; over {layers} layers, plans included, it "
        f"{'saves' if pays else 'costs'} {abs(gain_ms):.1f} ms a step (it pays {begins}; {sure}). {_may_cascade(where)}"
    )
    data: dict[str, Any] = {
        "known": True,
        "pays": pays,
        "gain_ms_per_step": gain_ms,
        "least_shared_tokens": least,
        "layers": layers,
        "load": asdict(load),
        "estimate": asdict(told),
        "measured": constants.covers(load, heads),
    }
    findings.info("KVP541", "backend.cascade", message, data)


def _may_cascade(where: Deployment) -> str:
    assert where.target is not None
    if where.target.name == "sglang":
        return "On SGLang with FlashInfer kvpolicy decides it step by step (`cascade: auto`)"
    if has_cascade(where.target.facts):
        return "vLLM has one, behind `cascade: auto`, for a prefix that all running requests share"
    return f"vLLM {where.target.facts_version} has none: it was removed"


def _pages(
    findings: Findings, where: Deployment, constants: Constants, load: Load, heads: Heads, outcome: Outcome, sure: str
) -> None:
    rows = []
    for page in sorted({load.page_tokens, *_PAGES}):
        paged = replace(load, page_tokens=page)
        told = estimate(constants, paged, heads)
        rows.append({"page_size": page, "flat_ms": told.flat_ms, "index_bytes": paged.entries * _ENTRY_BYTES})
    shown = ", ".join(f"{row['flat_ms']:.3f} ms at {row['page_size']}" for row in rows)
    index = ", ".join(f"{row['index_bytes']:,}" for row in rows)
    reads_tokens = where.target is not None and where.target.name == "sglang"
    reads_tokens &= outcome.decode_attention in ("flashinfer", "triton")
    reads_tokens &= not plans_by_pages(findings.policy, where.model, outcome)
    may = (
        f"SGLang plans {outcome.decode_attention} with single tokens whatever the page size: nothing of this is gained"
        if reads_tokens
        else "The index and its time shrink with the page that the kernel reads"
    )
    if reads_tokens and outcome.decode_attention == "flashinfer":
        may += " without `backend: {page_native: true}`"
    message = f"decode attention a layer by page size: {shown}; index of the batch {index} bytes ({sure}). {may}"
    findings.info("KVP542", "cache.page_size", message, {"rows": rows, "reads_tokens": reads_tokens})
