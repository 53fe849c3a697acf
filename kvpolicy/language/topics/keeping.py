"""Topics of what is kept: pins, hints, ranges, classes, and what a rule cannot see."""

from __future__ import annotations

from kvpolicy.language.topics.base import Topic, topics

__all__ = ["KEEPING"]

KEEPING = topics(
    Topic(
        "pins",
        "there are no hard pins, and what protects instead",
        "A hard pin takes room that no request can have back. When pins and running requests fill the pool, every "
        "request waits for room that nobody will free; servers have stopped that way (sglang#27024, vllm#49439).\n\n"
        "`retain` protects softly: everything unprotected goes first, then protected units by ascending weight, "
        "and a need that the evictable tokens can meet is always met. Cap it with `budget`, end it with `ttl`. A "
        "unit whose own path is longer than the whole budget is not protected at all.\n\n"
        "`kvpolicy check` refuses budgets and floors that add up to more than the pool (KVP308). With --engine, "
        "--model and --gpu it also warns when they leave less room than one request of the full context takes "
        "(KVP523; an error with --strict). `kvpolicy test --fuzz` looks for a request that is not served although "
        "it could be.\n\n"
        "There is no call that unpins everything on a running server. A `ttl` ends protections by itself, flushing "
        "the engine's cache drops the units, and a changed policy takes effect at a restart (`kvpolicy explain "
        "reload`).",
        example="""\
eviction:
  policy: lru
  rules:
    - name: system-prompt
      match: request.priority >= 100
      retain: {weight: 8, ttl: 1h, budget: 20%}
tests:
  - name: protected from others, not from need
    pool: 1000
    segments: {system: 200, giant: 1000}
    steps:
      - system priority=100
      - flood 20x100
      - resident: [system]
      - giant
      - evicted: [system]
""",
    ),
    Topic(
        "hints",
        "how a client or router tells the policy what it knows",
        "A request may carry a `kv_hints` envelope with actions: kv.retain (keep this prefix for a ttl), kv.demote "
        "(it goes first), kv.expire (a retain is over) and kv.class (rules see the name as `request.hint_class`). The "
        "policy decides: what `hints.allow` does not name is refused, ttls are clamped to `hints.max_ttl`, all "
        "retains together hold at most `hints.budget` of the pool, softly, and `hints.weight` places them among the "
        "rules. Without `allow`, envelopes are not looked at.\n\n"
        "The envelope travels in the engines' own field where a version has one (SGLang 0.5.23; vLLM 0.32, in "
        "Python), and everywhere in `custom_params` (SGLang) or `vllm_xargs` (vLLM, as JSON text). "
        "`kvpolicy.hints.from_cache_control` makes one of Anthropic's cache_control marks. The status and "
        "`kvpolicy top` say by action_id what became of each. docs/hints.md has all of it.\n\n"
        "Where nobody can send envelopes, rules see four more things of a request: `request.priority`, "
        "`request.cache_salt`, `request.session_id` and `request.lora`. A unit's priority is the largest that its "
        "requests had, clamped to `hints.max_priority`; where the engine schedules by priority too, the same number "
        "also decides who runs first.",
        example="""\
hints: {allow: [retain, demote], max_ttl: 10m, budget: 40%}
eviction: {policy: lru}
tests:
  - name: one that will return is kept, one that is over goes first
    pool: 100
    segments: {paused: 20, over: 20, other: 20}
    steps:
      - paused retain=5m
      - other
      - over demote
      - next: [over, other, paused]
""",
    ),
    Topic(
        "waiting",
        "prefixes that waiting requests are about to use",
        "There is no `protect: waiting_queue`. A rule runs when a unit is inserted and when an admitted request "
        "uses it; who waits is the scheduler's knowledge, and it changes without a touch. The adapters do not look "
        "into the queue: matching each waiting prompt again at every eviction would cost queue times prompt length "
        "in the scheduler's loop.\n\n"
        "What helps today. On SGLang, `--schedule-policy lpm` matches the prompts of the queue whenever a request "
        "can be admitted (up to 128 waiting; not while the batch is full). Each match refreshes the last-access "
        "time of its prefix, and the longest goes first: under `policy: lru`, and every order that reads that "
        "time, the prefix is there when its request runs. Under `fcfs`, the default, it may not be: the request "
        "before it may have evicted it. On any engine, protect what came back before for longer than requests "
        "wait, as below; a first return cannot be foreseen.",
        example="""\
eviction:
  policy: lru
  rules:
    - name: came-back
      match: hits >= 1
      retain: {weight: 4, ttl: 2m, budget: 30%}
tests:
  - name: two waiting requests find their prefixes although the pool filled up meanwhile
    pool: 400
    granularity: both
    segments: {a: 50, b: 50, next: 20}
    steps:
      - a x2
      - b x2
      - +30s flood 20x40
      - +1s a/next1 hit a
      - +1s b/next2 hit b
""",
    ),
    Topic(
        "warm",
        "a list of prefixes that is loaded at startup",
        "A policy holds no texts and no tokens, so it has no such list: prompts belong to applications, a policy "
        "to the server. Send each prefix once when the server answers, with max_new_tokens 1 and a priority that a "
        "rule protects, without `ttl`. After a flush or a restart, send them again.\n\n"
        "KV of their own on disk or in host memory is the business of the engine's offloading, which kvpolicy "
        "leaves as it is.",
        example="""\
eviction:
  policy: lfu
  rules:
    - name: warm
      match: request.priority >= 100
      retain: {weight: 8, budget: 25%}
tests:
  - name: a warmed prefix is there a day later
    pool: 1000
    segments: {opening: 200, ana: 50}
    steps:
      - opening priority=100
      - +24h flood 40x100
      - opening/ana hit opening
""",
    ),
    Topic(
        "ranges",
        "priorities for ranges of a prompt's tokens",
        "`depth_tokens` counts from the prompt's first token to the end of the unit, so a range is a comparison: "
        "`depth_tokens <= 512` is [0, 512). Rules from the top give each range its weight and ttl.\n\n"
        "Where a border can lie depends on what the engine evicts: by page (vLLM) at every page; by node (SGLang) "
        "where two prompts part, since a node goes as a whole and counts with its end. A range inside one request "
        "that differs from request to request (this message, not that one) cannot be named; its beginning, up to so "
        "many tokens, can: by a retain hint (`kvpolicy explain hints`).",
        example="""\
eviction:
  policy: lru
  rules:
    - {name: head, match: depth_tokens <= 512, retain: {weight: 90, ttl: 1h, budget: 40%}}
    - {name: tail, match: depth_tokens <= 8192, retain: {weight: 50, ttl: 5m, budget: 50%}}
tests:
  - name: the head outranks the tail
    pool: 4Ki
    page_size: 16
    granularity: page
    segments: {head: 512, tail: 512}
    steps:
      - head/tail
      - protected: {head: head, head/tail: tail}
""",
    ),
    Topic(
        "isolation",
        "what tenants can learn of each other",
        "A hit answers faster than a miss, so whoever shares a cache can ask whether a prefix is in it "
        "(vllm#16016). Only different `cache_salt`s close that: prompts of different salts never share a page. "
        "`eviction.tenants` does not isolate; it shares out room, so that one tenant's flood does not evict "
        "another's floor. How much of its own a tenant still finds does tell it that others were busy.\n\n"
        "Give each customer a salt at the gateway, where clients cannot choose it, and what all may share none.",
    ),
    Topic(
        "adaptive",
        "orders that resist scans, and an order of your own",
        "`slru`, `s3fifo`, `sieve`, `gdsf` and `hit_density` are built in; `kvpolicy replay` compares them on your "
        "traffic, and `kvpolicy explain gate` says how to be sure. ARC is not among them; `s3fifo` has what it is "
        "wanted for, a short queue for what was seen once and a list of ghosts that lets a returning unit in at "
        "once.\n\n"
        "`reuse_rate` learns from the traffic how soon content comes back, and `adaptive` lets it and `lru` compete "
        "on a sample of that traffic, so that it is not far below `lru` where nothing can be learned. "
        "policies/RESULTS.md has what each finds on three traces.\n\n"
        "An order of your own is a `score`, without code. A new algorithm is one file (CONTRIBUTING.md), and runs "
        "on every engine unmodified; no fork of an engine, and no patch to it, is needed.",
        example="eviction: {score: 50 * log1p(hits) - idle_requests}\n",
    ),
    Topic(
        "gate",
        "being sure before a policy is enabled",
        "What helps one traffic costs another (Mooncake#1998, Mooncake#1732: prefix-aware eviction, mixed "
        "results). So ask your own: `kvpolicy replay TRACE --policy lru --policy FILE --capacity POOL` runs the "
        "compiled policy over a log, beside the engine's LRU and the best that is possible. `kvpolicy recommend` "
        "searches on the first 60 % of it and believes only what also beats LRU in both halves of the rest, or "
        "says that stock LRU is best.\n\n"
        "Then keep it so: `kvpolicy test` runs the policy's own tests in a second, in CI. "
        "docs/from-log-to-policy.md goes through all of it.",
    ),
)
