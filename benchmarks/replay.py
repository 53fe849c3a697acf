"""How fast a replay is: CPU seconds a pass, and block touches a second, on the shipped traces.

    python benchmarks/replay.py            # about two minutes
    python benchmarks/replay.py --quick    # the conversation trace only

A *touch* is one block of one prompt looked up. Times are CPU seconds of this process, which a busy machine disturbs
least; a pass is the reading of the file apart. The public kvcache-simulator (0.1.3, its Python backend) is timed in the
same run where it is installed, on the same blocks.
"""

from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path

from kvpolicy.language import load_text
from kvpolicy.replay.clairvoyant import TraceRecord, clairvoyant
from kvpolicy.replay.interleave import Interleaving
from kvpolicy.replay.pages import Pager
from kvpolicy.replay.policies import from_result, load
from kvpolicy.replay.simulator import Eviction, Simulator
from kvpolicy.replay.trace import Trace

TRACES = Path(__file__).resolve().parent.parent / "traces"
CONVERSATION = TRACES / "mooncake_conversation_first_half.jsonl.gz"
AGENTIC = TRACES / "agentic_sessions_400.jsonl.gz"
SCORES = {
    "stable": "200 * log1p(hits) - depth_tokens / 1000",
    "decay": "200 * log1p(hits) - idle_requests",
    "dynamic": "log1p(hits) / (1 + idle_requests)",
    "long": "(1 + hits) * exp(-idle_s / (60 + 4 * reuse_gap_s)) * sqrt(depth_tokens) / (1 + age_requests) ** 0.5",
}


def scored(name: str) -> Eviction:
    text = f"apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {{name: bench}}\neviction: {{score: {SCORES[name]}}}\n"
    result = load_text(text.encode())
    if result.policy is None:
        raise SystemExit("\n".join(map(str, result.diagnostics)))
    return from_result(result, f"score ({name})")


def one_pass(path: Path, eviction: Eviction, capacity: int, granularity: str, sessions: int | None) -> None:
    read_s = serve_s = 0.0
    trace = Trace(str(path), interleaving=Interleaving(max_sessions=sessions))
    page = trace.info.block_tokens
    pager, simulator = Pager(page, page), Simulator(eviction, capacity, page, granularity)
    at = time.process_time()
    for request in trace.requests():
        pages = pager.pages(request.blocks, request.input_tokens)
        now = time.process_time()
        read_s += now - at
        simulator.request(request, pages, len(pages), pages)
        at = time.process_time()
        serve_s += at - now
    touches = simulator.stats.touched_pages
    hit = sum(simulator.stats.hit_tokens)
    print(
        f"{eviction.name:<16} {granularity:<5} {capacity / 1e6:>4.1f}M  read {read_s:6.2f} s  pass {serve_s:6.2f} s"
        f"  {touches / serve_s / 1e6:7.2f}M touches/s  {simulator.stats.victims:>9,} victims  {hit / 1e6:8.1f}M hits",
        flush=True,
    )


def bounds(path: Path, capacity: int) -> None:
    trace = Trace(str(path))
    page = trace.info.block_tokens
    pager, record = Pager(page, page), TraceRecord(page)
    started = time.process_time()
    for request in trace.requests():
        pages = pager.pages(request.blocks, request.input_tokens)
        record.add(request, len(pages), pages)
    paths = record.paths()
    recorded = time.process_time()
    clairvoyant(record, paths, capacity)
    ended = time.process_time()
    record_s, pass_s = recorded - started, ended - recorded
    print(f"clairvoyant            {capacity / 1e6:>4.1f}M  record {record_s:4.2f} s  pass {pass_s:6.2f} s")


def public_simulator(path: Path, blocks: int) -> None:
    try:
        from kvcache_sim.plan import build_execution_plan
        from kvcache_sim.policies import simulate_policy
        from kvcache_sim.trace import parse_trace_file
    except ImportError:
        print("kvcache-simulator is not installed: no comparison (pip install kvcache-simulator==0.1.3)")
        return
    plan = build_execution_plan(parse_trace_file(str(path), block_size=512), 0.5)
    for policy in ("lru", "optimal"):
        started = time.process_time()
        simulate_policy(plan, policy, blocks)
        print(f"kvcache-simulator, {policy:<8} page  pass {time.process_time() - started:6.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the conversation trace only")
    args = parser.parse_args()
    gc.disable()  # as `kvpolicy replay` does: nodes are freed when they are removed
    lru = from_result(load("lru"), "lru")
    print("conversation, 6,015 requests, 153,002 blocks of 512 tokens")
    for granularity in ("node", "page"):
        one_pass(CONVERSATION, lru, 2_000_000, granularity, None)
    for name in SCORES:
        for granularity in ("node", "page"):
            one_pass(CONVERSATION, scored(name), 2_000_000, granularity, None)
    for name in ("gdsf", "long_context"):
        one_pass(CONVERSATION, from_result(load(name), name), 2_000_000, "page", None)
    bounds(CONVERSATION, 2_000_000)
    public_simulator(CONVERSATION, 2_000_000 // 512)
    if not args.quick:
        print("agentic, 400 sessions by node and the first 20 by page, blocks of 64 tokens")
        one_pass(AGENTIC, lru, 2_000_000, "node", None)
        one_pass(AGENTIC, lru, 500_000, "page", 20)


if __name__ == "__main__":
    main()
