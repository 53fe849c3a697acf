"""Greedy outputs of one workload, one request at a time, on a pool so small that most of it is evicted.

    python outputs.py MODEL DTYPE POOL_TOKENS TEXT (stock:BLOCK_TOKENS | POLICY:BLOCK_TOKENS)[+FAULT@REQUEST ...] ...

Tells one object an engine: what it generated, what it found cached, what it evicted, and whether its books balance.
A fault (see FAULTS) breaks that engine before the request of that number, counted from 1.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from subject import Subject, tell

STOCK = "stock"
NEW_TOKENS = 6
SYSTEM = (
    "You are the assistant of the harbour office of Lindholm. Answer in one sentence, from these facts only. The ferry "
    "to Aland leaves at 8 in the morning and at 6 in the evening. The crossing takes 3 hours. A ticket costs 20 euros. "
    "Dogs are allowed on deck. The harbour office is open from 7 to 19. The lost property room is next to pier 2. "
    "Bikes travel free of charge. The cafe on board serves soup until 10 and coffee all day. Cars must arrive 40 "
    "minutes before the ferry leaves. In winter there is no ferry on Sundays.\n"
)
QUESTIONS = ("How much is a ticket?", "How long is the crossing?", "When does it open?", "May my dog come?")


def workload(text: Path, encode: Any) -> list[list[int]]:
    """A shared opening, asked about again and again, between documents of which some come back."""
    words = text.read_text().split()
    documents = [f"{n}. {' '.join(words[n * 90 : n * 90 + 90])}\nIn short:" for n in range(6)]
    asks = [f"{SYSTEM}Question: {question}\nAnswer:" for question in QUESTIONS]
    texts = [
        asks[0], asks[1], documents[0], asks[2], documents[1], documents[0], documents[2], documents[3], documents[4],
        asks[3], documents[0], documents[5], asks[0], documents[5],
    ]  # fmt: skip
    return [encode(text) for text in texts]


def measure(subject: Subject, text: Path, faults: dict[int, str]) -> dict[str, Any]:
    answers, prompts = [], workload(text, subject.llm.get_tokenizer().encode)
    for number, prompt in enumerate(prompts, 1):
        if number in faults:
            FAULTS[faults[number]](subject)
        answers.append(subject.ask(prompt, NEW_TOKENS))
    outputs = [answer.outputs[0] for answer in answers]
    return {
        "output_ids": [list(output.token_ids) for output in outputs],
        "logprobs": [
            [step[token].logprob for step, token in zip(o.logprobs, o.token_ids, strict=True)] for o in outputs
        ],
        "text": [output.text for output in outputs],
        "cached": [answer.num_cached_tokens for answer in answers],
        "prompt": [len(prompt) for prompt in prompts],
        "kvpolicy": subject.status(),
        "witness": subject.witness(),
    }


def wrong_block(subject: Subject) -> None:
    """A block of a prefix that several requests share gets the keys and values of another: what a block that is handed
    out while somebody needs its content looks like."""
    cached = [block for block in subject.pool.blocks if block.block_hash is not None]
    shared, other = cached[0].block_id, cached[-1].block_id
    assert shared != other
    for cache in subject.core.model_executor.driver_worker.worker.model_runner.kv_caches:
        blocks = cache if cache.shape[0] == len(subject.pool.blocks) else cache.transpose(0, 1)
        assert blocks.shape[0] == len(subject.pool.blocks)
        blocks[shared] = blocks[other]


def lost_block(subject: Subject) -> None:
    """One free block is taken out of the queue and forgotten."""
    queue = subject.pool.free_block_queue
    queue.remove(queue.get_all_free_blocks()[-1])


FAULTS = {"wrong-block": wrong_block, "lost-block": lost_block}


def main() -> None:
    model, dtype, pool, text, *cases = sys.argv[1:]
    for case in cases:
        engine, *faults = case.split("+")
        breaks = {int(at): name for name, at in (fault.split("@") for fault in faults)}
        name, _, size = engine.rpartition(":")
        policy, arguments = (name, {}) if name != STOCK else (None, {"block_size": int(size)})
        pool_tokens = int(pool)
        with Subject(model, policy, pool_tokens // int(size), pool_tokens // 2, dtype=dtype, **arguments) as subject:
            tell({"case": case, **measure(subject, Path(text), breaks)})


if __name__ == "__main__":
    main()
