"""KVP7xx: what `kvpolicy doctor` may find on a running server. No policy text raises these: they have no examples."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SYMPTOMS", "Symptom"]


@dataclass(frozen=True, slots=True)
class Symptom:
    """One code, and what it means for an operator."""

    code: str
    title: str
    text: str


SYMPTOMS: dict[str, Symptom] = {
    symptom.code: symptom
    for symptom in (
        Symptom(
            "KVP701",
            "the server does not run what the policy asks for",
            "A flag, or the engine's own resolution, won over the policy under `on_conflict: warn`: the message names "
            "both sides. Change the flag or the policy, or extend the accept list, and restart.",
        ),
        Symptom(
            "KVP702",
            "another accepted value runs",
            "The preferred value could not be had, one of the accept list runs. No fault; what was measured or sized "
            "for the preferred value may not hold.",
        ),
        Symptom(
            "KVP703",
            "ranks run different policies",
            "Data-parallel ranks of one server name different digests: the same request is treated differently from "
            "rank to rank. Restart the server, or apply one policy to all of it.",
        ),
        Symptom(
            "KVP704",
            "ranks evicted differently",
            "At each swap the tensor-parallel ranks of a scheduler compare what they have evicted, and it was not the "
            "same. Their caches hold different prefixes, so sooner or later they disagree on how much of a prompt is "
            "cached, and hang or answer wrong. Restart the server, and please report the policy.",
        ),
        Symptom(
            "KVP711",
            "calls were served in the engine's order",
            "The policy failed in some calls, and the engine's own order served those instead. Requests are answered "
            "right, but what was evicted in these calls is not the policy's choice. The first fault of each kind is in "
            "the server's log with its traceback: please report it.",
        ),
        Symptom(
            "KVP712",
            "slots or pages were misused",
            "The allocator's guard found KV slots that were freed twice, or freed and never handed out, and repaired "
            "it. Some code path of the engine, or of a plugin, loses count of its slots; without the guard that ends "
            "in a wrong answer or a crash.",
        ),
        Symptom(
            "KVP713",
            "misses are explained no more",
            "The memory of evictions ended after a fault. Nothing else is affected.",
        ),
        Symptom(
            "KVP721",
            "salts that are hardly ever seen again",
            "Every cache_salt has a cache of its own. Most salts of this traffic are new, as if each request drew a "
            "random one: such a request can neither find what others cached nor be found again, and its tokens only "
            "push others out. Send one salt a tenant, and none where sharing is wanted.",
        ),
        Symptom(
            "KVP722",
            "prompts shorter than a page",
            "Only whole pages are cached: a prompt shorter than one never is, and of every other up to a page less one "
            "token is lost. A smaller page size finds more; `kvpolicy check --engine` says what it costs.",
        ),
        Symptom(
            "KVP731",
            "running requests leave no room for a cache",
            "Nearly the whole KV pool is held by running requests, so whatever is cached is evicted at once, by any "
            "policy. Give the pool more memory (a smaller KV dtype, more of the GPU), or run fewer requests at a time.",
        ),
        Symptom(
            "KVP732",
            "much of what is evicted is asked for again",
            "A large part of the evicted tokens had to be computed again. `kvpolicy why` says which rule had them and "
            "how much room would have kept them; `kvpolicy recommend` looks for a better policy on a trace.",
        ),
        Symptom(
            "KVP733",
            "rules protect nearly the whole pool",
            "What rules protect goes last, so little is left for everything else, and among the protected the weights "
            "decide. Give the rules budgets, or make their conditions narrower.",
        ),
        Symptom(
            "KVP734",
            "nothing was evicted yet",
            "The pool had room for everything so far. The policy's eviction has had nothing to decide, and figures on "
            "it say nothing yet.",
        ),
        Symptom(
            "KVP741",
            "the router's blocks are not the engine's",
            "A router that matches prompts against the engine's KV events cuts them into blocks of its own size. Where "
            "that is not the engine's, no hash is ever equal, every overlap is 0, and requests go anywhere, without an "
            "error. Give both the same size.",
        ),
        Symptom(
            "KVP742",
            "announced blocks are not pages",
            "The engine announces blocks of another size than its pages, as with decode context parallelism, where a "
            "block spans ranks. A router has to be given the size of the events.",
        ),
        Symptom(
            "KVP743",
            "announced blocks name no salt",
            "Requests carry a cache_salt, which is part of the engine's hashes, and the events do not say so. A router "
            "that computes hashes by itself, with or without the salt, finds none of them.",
        ),
        Symptom(
            "KVP744",
            "no block was announced",
            "Nothing was cached while `doctor` listened, or the events of this server go elsewhere. Events begin with "
            "the subscription: what was cached before is not told again.",
        ),
    )
}
