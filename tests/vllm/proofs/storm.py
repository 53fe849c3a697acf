"""Many requests at once in a pool that cannot hold what runs: preemptions, evictions, and what comes out.

    python storm.py MODEL TEXT COUNT (serial | stock | POLICY)[+FAULT] ...

`serial` asks the distinct prompts one by one: the reference. The others get COUNT requests, some new ones at each step.
Tells one object an engine: its outputs by prompt, preemptions, evictions, and whether its books balance. A fault (see
FAULTS) breaks what the pool hands out all the while.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from subject import Subject, tell

BLOCK_TOKENS, BLOCKS, RUNNING = 32, 10, 8
DISTINCT, NEW_TOKENS = 24, 6
ARRIVALS_A_STEP = 2


def prompts(text: Path, encode: Any) -> list[list[int]]:
    """Some continue others; many end a few tokens before a block does, so that decoding needs one more."""
    words, draw = encode(text.read_text()[:20000]), random.Random(5)
    stems = [words[at * 60 : at * 60 + 34] for at in range(10)]
    return [[*stems[n % 10], *words[600 + n * 40 :][: draw.randrange(1, 30)]] for n in range(DISTINCT)]


def serial(subject: Subject, asked: list[list[int]]) -> list[list[Any]]:
    return [[n, list(subject.ask(prompt, NEW_TOKENS).outputs[0].token_ids)] for n, prompt in enumerate(asked)]


def concurrent(subject: Subject, asked: list[list[int]], count: int) -> list[list[Any]]:
    """`[number of the prompt, output]` of each request."""
    draw, waiting = random.Random(7), []
    for at in range(count):
        salt = draw.choice([None, "gold", "noisy"])
        extra = {"vllm_xargs": {"kvpolicy_priority": priority}} if (priority := draw.choice([None, -1, 3])) else {}
        waiting.append((at % DISTINCT if at < DISTINCT else draw.randrange(DISTINCT), {"salt": salt, **extra}))
    numbers, outputs = {}, []
    while waiting or subject.engine.has_unfinished_requests():
        for number, request in waiting[:ARRIVALS_A_STEP]:
            numbers[subject.add(asked[number], NEW_TOKENS, **request)] = number
        del waiting[:ARRIVALS_A_STEP]
        subject.now_s += 1
        outputs += [[numbers[done.request_id], list(done.outputs[0].token_ids)] for done in subject.step()]
    return outputs


def count_preemptions(subject: Subject) -> list[Any]:
    """Every preemption from now on, as it happens."""
    scheduler, seen = subject.core.scheduler, []
    preempt = scheduler._preempt_request

    def counted(request: Any, *rest: Any, **more: Any) -> Any:
        seen.append(request.request_id)
        return preempt(request, *rest, **more)

    scheduler._preempt_request = counted
    return seen


def stale_hash(subject: Subject) -> None:
    """A block that is handed out again still counts as holding what it held."""
    subject.pool._maybe_evict_cached_block = lambda block: block.reset_hash()
    if (guard := getattr(subject.pool, "guard", None)) is not None:
        guard.units.cached = lambda *_: None


def in_use(subject: Subject) -> None:
    """Now and then a request gets a block that another one is using."""
    pool, original, calls = subject.pool, subject.pool.get_new_blocks, 0

    def handed_out(count: int, *rest: Any, **more: Any) -> Any:
        nonlocal calls
        blocks = original(count, *rest, **more)
        calls += 1
        taken = [b for b in pool.blocks[1:] if b.ref_cnt and b.block_hash is not None and b not in blocks]
        if calls % 8 == 0 and taken:
            pool.free_blocks([blocks[-1]])
            taken[-1].ref_cnt += 1
            blocks[-1] = taken[-1]
            taken[-1].reset_hash()
        return blocks

    pool.get_new_blocks = handed_out


FAULTS = {"stale-hash": stale_hash, "in-use": in_use}


def main() -> None:
    model, text, count, *cases = sys.argv[1:]
    for case in cases:
        name, _, fault = case.partition("+")
        policy, arguments = (name, {}) if name not in ("serial", "stock") else (None, {"block_size": BLOCK_TOKENS})
        with Subject(model, policy, BLOCKS, BLOCKS * BLOCK_TOKENS // 2, max_num_seqs=RUNNING, **arguments) as subject:
            preempted = count_preemptions(subject)
            asked = prompts(Path(text), subject.llm.get_tokenizer().encode)
            if fault:
                FAULTS[fault](subject)
            outputs = serial(subject, asked) if name == "serial" else concurrent(subject, asked, int(count))
            told = {"case": case, "outputs": outputs, "preemptions": len(preempted), "kvpolicy": subject.status()}
            tell(told if fault else told | {"witness": subject.witness()})


if __name__ == "__main__":
    main()
