"""Findings about what a policy costs on a model: bytes a token, pool, index entries, granularity, unprotected room."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from kvpolicy.facts import capacity
from kvpolicy.facts.dtypes import AUTO, ELEMENT_BITS
from kvpolicy.facts.effective import asked_of
from kvpolicy.facts.encodings import ENCODED
from kvpolicy.facts.engines import NEWEST_SGLANG
from kvpolicy.facts.findings import Deployment, Findings
from kvpolicy.facts.kv_bytes import KvBytes, encoded_bytes_per_token, kv_bytes_per_token
from kvpolicy.facts.model import ModelFacts
from kvpolicy.facts.resolve import Outcome
from kvpolicy.facts.resolve_vllm import compute_dtype
from kvpolicy.facts.sglang_encodings import encoding_problem
from kvpolicy.facts.sglang_layers import MIXABLE, mixed_dtypes
from kvpolicy.facts.sglang_page_plans import plans_by_pages
from kvpolicy.facts.unprotected import unprotected_room
from kvpolicy.facts.vllm_bytes import vllm_kv_bytes, vllm_pool_bytes

__all__ = ["report_figures"]

_PAGES_SHOWN = (1, 16, 64)


def report_figures(findings: Findings, where: Deployment, model: ModelFacts, outcome: Outcome | None) -> None:
    """Add the figures for what is effective, or, where nothing was resolved, for what the policy asks."""
    asked = asked_of(findings.policy)
    page = outcome.page_size if outcome else asked.page_size or 1
    dtype = outcome.kv_dtype if outcome else asked.kv_dtype
    if dtype == AUTO:
        dtype = model.kv_quant or model.dtype
    cell = _cell(where, model, dtype, outcome)
    layers = findings.policy.cache.kv_dtype.layers if findings.policy.cache and findings.policy.cache.kv_dtype else ()
    if cell is not None and layers and not _is_vllm(where):
        cell = _mixed(where, model, mixed_dtypes(layers, model, dtype), outcome) or cell
    if cell is not None:
        _bytes_a_token(findings, where, model, dtype, cell)
        _pool(findings, where, model, cell, page, outcome)
    _granularity(findings, where, page, outcome)


def _is_vllm(where: Deployment) -> bool:
    return where.target is not None and where.target.name == "vllm"


def _cell(where: Deployment, model: ModelFacts, dtype: str, outcome: Outcome | None) -> KvBytes | None:
    """As the engine sizes it; None for a dtype whose packing is not known."""
    if _is_vllm(where):
        compute = compute_dtype(model, where.gpu) if where.gpu else model.dtype
        skipped = len(outcome.skip_layers) if outcome else 0
        if outcome and any(step.rule.name == "sparse-layout" for step in outcome.steps):
            dtype = "fp8_ds_mla"
        return vllm_kv_bytes(model, dtype, compute=compute, skipped_layers=skipped, tp=where.tp)
    if dtype in ENCODED:
        return None if encoding_problem(model) else encoded_bytes_per_token(model, ENCODED[dtype], where.tp)
    if dtype not in ELEMENT_BITS:  # a dtype of another engine
        return None
    version = where.target.facts if where.target else NEWEST_SGLANG
    traits = where.gpu.traits if where.gpu else frozenset()
    workspace = dtype == "nvfp4" and outcome is not None and outcome.prefill_attention == "flashinfer"
    return kv_bytes_per_token(
        model,
        dtype,
        version=version,
        tp=where.tp,
        dsa_raw_layout=not traits.isdisjoint(("blackwell", "hip")),
        fp4_scale_copies=2 if workspace and "sm100" in traits and version >= (0, 5, 23) else 1,
        fp4_workspace=workspace,
    )


def _mixed(where: Deployment, model: ModelFacts, counts: dict[str, int], outcome: Outcome | None) -> KvBytes | None:
    """Of a pool whose layers have `counts` of these dtypes; None where that is no plain pool of K and V."""
    if model.is_mla or model.swa_layers or not set(counts) <= set(MIXABLE):
        return None
    total, parts = 0, []
    for dtype, count in counts.items():
        uniform = _cell(where, model, dtype, outcome)
        assert uniform is not None
        share = uniform.full // model.full_layers * count
        total += share
        parts.append(f"{share:,} ({count} {'layer' if count == 1 else 'layers'} in {dtype})")
    return KvBytes(total, total, formula=" + ".join(parts))


def _bytes_a_token(findings: Findings, where: Deployment, model: ModelFacts, dtype: str, cell: KvBytes) -> None:
    rank = f" on each of {where.tp} ranks" if where.tp > 1 else ""
    remarks = "; ".join((f"{model.attention_kind}, {dtype}", *model.notes))
    message = f"KV bytes a token{rank}: {_number(cell.total)} = {cell.formula} ({remarks})"
    data = {
        "model": model.name,
        "architecture": model.architecture,
        "attention": model.attention_kind,
        "kv_dtype": dtype,
        "tp": where.tp,
        "bytes_per_token": cell.total,
        "full_bytes": cell.full,
        "sliding_bytes": cell.sliding,
        "index_bytes": cell.index,
    }
    findings.info("KVP504", "cache.kv_dtype", message, data)


def _pool(
    findings: Findings, where: Deployment, model: ModelFacts, cell: KvBytes, page: int, outcome: Outcome | None
) -> None:
    if where.pool_bytes is not None:
        size_bytes, how, estimate = where.pool_bytes, "--memory", False
    elif where.gpu is not None and outcome is not None:
        guess = (
            vllm_pool_bytes(where.gpu, model, tp=where.tp)
            if _is_vllm(where)
            else capacity.estimate_pool_bytes(where.gpu, model, tp=where.tp, chunk_tokens=outcome.chunk_tokens)
        )
        if guess is None:
            findings.info("KVP505", "", "pool: not known without --memory", {"pool_tokens": None})
            return
        size_bytes, how, estimate = *guess, True
    else:
        return
    tokens = capacity.pool_tokens(size_bytes, cell, page)
    data = {"pool_tokens": tokens, "pool_bytes": size_bytes, "page_size": page, "estimate": estimate, "how": how}
    if tokens == 0:
        message = f"no room for a KV pool: {'estimate, ' if estimate else ''}{how}"
        help = "give it more memory, more ranks or a smaller model"
        findings.add("KVP524", "warning" if estimate else "error", "", message, help, data)
        return
    kind = f"estimate, {how}" if estimate else f"{size_bytes / 2**30:.1f} GiB of {how}"
    findings.info("KVP505", "", f"pool: {tokens:,} tokens ({kind})", data)
    longest_tokens = model.context_tokens or where.length_tokens
    finding = unprotected_room(findings.policy, tokens, longest_tokens, locate=findings.locate)
    if finding is not None:
        findings.items.append(finding)


def _granularity(findings: Findings, where: Deployment, page: int, outcome: Outcome | None) -> None:
    attention = outcome.decode_attention if outcome else ""
    rows = [asdict(capacity.granularity(size)) for size in sorted({page, *_PAGES_SHOWN})]
    if _is_vllm(where):  # block tables on every backend, in kernel blocks
        entries = -(-where.length_tokens // (outcome.kernel_page or page if outcome else page))
        entry_bytes = 4  # int32, v1/worker/block_table.py
    else:
        by_pages = outcome is not None and plans_by_pages(findings.policy, where.model, outcome)
        index_of = partial(capacity.index_entries, where.length_tokens, attention=attention, by_pages=by_pages)
        entries = index_of(page)
        entry_bytes = capacity.index_entry_bytes(attention)
        for row in rows:
            row["index_bytes"] = entry_bytes * index_of(row["page_size"])
    losses = ", ".join(f"{row['expected_lost_tokens']:g} at {row['page_size']}" for row in rows)
    per = "token" if entries == where.length_tokens else "page"
    if outcome and outcome.kernel_page not in (None, page):
        per = f"kernel block of {outcome.kernel_page}"
    message = (
        f"page {page}: {entries:,} index entries ({entries * entry_bytes:,} bytes) for {where.length_tokens:,} tokens "
        f"(one a {per}); shortest shared prefix {page}; expected tokens lost a hit by page size: {losses}"
    )
    data = {
        "page_size": page,
        "length_tokens": where.length_tokens,
        "index_entries": entries,
        "index_bytes": entries * entry_bytes,
        "granularity": rows,
    }
    findings.info("KVP506", "cache.page_size", message, data)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
