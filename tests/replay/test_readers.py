"""Every trace format: a small example, what is read from it, and that a bad row is named by file and line."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from kvpolicy.eviction.envelope import Action
from kvpolicy.replay.errors import TraceError, TraceUsageError
from kvpolicy.replay.formats import FORMATS
from kvpolicy.replay.interleave import Interleaving
from kvpolicy.replay.requests import Request
from kvpolicy.replay.trace import Trace

MOONCAKE = {"timestamp": 27, "input_length": 1000, "output_length": 5, "hash_ids": [0, 46]}
BAILIAN = {
    "chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 40, "output_length": 132,
    "type": "text", "turn": 1, "hash_ids": [1089, 1090, 1091],
}  # fmt: skip
DYNAMO = [
    {"request_id": "r1", "session_id": "s", "input_length": 600, "output_length": 5, "hash_ids": [1, 2],
     "timestamp": 10.0},
    {"request_id": "r2", "session_id": "s", "input_length": 600, "output_length": 5, "hash_ids": [1, 3],
     "wait_for": ["r1"], "delay": 100.0, "tool_wait_ms": 50.0},
]  # fmt: skip
AGENTIC = {
    "id": "trace_1", "block_size": 64, "tool_tokens": 1, "system_tokens": 1, "models": ["m"], "requests": [
        {"t": 0.0, "a": "main", "m": 0, "in": 200, "out": 9, "p": 0, "h": [1, 3], "api": 7.5, "think": 0.0},
        {"t": 19.0, "a": "main", "m": 0, "in": 330, "out": 9, "p": 2, "h": [9, 1, 20, 2], "api": 9.0, "think": 1.0},
    ],
}  # fmt: skip

RECORDED = {
    "kvpolicy_record": "sglang", "timestamp": 12, "duration": 80, "input_length": 40, "output_length": 30,
    "cached_tokens": 16, "block_size": 16, "hash_ids": [0, 1], "output_hash_ids": [2, 3], "cache_salt": "#0",
    "session_id": "#1", "priority": 2,
}  # fmt: skip


def log_row(event: str, rid: str, at: str, **more: object) -> str:
    obj = {"input_ids": [1, 2, 3], "priority": 4, "cache_salt": "gold", "extra_key": None, "lora_path": None}
    row = {"timestamp": f"2026-11-29T18:00:{at}", "event": event, "rid": rid, "obj": obj, **more}
    return f"[2026-11-29 18:00:{at[:2]}] {json.dumps(row)}"


def finished(prompt_tokens: int = 3) -> dict[str, object]:
    return {"out": {"output_ids": [7, 8, 9], "meta_info": {"prompt_tokens": prompt_tokens, "e2e_latency": 1.0}}}


LOG = [
    "[2026-11-29 18:00:00] server_args=ServerArgs(model_path='x')",
    log_row("request.received", "a", "01.000"),
    log_row("request.received", "b", "02.000"),
    "INFO:     127.0.0.1 - POST /generate HTTP/1.1 200 OK",
    log_row("request.finished", "b", "03.000", **finished()),
    log_row("request.finished", "a", "04.500", **finished()),
]
EVENTS = [
    [1.0, [{"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": None, "block_size": 16}]],
    [1.5, [{"type": "BlockStored", "block_hashes": [3], "parent_block_hash": 2, "block_size": 16}]],
    [9.0, [["BlockStored", [4], 2, [], 16, None], ["BlockRemoved", [3]]]],
]


def read(path: str, **more: object) -> list[Request]:
    return list(Trace(path, **more).requests())  # type: ignore[arg-type]


def test_mooncake(trace_file) -> None:
    trace = Trace(trace_file(MOONCAKE))
    assert (trace.info.format, trace.info.block_tokens) == ("mooncake", 512)
    (request,) = trace.requests()
    assert (request.arrival_ms, request.input_tokens, request.output_tokens, request.blocks) == (27, 1000, 5, [0, 46])


def test_a_block_size_in_the_row_counts_and_one_given_by_hand_counts_more(trace_file) -> None:
    path = trace_file({**MOONCAKE, "block_size": 1024})
    assert Trace(path).info.block_tokens == 1024
    assert Trace(path, options={"block_tokens": 2048}).info.block_tokens == 2048


def test_a_recording_has_outputs_and_whole_pages(trace_file) -> None:
    trace = Trace(trace_file(RECORDED))
    assert (trace.info.format, trace.info.block_tokens, trace.info.is_exact) == ("recorded", 16, True)
    assert trace.info.ahead_pages == 1
    (request,) = trace.requests()
    assert (request.arrival_ms, request.duration_ms, request.input_tokens, request.output_tokens) == (12, 80, 40, 30)
    assert (request.blocks, request.full_blocks) == ([0, 1], [0, 1, 2, 3])
    assert (request.info.cache_salt, request.info.session_id, request.info.priority) == ("#0", "#1", 2)
    assert request.info.hints is None
    assert Trace(trace_file({**RECORDED, "kvpolicy_record": "vllm"})).info.ahead_pages == 0


def test_a_recording_has_hints(trace_file) -> None:
    action = {"action_id": "#0", "action_type": "kv.retain", "action_version": "1.0", "payload": {"ttl": "90ms"}}
    (request,) = read(trace_file({**RECORDED, "kv_hints": {"actions": [action]}}))
    assert request.info.hints is not None
    assert request.info.hints.actions == (Action("#0", "retain", ttl_ms=90),)


def test_bailian_times_are_seconds(trace_file) -> None:
    trace = Trace(trace_file(BAILIAN))
    assert (trace.info.format, trace.info.block_tokens) == ("bailian", 16)
    assert next(iter(trace.requests())).arrival_ms == 61114


def test_dynamo_rows_wait_for_others(trace_file) -> None:
    trace = Trace(trace_file(*DYNAMO))
    assert trace.info.format == "dynamo"
    first, second = trace.requests()
    assert (first.arrival_ms, second.arrival_ms) == (10, 160)
    assert second.info.session_id == "s"


def test_agentic_prompts_are_rebuilt(trace_file) -> None:
    trace = Trace(trace_file(AGENTIC), interleaving=Interleaving(mean_gap_s=0))
    first, second = trace.requests()
    assert list(first.blocks) == [1, 2, 3]
    assert list(second.blocks) == [1, 2, 9, 20, 21]
    assert (second.arrival_ms, second.duration_ms, second.info.session_id) == (19000, 9000, "trace_1")


def test_agentic_sessions_share_no_block(trace_file) -> None:
    requests = read(trace_file(AGENTIC, AGENTIC))
    blocks = [set(request.blocks) for request in requests if len(request.blocks) == 3]
    assert blocks[0].isdisjoint(blocks[1])


def test_an_sglang_log_in_the_order_of_arrival(trace_file) -> None:
    trace = Trace(trace_file(*LOG))
    assert (trace.info.format, trace.info.block_tokens) == ("sglang-log", 1)
    first, second = trace.requests()
    assert (first.arrival_ms, first.duration_ms, second.arrival_ms, second.duration_ms) == (0, 3500, 1000, 1000)
    assert list(first.full_blocks or ()) == [1, 2, 3, 7, 8], "the last token is sampled and never computed"
    assert (first.info.cache_salt, first.info.priority) == ("gold", 4)


def test_an_sglang_log_keeps_requests_that_never_finished(trace_file) -> None:
    (request,) = read(trace_file(LOG[0], LOG[1]))
    assert request.full_blocks is None


def test_a_log_with_cut_prompts_is_refused(trace_file) -> None:
    path = trace_file(LOG[1], log_row("request.finished", "a", "04.500", **finished(prompt_tokens=5000)))
    with pytest.raises(TraceError, match=r":2: error: the prompt has 5000 tokens, but 3 .*\n.*--log-requests-level 3"):
        read(path)


def test_a_log_without_requests_says_how_to_get_them(trace_file) -> None:
    with pytest.raises(TraceError, match="--log-requests-format json"):
        Trace(trace_file(LOG[0], LOG[3]))


def test_kv_events_give_back_paths(trace_file) -> None:
    trace = Trace(trace_file(*EVENTS))
    assert (trace.info.format, trace.info.block_tokens) == ("kv-events", 16)
    first, second = trace.requests()
    assert (list(first.blocks), first.arrival_ms) == ([1, 2, 3], 0)
    assert (list(second.blocks), second.arrival_ms, second.input_tokens) == ([1, 2, 4], 8000, 48)
    assert any("missing from this replay" in note for note in trace.info.notes)


def test_tokens_texts_and_messages(trace_file) -> None:
    rows = [
        {"tokens": [1, 2, 3], "output_ids": [4, 5], "timestamp": 5, "cache_salt": "a"},
        {"prompt": "hi", "arrival_s": 0.25},
        {"messages": [{"role": "user", "content": "hi"}], "timestamp": 300},
    ]
    one, two, three = read(trace_file(*rows), options={"tokenizer": "bytes"})
    assert (list(one.blocks), list(one.full_blocks or ()), one.info.cache_salt) == ([1, 2, 3], [1, 2, 3, 4], "a")
    assert (list(two.blocks), two.arrival_ms) == (list(b"hi"), 250)
    assert bytes(three.blocks) == b"<user>hi<assistant>"  # type: ignore[arg-type]


def test_texts_need_a_tokenizer(trace_file) -> None:
    with pytest.raises(TraceUsageError, match="--tokenizer"):
        read(trace_file({"prompt": "hi"}))
    with pytest.raises(TraceUsageError, match="no tokenizer can be loaded from '/does/not/exist'"):
        read(trace_file({"prompt": "hi"}), options={"tokenizer": "/does/not/exist"})


BAD = [
    ("recorded", RECORDED, {**RECORDED, "output_length": None}, "'output_length' is null"),
    ("recorded", RECORDED, {**RECORDED, "block_size": 32}, "'block_size' is 32, the rows before have 16"),
    ("recorded", RECORDED, {**RECORDED, "output_hash_ids": list(range(9))}, "9 output_hash_ids for 46 tokens"),
    ("mooncake", MOONCAKE, {**MOONCAKE, "input_length": -1}, "'input_length' is -1"),
    ("mooncake", MOONCAKE, {**MOONCAKE, "hash_ids": "x"}, "'hash_ids' is 'x', expected a list"),
    ("mooncake", MOONCAKE, {**MOONCAKE, "hash_ids": [1, 2.5]}, "'hash_ids' holds a float"),
    ("mooncake", MOONCAKE, {**MOONCAKE, "hash_ids": [1, 2, 3]}, "3 hash_ids for 1000 tokens"),
    ("mooncake", MOONCAKE, {**MOONCAKE, "timestamp": None}, "'timestamp' is null"),
    ("mooncake", MOONCAKE, {"x": 1}, "no 'input_length' in this row"),
    ("mooncake", MOONCAKE, '{"timestamp": 1, "inp', "not JSON"),
    ("mooncake", MOONCAKE, "[1, 2]", "this is a list"),
    ("mooncake", MOONCAKE, "3", "this is a number"),
    ("bailian", BAILIAN, {**BAILIAN, "timestamp": "now"}, "'timestamp' is 'now'"),
    ("dynamo", DYNAMO[0], {**DYNAMO[1], "wait_for": ["nobody"]}, "waits for 'nobody'"),
    ("agentic", AGENTIC, {**AGENTIC, "requests": [{"t": 1}]}, "requests[0]: no 'in'"),
    ("agentic", AGENTIC, {**AGENTIC, "block_size": 32}, "block_size 32"),
    ("agentic", AGENTIC, {**AGENTIC, "requests": [{**AGENTIC["requests"][0], "h": [1]}]}, "pairs of start and count"),
    ("kv-events", EVENTS[0], [1.0, [{"type": "Strange"}]], "unknown event 'Strange'"),
    ("kv-events", EVENTS[0], ["x", []], "the batch's time is 'x'"),
    ("kv-events", EVENTS[0], [1.0, [{"type": "BlockRemoved", "block_hashes": [{}]}]], "a block hash is a dict"),
    ("tokens", {"tokens": [1]}, {"tokens": [1, "a"]}, "expected a list of token ids"),
    ("tokens", {"tokens": [1]}, {"output_ids": [1]}, "no prompt in this row"),
    ("sglang-log", LOG[1], log_row("request.finished", "a", "03.000"), "without 'out'"),
]


@pytest.mark.parametrize(("format", "good", "bad", "message"), BAD, ids=[f"{b[0]}-{b[3][:24]}" for b in BAD])
def test_a_bad_row_is_named_and_can_be_skipped(
    trace_file, format: str, good: object, bad: object, message: str
) -> None:
    path = trace_file(good, "", bad, good if format != "sglang-log" else LOG[2])
    with pytest.raises(TraceError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:3: error: ")
    assert message in caught.value.message
    trace = Trace(path, skip_bad=True)
    assert list(trace.requests())
    assert trace.bad_rows == 1
    assert trace.first_bad is not None
    assert trace.first_bad.line == 3


def test_every_format_has_a_bad_row_here() -> None:
    assert {bad[0] for bad in BAD} == set(FORMATS)


def test_a_last_line_that_was_cut_off_is_said_to_be(trace_file, tmp_path) -> None:
    path = tmp_path / "cut.jsonl"
    path.write_text(json.dumps(MOONCAKE) + "\n" + json.dumps(MOONCAKE)[:30])
    with pytest.raises(TraceError, match="still being written"):
        read(str(path))


def test_empty_unknown_and_missing_files(trace_file, tmp_path) -> None:
    with pytest.raises(TraceError, match="no request in this file"):
        Trace(trace_file(name="empty.jsonl"))
    with pytest.raises(TraceError, match="no known trace format has rows like this one \\(what\\)"):
        Trace(trace_file({"what": 1}))
    with pytest.raises(TraceUsageError, match="cannot open"):
        Trace(str(tmp_path / "no.jsonl"))
    with pytest.raises(TraceUsageError, match="cannot open"):
        Trace(str(tmp_path))


def test_gzip_and_its_damage(trace_file, tmp_path) -> None:
    path = trace_file(*[MOONCAKE] * 50, name="t.jsonl.gz")
    assert len(read(path)) == 50
    cut = tmp_path / "cut.gz"
    cut.write_bytes((tmp_path / "t.jsonl.gz").read_bytes()[:-20])
    with pytest.raises(TraceError, match=r"cut\.gz:\d+: error: the compressed data is damaged"):
        read(str(cut))


@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the zstd program to make the file")
def test_zstd_and_its_damage(trace_file, tmp_path) -> None:
    path = trace_file(*[{**MOONCAKE, "timestamp": i} for i in range(50)])
    subprocess.run(["zstd", "-q", path], check=True)
    assert len(read(f"{path}.zst")) == 50
    cut = tmp_path / "cut.zst"
    cut.write_bytes((tmp_path / "trace.jsonl.zst").read_bytes()[:-20])
    with pytest.raises(TraceError, match="the compressed data is damaged"):
        read(str(cut))


def test_interleaving_is_seeded_and_said(trace_file) -> None:
    path = trace_file(*[AGENTIC] * 20)

    def times(seed: int) -> list[int]:
        return [request.arrival_ms for request in Trace(path, interleaving=Interleaving(seed=seed)).requests()]

    assert times(7) == times(7) != times(8)
    assert times(7) == sorted(times(7))
    how = Interleaving(tail_s=5.0)
    kept = read(path, interleaving=how)
    assert how.dropped == 1
    assert len(kept) == 39
    assert str(how) == (
        "20 sessions, exponential starts of mean 30 s, seed 7, cut 5 s after the last start (1 requests dropped)"
    )


def test_texts_that_name_blocks_become_the_same_numbers_in_every_run(trace_file) -> None:
    a = 4681665781835383343
    (request,) = read(trace_file({**MOONCAKE, "hash_ids": ["a", 3]}))
    assert list(request.blocks) == [a, 3]
    event = {"type": "BlockStored", "block_hashes": ["a", [1, 2]], "parent_block_hash": None, "block_size": 16}
    (request,) = read(trace_file([1.0, [event]]))
    assert list(request.blocks) == [a, (1, 2)]


def test_rows_out_of_order_are_counted(trace_file) -> None:
    trace = Trace(trace_file({**MOONCAKE, "timestamp": 9}, {**MOONCAKE, "timestamp": 3}))
    assert [request.arrival_ms for request in trace.requests()] == [9, 3]
    assert trace.out_of_order == 1
