# SPDX-License-Identifier: Apache-2.0
# Sourced by run.sh, first.sh and bench.sh, from the root, with `script` set to their name: folders, what is here, parts, results.
. tests/gpu/toolkit.sh
OUT=$(realpath -m "${OUT:-build/gpu-results/$script/out}")
WORK=$(realpath -m "build/gpu-results/$script")
B=${B:-build/release-bare}
BARE=${BARE-1}
EXPECTED=${EXPECTED:-tests/gpu/expected.tsv}
export OUT WORK B TITAN_NCCL_SHARED_GPU=1 NCCL_DEBUG=${NCCL_DEBUG:-WARN}
passed=0 failed=0 skipped=0
mkdir -p "$OUT" "$WORK"
rm -f "$WORK"/*.log "$WORK"/*.json "$WORK"/*.tsv "$WORK"/*.csv
: >"$WORK/parts.tsv"
: >"$WORK/began"

# --- what is here ---

no_gpu='' no_toolkit='' arch=90a card_gib=0 # 0: not known
if command -v nvidia-smi >/dev/null; then
    # What fails in the driver's tool says why on standard output.
    cap=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>&1) || no_gpu="no GPU: ${cap##*$'\n'}"
    cap=$(head -n 1 <<<"$cap" | tr -d .)
    [[ ! $cap =~ ^[0-9]+$ ]] || arch=${cap/#90/90a}
    card_gib=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null | awk 'NR == 1 { printf "%d", $1 / 1024 }')
    [[ $card_gib =~ ^[0-9]+$ ]] || card_gib=0
elif [ ! -e /dev/nvidia0 ]; then
    no_gpu="no GPU: neither nvidia-smi nor /dev/nvidia0 is there"
fi
if [ -z "$CUDA" ]; then
    no_toolkit="no CUDA toolkit: nvcc is not in PATH"
elif [ ! -x "$CUDA/bin/nvcc" ] || [ ! -e "$CUDA/include/cuda_runtime_api.h" ]; then
    no_toolkit="no CUDA toolkit: $CUDA has no bin/nvcc or no include/cuda_runtime_api.h"
elif ! command -v g++ >/dev/null; then
    no_toolkit="no C++ compiler for nvcc"
elif [ -z "$NCCL" ] || [ -z "$CUBLAS" ]; then
    no_toolkit="nccl.h or cublasLt.h is in neither $CUDA nor a Python package"
fi
sanitizer=$(command -v compute-sanitizer || ls "${CUDA:-/nowhere}"/bin/compute-sanitizer "${CUDA:-/nowhere}"/compute-sanitizer/compute-sanitizer 2>/dev/null | head -n 1)
export arch sanitizer

# Why a part cannot run here; nothing when it can.
missing() { # missing NEED...
    local need
    for need in "$@"; do
        case $need in
        gpu) [ -z "$no_gpu" ] || { echo "$no_gpu"; return; } ;;
        toolkit) [ -z "$no_toolkit" ] || { echo "$no_toolkit"; return; } ;;
        sanitizer) [ -n "$sanitizer" ] || { echo "compute-sanitizer is neither in PATH nor in ${CUDA:-a toolkit}"; return; } ;;
        mps) [ -n "$mps" ] || { echo "${no_mps:-no MPS}"; return; } ;;
        torch) python3 -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null || { echo "no PyTorch in python3"; return; } ;;
        gib-*) [ "$card_gib" -eq 0 ] || [ "$card_gib" -ge "${need#gib-}" ] || { echo "the card has $card_gib GiB, not ${need#gib-}"; return; } ;;
        esac
    done
}

# --- several processes on one GPU ---

# MPS lets their kernels run side by side; without it the GPU switches between processes. The daemon is our own, reached by its
# folder only; it changes no setting of the card. It must not be used where a process is killed: the others' state is then
# undefined.
mps='' no_mps=''
mps_start() {
    no_mps=$no_gpu
    [ -z "$no_mps" ] || return 0
    command -v nvidia-cuda-mps-control >/dev/null || { no_mps="no MPS: nvidia-cuda-mps-control is not installed"; return 0; }
    mps=$(mktemp -d /tmp/titan-mps.XXXXXX) # a socket is in it, so its name is short
    if ! CUDA_MPS_PIPE_DIRECTORY=$mps CUDA_MPS_LOG_DIRECTORY=$mps timeout 10 nvidia-cuda-mps-control -d >"$WORK/mps-daemon.log" 2>&1; then
        no_mps="no MPS: $(tail -n 1 "$WORK/mps-daemon.log")"
        rm -rf "$mps"
        mps=''
        return 0
    fi
    trap mps_stop EXIT
}
mps_stop() {
    echo quit | CUDA_MPS_PIPE_DIRECTORY=$mps timeout 10 nvidia-cuda-mps-control >/dev/null 2>&1
    cat "$mps"/*.log >>"$WORK/mps-daemon.log" 2>/dev/null
    rm -rf "$mps"
    mps=''
    trap - EXIT
}
with_mps() { # with_mps COMMAND...: under MPS where it runs
    if [ -n "${mps:-}" ]; then CUDA_MPS_PIPE_DIRECTORY=$mps CUDA_MPS_LOG_DIRECTORY=$mps "$@"; else "$@"; fi
}
export -f with_mps

# --- parts ---

# part NAME SECONDS "NEED..." COMMAND...: the command's TAP lines count; without any, its exit code does. A part that PARTS does
# not match is passed over, one that lacks a need (gpu, toolkit, sanitizer, mps, torch, gib-N: memory of the card) is skipped with
# the reason, one that lacks a file below $B has failed. After each the results are written again. The command has its limit as part_limit,
# PATIENCE times as long where no GPU but its stand-in is slow.
part() {
    local name=$1 limit=$2 needs=$3 left=$((LIMIT - SECONDS)) begin=$SECONDS rc=0 pass fail why need
    [[ $name =~ ${PARTS:-.} ]] || return 0
    why=$(missing $needs)
    shift 3
    [ -n "$why" ] || [ "$left" -gt 0 ] || why="no time left of $LIMIT s"
    if [ -n "$why" ]; then
        skipped=$((skipped + 1))
        printf '%s\t0\t0\t0\t0\t%s\n' "$name" "$why" >>"$WORK/parts.tsv"
        [ "$script" != run ] || printf '%-24s skipped: %s\n' "$name" "$why"
        return 1
    fi
    for need in $needs; do
        case $need in */*) [ -e "$B/$need" ] || set -- sh -c "echo 'not ok - $B/$need is not built (part build)'; exit 1" ;; esac
    done
    limit=$((limit * ${PATIENCE:-1}))
    [ "$limit" -le "$left" ] || limit=$left
    part_limit=$limit timeout -k 5 "$limit" "$@" >"$WORK/$name.log" 2>&1 </dev/null || rc=$?
    [ $rc -ne 124 ] || echo "not ok - not finished after $limit s" >>"$WORK/$name.log"
    pass=$(grep -c '^ok ' "$WORK/$name.log")
    fail=$(grep -c '^not ok ' "$WORK/$name.log")
    if [ $rc -ne 0 ] && [ "$fail" -eq 0 ]; then fail=1; fi
    if [ $rc -eq 0 ] && [ $((pass + fail)) -eq 0 ]; then pass=1; fi
    passed=$((passed + pass)) failed=$((failed + fail))
    printf '%s\t%d\t%d\t%d\t%d\t\n' "$name" $rc "$pass" "$fail" $((SECONDS - begin)) >>"$WORK/parts.tsv"
    if [ "$script" = run ]; then
        printf '%-24s %4d passed %3d failed %4d s%s\n' "$name" "$pass" "$fail" $((SECONDS - begin)) "$([ $rc -eq 0 ] || echo "  exit $rc")"
        [ "$fail" -eq 0 ] || { grep -vE '^ok |^  (CC|NVCC|LINK|AR) ' "$WORK/$name.log" | tail -n 12 | cut -c1-200 | sed 's/^/    /'; }
    fi
    [ "$script" = run ] || python3 tests/gpu/screen.py "$WORK" "$EXPECTED" >"$WORK/screen.log"
    python3 tests/gpu/results.py "$WORK" "$OUT"
    return $((fail > 0))
}

