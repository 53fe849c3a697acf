"""Topics of what surrounds a running server: finding faults, changing a policy, scheduling, and what is counted."""

from __future__ import annotations

from kvpolicy.language.topics.base import Topic, topics

__all__ = ["SERVING"]

SERVING = topics(
    Topic(
        "doctor",
        "what is wrong with a running server; and where router and engine disagree",
        "`kvpolicy doctor --url` compares each setting as requested and as effective, and looks for faults, salts "
        "that are hardly ever seen again, prompts shorter than a page, and pressure (each finding has a code, and says "
        "what to do). It asks the server, not a router.\n\n"
        "A cache-aware router computes block hashes as it believes the engine does. If the page size, the salt or "
        "the tokenizer differs, its overlap is 0 for ever, and nothing says so (dynamo#8197, dynamo#13216, "
        "llm-d#2500). By hand: compare the effective page size with the router's block size; send one prompt twice "
        "through the router and once past it, with cached tokens reported (SGLang: --enable-cache-report). A hit past "
        "the router and none through it means that it changes the prompt or the salt.\n\n"
        "Before the start `kvpolicy check --engine --model --gpu` says which page size the engine will really run "
        "(KVP501, KVP511), and a page size that is neither asked for nor accepted ends the start "
        "(on_conflict: error).",
    ),
    Topic(
        "page-size",
        "the page size that really runs, and what it costs",
        "An engine may round, force or refuse a page size, by attention backend, model or dtype. `cache.page_size` "
        "says what is asked for and what is acceptable; anything else is a conflict, not a silence. `kvpolicy "
        "check --engine --model --gpu` names the one that will run and the rule that forces it (KVP501, KVP511, "
        "KVP512), and what it costs: the shortest prefix that can be shared, and the tokens that a hit loses on "
        "average (KVP506).\n\n"
        "A prompt shorter than a page shares nothing and still holds a page. Models with state layers can force "
        "pages of thousands of tokens (vllm#54458: 7,808). For vLLM `check` computes that growth (KVP511) and warns "
        "of a rule whose prefixes are shorter than one page (KVP525).",
        example="cache: {page_size: {prefer: 16, accept: [16, 32, 64]}}\n",
    ),
    Topic(
        "layer-dtypes",
        "another KV dtype for some layers",
        '`cache.kv_dtype: {default: fp8_e4m3, layers: {"0-1": bf16}}` is part of the language. On vLLM it becomes '
        "`--kv-cache-dtype-skip-layers` where that option can express it: the layers named must keep the model's "
        "own dtype. On SGLang the pool of a model with plain attention is built so, with the triton and torch_native "
        "backends; elsewhere it is a conflict that `check --model --gpu` names (KVP511), and `check` counts the bytes "
        "of each layer (KVP504). Precision by age (vllm#49198) has no word: a page's dtype cannot change where it "
        "lies.\n\n"
        "Which layers need it is a measurement. `check --model --gpu` lists what is publicly reported for the model, "
        "dtype and GPU at hand (KVP521, KVP522).",
    ),
    Topic(
        "leaks",
        "memory leaks, double frees, and the engine's own checks",
        "SGLang counts its tokens when it is idle and ends the server when the sum is off. An eviction policy "
        "frees nothing itself: it names victims, and the engine checks and frees each one. Whatever is named is "
        "verified to be an unlocked, resident leaf first; a fault of the policy is answered with the engine's own "
        "order for that call, counted under `fallbacks`, and never reaches the scheduler. A leak that the engine has "
        "without kvpolicy stays.\n\n"
        "On SGLang, `allocator: {guard: full}` watches every slot or page that is handed out and given back: a "
        "double free, a free of the padding or of an id that the pool does not have, and a hand-out of what is in "
        "use are repaired, counted in /server_info and /metrics, and reported once each with the call that did it. "
        "`sampled` does it for every 16th call. The guard finds misuse, not leaks; the O(n) sanity check of an engine "
        "(sglang#26796) is the engine's.\n\n"
        "KVPOLICY_DISABLE=1 starts the same command line as stock, which tells whose fault it is.",
    ),
    Topic(
        "reload",
        "changing the policy of a running server",
        "`kvpolicy plan FILE --url` compares a policy with what a server runs and says what would change, and "
        "what that costs; `kvpolicy apply FILE --url` swaps it between two steps on every rank, or on none, and "
        "the cache keeps its content; `kvpolicy rollback --url` returns to the policy before. What only a start "
        "can change (page size, dtype, backend) refuses the whole: nothing is half applied. The server must have "
        "an admin or API key that the caller shows, or be started with KVPOLICY_APPLY=loopback. docs/live.md has "
        "it all, and docs/language.md says for each field when a change takes effect.\n\n"
        "Before: `kvpolicy check` and `kvpolicy test` the new file, `kvpolicy replay` it on today's log (`kvpolicy "
        "record` makes one, without text), or `kvpolicy shadow add` it and see what it would find in the live "
        "traffic. With --guard, apply watches the hit rate, eviction time or time to first token and rolls back by "
        "itself. "
        "`kvpolicy apply --off` is the switch that leaves everything to the engine. The status carries the name "
        "and the digest of what runs; the same digest on every server of a fleet means the same policy.",
    ),
    Topic(
        "retraction",
        "requests that are preempted, retracted or never fit",
        "Who runs, who is retracted and when, is the engine's scheduler's decision. kvpolicy decides what is "
        "evicted to make room, never who gets it, so it has no retraction hysteresis and cannot end a preemption "
        "livelock (sglang#26248, vllm-ascend#16315, vllm#52530). It cannot add to one either: protection never "
        "withholds evictable room from a request.\n\n"
        "What helps: `check --model --gpu` warns when protection leaves less room than the longest request "
        "(KVP523); the engines' own flags set the reserve for decoding (SGLang: --schedule-conservativeness, "
        "--max-running-requests). On SGLang `allocator.watermark: {low: 2%, high: 5%}` evicts ahead in batches, so "
        "that a full pool is not walked at every step; who fits is decided as before, from free and evictable room "
        "together. vLLM has no such place (KVP601).",
    ),
    Topic(
        "why",
        "why was it evicted, and what did that cost",
        "`kvpolicy why --url` explains the latest misses: how long ago the missing tokens were evicted, under which "
        "rule, with which score against which cutoff, and how many more pages would have kept them. A server remembers "
        "evictions where its policy keeps metadata (rules, tenants, a score, an order of its own); for bare orders "
        "with KVPOLICY_WHY=1. Counts by rule and histograms (age and hits at eviction, time until the content came "
        "back) are in the status and in /metrics.\n\n"
        "Offline all of that is known: `kvpolicy replay` on the server's log prints tokens lost before their "
        "reuse, idle time at eviction and reuse gaps (`--format json`: every figure), and a `tests:` block says "
        "for a small case which rule, and which event, evicted what. Preemption is the engine's, and its reasons "
        "are in the engine's log.",
    ),
)
