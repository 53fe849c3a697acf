"""Greedy outputs of one workload, one request at a time, on a pool so small that most of it is evicted.

    python outputs.py [--passes N] MODEL TEXT POOL_TOKENS (stock:PAGE | auto:PAGE | POLICY) ...

`stock` has a KV cache of bf16, `auto` of the model's own dtype. Tells one object an engine: what it generated, what it
found cached, what it evicted, and whether its books balance.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from subject import Subject, tell

STOCK = {"stock": "bf16", "auto": "auto"}  # KV dtype
NEW_TOKENS = 6
SYSTEM = (
    "You are the assistant of the harbour office of Lindholm. Answer in one sentence, from these facts only. The ferry "
    "to Aland leaves at 8 in the morning and at 6 in the evening. The crossing takes 3 hours. A ticket costs 20 euros. "
    "Dogs are allowed on deck. The harbour office is open from 7 to 19. The lost property room is next to pier 2.\n"
)
QUESTIONS = ("How much is a ticket?", "How long is the crossing?", "When does it open?", "May my dog come?")


def workload(text: Path) -> list[str]:
    """A shared opening, asked about again and again, between documents of which some come back."""
    words = text.read_text().split()
    documents = [f"{n}. {' '.join(words[n * 70 : n * 70 + 70])}\nIn short:" for n in range(6)]
    asks = [f"{SYSTEM}Question: {question}\nAnswer:" for question in QUESTIONS]
    return [
        asks[0], asks[1], documents[0], asks[2], documents[1], documents[0], documents[2], documents[3], asks[3],
        documents[4], documents[0], documents[5], asks[0], documents[5],
    ]  # fmt: skip


def measure(subject: Subject, prompts: list[str]) -> dict[str, Any]:
    answers = [subject.generate(prompt, NEW_TOKENS, return_logprob=True) for prompt in prompts]
    state = subject.state()
    return {
        "output_ids": [answer["output_ids"] for answer in answers],
        "logprobs": [[step[0] for step in answer["meta_info"]["output_token_logprobs"]] for answer in answers],
        "text": [answer["text"] for answer in answers],
        "cached": [answer["meta_info"]["cached_tokens"] for answer in answers],
        "prompt": [answer["meta_info"]["prompt_tokens"] for answer in answers],
        "page_size": state["page_size"],
        "kvpolicy": state.get("kvpolicy"),
        "witness": state["witness"],
        "start_s": subject.start_s,
    }


def main() -> None:
    arguments_given, passes = sys.argv[1:], 1
    if arguments_given[0] == "--passes":
        passes, arguments_given = int(arguments_given[1]), arguments_given[2:]
    model, text, pool_tokens, *cases = arguments_given
    prompts = workload(Path(text)) * passes
    policy: str | None
    arguments: dict[str, Any]
    for case in cases:
        policy, arguments = case, {}
        kind, _, page = case.partition(":")
        if kind in STOCK:
            policy, arguments = None, {"attention_backend": "torch_native", "kv_cache_dtype": STOCK[kind]}
            arguments["page_size"] = int(page)
        with Subject(model, policy, int(pool_tokens), chunked_prefill_size=128, **arguments) as subject:
            tell({"case": case, **measure(subject, prompts)})


if __name__ == "__main__":
    main()
