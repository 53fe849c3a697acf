#!/bin/sh
# Everything that still wants a GPU, in one go: builds nothing, checks, times, and goes on after a step that fails.
#
#     benchmarks/on_gpu.sh sglang MODEL OUT         # in an environment with SGLang and kvpolicy
#     benchmarks/on_gpu.sh sglang-ranks MODEL OUT   # the same, with two GPUs
#     benchmarks/on_gpu.sh vllm MODEL OUT           # in one with vLLM and kvpolicy
#
# MODEL is a folder with real weights (SmolLM2-135M will do): fidelity measures them. For sglang-ranks two GPUs must be able
# to share its heads, which SmolLM2's nine are not; MORE="--load-format dummy --skip-tokenizer-init" takes one without weights.
# Each step has a limit, and writes OUT/STEP.log; the summary at the end names every step with its exit code and seconds.
# DRY=1 prints the commands, STEPS="cascade shadows" runs these alone, PYTHON=python3 names the interpreter.
set -u
cd "$(dirname "$0")/.." || exit 2
[ $# -eq 3 ] || { sed -n '2,11p' "$0"; exit 2; }
engine=$1 model=$2 out=$3 python=${PYTHON:-python}
mkdir -p "$out"
summary="$out/summary.txt"
: > "$summary"

step() { # NAME LIMIT_S COMMAND...
    name=$1 limit_s=$2
    shift 2
    case " ${STEPS:-$name} " in *" $name "*) ;; *) return ;; esac
    if [ -n "${DRY:-}" ]; then
        echo "$name: $*"
        return
    fi
    start_s=$(date +%s)
    timeout "$limit_s" "$@" > "$out/$name.log" 2>&1
    echo "$name: exit code $? in $(($(date +%s) - start_s)) s" | tee -a "$summary"
}

policy() { # NAME SECTIONS: a policy in OUT
    printf 'apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {name: %s}\n%s\n' "$1" "$2" > "$out/$1.yaml"
}

case $engine in
sglang)
    lru='eviction: {policy: lru}'
    triton='backend: {attention: triton}'
    policy lru "$lru"
    policy slots "$lru
allocator: {order: lifo}"
    policy marks "$lru
allocator: {watermark: {low: 2%, high: 5%}}"
    policy fp8 "cache: {kv_dtype: fp8_e4m3}
$triton"
    policy edges "cache: {kv_dtype: {default: fp8_e4m3, layers: {\"0-1\": bf16, \"-2:\": bf16}}}
$triton"
    for bits in int8 int4; do
        policy "$bits" "cache: {kv_dtype: ${bits}_per_token_head}
$triton"
    done
    step allocators-tests 180 "$python" -m pytest -q -m gpu tests/allocators
    step allocators 300 "$python" benchmarks/allocator.py --device cuda
    # As in the runs of docs/fidelity.md.
    half="--engine-arg mem_fraction_static=0.5 --engine-arg disable_cuda_graph=True"
    step fidelity-fp8 200 "$python" -m kvpolicy fidelity "$model" --policy "$out/fp8.yaml" $half -o "$out/fp8.json"
    step fidelity-edges 200 "$python" -m kvpolicy fidelity "$model" --policy "$out/edges.yaml" $half -o "$out/edges.json"
    step fidelity-int8 200 "$python" -m kvpolicy fidelity "$model" --policy "$out/int8.yaml" $half -o "$out/int8.json"
    step fidelity-int4 200 "$python" -m kvpolicy fidelity "$model" --policy "$out/int4.yaml" $half -o "$out/int4.json"
    # One token a page and many small leaves: what allocators and marks save is largest there.
    step pressure 560 "$python" benchmarks/sglang_pressure.py --model "$model" --side stock --side "lru=$out/lru.yaml" \
        --side "slots=$out/slots.yaml" --side "marks=$out/marks.yaml" --window 4096 --windows 5 --logs "$out" \
        --out "$out/pressure.json" -- --attention-backend triton --max-total-tokens 600000 --max-running-requests 512 \
        --cuda-graph-max-bs 256 --mem-fraction-static 0.2
    step shadows 500 "$python" benchmarks/shadows.py --engine sglang --model "$model" --logs "$out" \
        --out "$out/shadows.json" -- --attention-backend triton --mem-fraction-static 0.5 --max-running-requests 128
    step shadows-pressure 400 "$python" benchmarks/shadows.py --engine sglang --model "$model" --logs "$out" --windows 12 \
        --prompt-tokens 16 --shared-tokens 0 --new-tokens 8 --batch 128 --in-flight 4 --window 4096 --warm-windows 8 \
        --out "$out/shadows-pressure.json" -- --attention-backend triton --max-total-tokens 600000 \
        --max-running-requests 512 --cuda-graph-max-bs 256 --disable-prefill-cuda-graph --mem-fraction-static 0.4
    step attention 200 "$python" benchmarks/churned_attention.py
    step cascade 300 "$python" benchmarks/cascade.py --tune
    step page-native 200 "$python" benchmarks/page_native.py
    step page-native-outputs 590 "$python" benchmarks/sglang_page_native.py --model "$model" --logs "$out" -- \
        --mem-fraction-static 0.85 --max-total-tokens 65536 --cuda-graph-max-bs 32 --disable-prefill-cuda-graph \
        --max-running-requests 48
    step kv-quant 300 "$python" benchmarks/kv_quant.py --tune
    step kv-capacity 300 "$python" benchmarks/kv_capacity.py --model "$model" --logs "$out" -- --attention-backend triton \
        --mem-fraction-static 0.6 --cuda-graph-max-bs 8 --disable-prefill-cuda-graph
    policy auto "$lru