# What both build: everything that a part may need, in one go.
build_all() {
    make BARE="$BARE" BUILD="$B" -j"$(nproc)" "$B/bin/titan-worker" cuda gpu-programs gpu-probe CUDA="$CUDA" NCCL="$NCCL" CUBLAS="$CUBLAS" CUDNN="$CUDNN" CUDA_ARCH="$arch"
}
export BARE
export -f build_all

# One run of the debug model; the recipe's other keys may follow. Its folder is below $WORK.
train() { # train NAME RANKS TYPE STEPS [--set ...]
    local name=$1 ranks=$2 type=$3 steps=$4
    shift 4
    rm -rf "${WORK:?}/$name"
    debug_run $B/bin/titan-worker cuda "$ranks" "$type" "$WORK/text" "$WORK/$name" "$steps" "$@"
}
same_losses() { # same_losses RTOL REFERENCE OTHER
    python3 tests/gpu/compare_losses.py --rtol "$1" "$2" "$3"
}
train_fp32() {
    train train-fp32 1 float32 20 && same_losses 1e-4 tests/gpu/debug_losses.json "$WORK/train-fp32/metrics.jsonl"
}
train_bf16() {
    train train-bf16 1 bfloat16 20 && same_losses 2e-2 tests/gpu/debug_losses.json "$WORK/train-bf16/metrics.jsonl"
}
# Four layers of Llama 3 8B, whole width, length and vocabulary: fits any GPU with 40 GiB. QUICK: the smallest model instead.
train_8b_4_layers() {
    local recipe=recipes/llama3_8b.toml size=model.n_layers=4
    [ -z "${QUICK:-}" ] || recipe=recipes/tiny.toml size="training.seq_len=16 training.local_batch_size=1"
    rm -rf "${WORK:?}/8b-4-layers" && mkdir -p "$WORK/8b-4-layers"
    $B/bin/titan-worker run "$recipe" -n 1 --device cuda --dir "$WORK/8b-4-layers" $(set_keys "training.dataset_path=$WORK/text" \
        training.steps=5 training.global_batch_size=1 $size numerics.deterministic=false checkpoint.enable=false elastic.min_workers=1 elastic.max_workers=1) || return
    python3 - "$WORK/8b-4-layers/metrics.jsonl" <<'PY'
import json
import statistics
import sys
steps = [json.loads(line) for line in open(sys.argv[1]) if line.strip()]
print(f"figure tokens_per_second {statistics.median(s['tokens_per_second'] for s in steps[1:]):.0f}")
print(f"figure step_ms {statistics.median(s['step_ms'] for s in steps[1:]):.1f}")
print(f"figure first_loss {steps[0]['loss']:.4f}")
PY
}
. tests/gpu/debug_run.sh
. tests/gpu/meshes.sh
export -f train debug_run same_losses train_fp32 train_bf16 train_8b_4_layers set_keys

# The card's clock, power and temperature while a command runs, twice a second.
watch_card() { # watch_card NAME COMMAND...
    local name=$1 watcher rc
    shift
    nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv,noheader,nounits -lms 500 >"$WORK/$name.csv" 2>/dev/null &
    watcher=$!
    "$@"
    rc=$?
    kill $watcher 2>/dev/null
    return $rc
}
# Operations at the shapes of a model's step (dim layers heads kv_heads ffn vocab batch seq), behind the card's own limits.
time_ops() { # time_ops NAME DIMS...
    local name=$1
    shift
    [ -z "${QUICK:-}" ] || set -- 64 1 2 1 96 512 1 16
    watch_card "$name" $B/gpu/bench_ops cuda 0 bf16 "$@" >"$WORK/$name.json" && cat "$WORK/$name.json"
}
export -f watch_card time_ops
