"""Are greedy outputs of real servers stock's, bit for bit, whoever hands out the slots and however layers are stored?

    python benchmarks/sglang_outputs.py --model DIR -- --attention-backend triton --load-format dummy \
        --skip-tokenizer-init

At each page size one server a side, all started together: stock twice (the control), every allocator order, and a pool
of one dtype a layer in which every layer was moved back to bf16. Each gets the same requests, one at a time: prefixes
shared by several, more of them than the pool holds. Compared are the output ids and the cached tokens of each request.
What follows `--` goes to every server. The exit code is 1 if a side differs from stock more than stock does, or if a
policy failed.
"""

from __future__ import annotations

import argparse
import concurrent.futures as futures
import json
import random
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from pressure import machine, split_arguments
from sglang_pressure import Side, launch_command, start_all

from kvpolicy.allocators import ORDERS

POOL_TOKENS, PREFIX_TOKENS, NEW_TOKENS = 4096, 400, 24
POLICY = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {{name: {name}}}
cache: {{page_size: {page}, kv_dtype: {dtype}}}
eviction: {{policy: lru}}
{more}
"""


class Stock(Side):
    """A server without a policy."""

    def __init__(self, name: str, page: str, log: Path) -> None:
        super().__init__(name, None, free_port(), log)
        self.page = page

    def start(self, command: list[str], env: dict[str, str]) -> None:
        super().start([*command, "--page-size", self.page], env)


def policies(page: int, layers: int) -> dict[str, str]:
    found = {
        order: POLICY.format(name=order, page=page, dtype="bf16", more=f"allocator: {{order: {order}, guard: full}}")
        for order in ORDERS
    }
    moved = f'{{default: fp8_e4m3, layers: {{"0-{layers - 1}": bf16}}}}'
    return {**found, "layers": POLICY.format(name="layers", page=page, dtype=moved, more="")}


def requests(count: int, vocabulary: int) -> list[list[int]]:
    rng = random.Random(5)
    prefixes = [[rng.randrange(10, vocabulary) for _ in range(PREFIX_TOKENS)] for _ in range(14)]
    own = [[rng.randrange(10, vocabulary) for _ in range(rng.randrange(1, 90))] for _ in range(count)]
    return [
        prefixes[min(rng.randrange(14), rng.randrange(14))][: rng.randrange(200, PREFIX_TOKENS)] + row for row in own
    ]


def answers(side: Side, asked: list[list[int]]) -> list[tuple[list[int], int]]:
    found = [side.generate([prompt], NEW_TOKENS)[0] for prompt in asked]
    return [(answer["output_ids"], answer["meta_info"]["cached_tokens"]) for answer in found]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def compare(sides: dict[str, list[Side]], asked: list[list[int]]) -> int:
    """Print what differs, by page size; 1 if something does that should not."""
    every = [side for group in sides.values() for side in group]
    with futures.ThreadPoolExecutor(len(every)) as pool:
        told = dict(zip((id(side) for side in every), pool.map(lambda side: answers(side, asked), every), strict=True))
    failed = False
    print(f"{'page':>4} {'side':12} {'outputs equal':>14} {'cached equal':>13} {'cached tokens':>14}  policy")
    for page, group in sides.items():
        stock = told[id(group[0])]
        for side in group:
            mine = told[id(side)]
            equal = [sum(a[part] == b[part] for a, b in zip(mine, stock, strict=True)) for part in (0, 1)]
            block: dict[str, Any] = {}
            if side.policy:
                block = json.loads(side.call("/server_info"))["internal_states"][0]["kvpolicy"]
            elif side is group[1]:
                control = equal
            said = {key: block[key] for key in ("core", "fallbacks", "evict_calls") if key in block}
            faults = block.get("allocator", {}).get("faults")
            failed |= bool(side.policy) and (equal < control or bool(block["fallbacks"]) or bool(faults))
            pool_class = block.get("kv_pool", {}).get("class", "")
            total = sum(cached for _, cached in mine)
            counts = f"{equal[0]}/{len(asked)}", f"{equal[1]}/{len(asked)}"
            print(f"{page:>4} {side.name:12} {counts[0]:>14} {counts[1]:>13} {total:14}  {said or ''} {pool_class}")
    return int(failed)


def main() -> int:
    own, engine_arguments = split_arguments(sys.argv[1:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--pages", default="1,16")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--vocabulary", type=int, default=120_000)
    parser.add_argument("--start-s", type=float, default=300)
    parser.add_argument("--logs", type=Path, default=Path("/tmp"))
    args = parser.parse_args(own)
    layers = json.loads((Path(args.model) / "config.json").read_text())["num_hidden_layers"]
    print("machine:", machine())
    command = launch_command(args.model, "--max-total-tokens", str(POOL_TOKENS), *engine_arguments)
    sides: dict[str, list[Side]] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for page in args.pages.split(","):
                group = sides[page] = []
                for name in ("stock", "stock again"):
                    group.append(Stock(name, page, args.logs / f"{name}-{page}.log".replace(" ", "-")))
                for name, text in policies(int(page), layers).items():
                    path = Path(folder) / f"{name}-{page}.yaml"
                    path.write_text(text)
                    group.append(Side(name, str(path), free_port(), args.logs / f"{name}-{page}.log"))
            start_all([side for group in sides.values() for side in group], command, args.start_s)
            return compare(sides, requests(args.requests, args.vocabulary))
        finally:
            for group in sides.values():
                for side in group:
                    side.stop()


if __name__ == "__main__":
    raise SystemExit(main())