backend: {attention: flashinfer, cascade: auto}"
    step shared-decode 500 "$python" benchmarks/shared_decode.py --model "$model" --side flashinfer --side triton \
        --side "auto=flashinfer:$out/auto.yaml" --shared-tokens 4096 --logs "$out" -- --mem-fraction-static 0.3 \
        --max-total-tokens 100000 --max-running-requests 128 --cuda-graph-max-bs 128 --disable-prefill-cuda-graph
    step outputs 300 "$python" benchmarks/sglang_outputs.py --model "$model" --vocabulary 40000 --logs "$out" -- \
        --attention-backend triton --mem-fraction-static 0.85 --cuda-graph-max-bs 4 --disable-prefill-cuda-graph \
        --max-running-requests 16
    ;;
sglang-ranks)
    step rank-swaps 400 "$python" benchmarks/rank_swaps.py --model "$model" --logs "$out" -- --attention-backend triton \
        --mem-fraction-static 0.5 --cuda-graph-max-bs 64 --disable-prefill-cuda-graph --max-running-requests 64 ${MORE:-}
    ;;
vllm)
    sides="--side stock --side again"
    for name in stock_lru long_context adaptive agentic chat rag batch multi_tenant; do
        sides="$sides --side $name=policies/$name.yaml"
    done
    # 32 is a block that every shipped policy accepts. Many short windows: engines on one machine swing by a tenth.
    step pressure 590 "$python" benchmarks/vllm_pressure.py --model "$model" $sides --prompt-tokens 64 --window 1024 \
        --windows 20 --logs "$out" --out "$out/pressure.json" -- --gpu-memory-utilization 0.07 --block-size 32 \
        --num-gpu-blocks-override 8000 --max-model-len 2048 --attention-backend TRITON_ATTN
    step shadows 500 "$python" benchmarks/shadows.py --engine vllm --model "$model" --logs "$out" \
        --out "$out/shadows.json" -- --gpu-memory-utilization 0.5 --max-model-len 2048
    step asleep 200 "$python" -m pytest -q -m gpu tests/vllm/proofs/test_asleep.py
    policy fp8 'cache: {kv_dtype: fp8_e4m3}'
    policy edges 'cache: {kv_dtype: {default: fp8_e4m3, layers: {"0-1": bf16, "-2:": bf16}}}'
    step fidelity-fp8 240 "$python" -m kvpolicy fidelity "$model" --policy "$out/fp8.yaml" -o "$out/fp8.json"
    step fidelity-edges 240 "$python" -m kvpolicy fidelity "$model" --policy "$out/edges.yaml" -o "$out/edges.json"
    ;;
*)
    echo "the engine is sglang, sglang-ranks or vllm, not $engine" >&2
    exit 2
    ;;
esac
[ -n "${DRY:-}" ] || cat "$summary"
