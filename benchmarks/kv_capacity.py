"""How many tokens a server's KV pool holds under each KV dtype, as the server itself says.

    python benchmarks/kv_capacity.py --model DIR -- --attention-backend triton --mem-fraction-static 0.6

One server after another, each alone on the machine, so that all size their pool in the same memory. Printed: the
server's `max_total_num_tokens`, the ratio to bf16, the pool's class, and what a short answer took. What follows `--`
goes to every server.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from pressure import machine, split_arguments
from sglang_outputs import free_port
from sglang_pressure import Side, launch_command, start_all

DTYPES = ("bf16", "fp8_e4m3", "int8_per_token_head", "int4_per_token_head")
POLICY = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {{name: {dtype}}}
cache: {{kv_dtype: {dtype}}}
backend: {{attention: {{prefer: triton, accept: [triton, torch_native]}}}}
"""


def main() -> int:
    own, engine_arguments = split_arguments(sys.argv[1:])
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--start-s", type=float, default=300)
    parser.add_argument("--logs", type=Path, default=Path("/tmp"))
    args = parser.parse_args(own)
    print("machine:", machine())
    command = launch_command(args.model, *engine_arguments)
    base = 0
    print(f"{'dtype':22} {'tokens':>10} {'to bf16':>8}  pool")
    with tempfile.TemporaryDirectory() as folder:
        for dtype in args.dtypes.split(","):
            policy = Path(folder) / f"{dtype}.yaml"
            policy.write_text(POLICY.format(dtype=dtype))
            side = Side(dtype, str(policy), free_port(), args.logs / f"capacity-{dtype}.log")
            try:
                start_all([side], command, args.start_s)
                side.generate([list(range(10, 200))], 4)
                info = json.loads(side.call("/server_info"))
                state = info["internal_states"][0]
                tokens = int(info.get("max_total_num_tokens") or state["kvpolicy"]["pool_tokens"])
                base = base or tokens
                said = state["kvpolicy"]["kv_pool"]["class"], state["kvpolicy"]["fallbacks"]
                print(f"{dtype:22} {tokens:10,} {tokens / base:8.3f}  {said[0]} {said[1] or ''}", flush=True)
            finally:
                side.stop()
            time.sleep(1)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
