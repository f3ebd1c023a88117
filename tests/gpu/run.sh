#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds, checks and times Titan on a machine that has a GPU and nothing but a CUDA toolkit (with NCCL), gcc, g++, make and
# Python: no packages, no network.
#
#   OUT=folder tests/gpu/run.sh      results: $OUT/summary.json, a log for each part beside it (default build/gpu-results)
#   PARTS=REGEX                      only the parts with a name it matches, e.g. 'build|mesh'; they need the builds
#
# A part that fails does not stop the next. Ends with 'N passed, N failed'; exit code 0 when nothing failed. Takes a few
# minutes; no part starts after LIMIT seconds (540) and none runs past them.
set -uo pipefail
cd "$(dirname "$0")/../.."
OUT=$(realpath -m "${OUT:-build/gpu-results}")
CUDA=${CUDA:-/usr/local/cuda}
LIMIT=${LIMIT:-540}
B=build/release-bare
export OUT TITAN_NCCL_SHARED_GPU=1 NCCL_DEBUG=${NCCL_DEBUG:-WARN}
mkdir -p "$OUT"
: >"$OUT/parts.tsv"
passed=0 failed=0

# part NAME SECONDS COMMAND...: the command's TAP lines count; without any, its exit code does.
part() {
    local name=$1 limit=$2 left=$((LIMIT - SECONDS)) begin=$SECONDS rc pass fail
    shift 2
    [[ $name =~ ${PARTS:-.} ]] || return 0
    [ "$limit" -le "$left" ] || limit=$left
    if [ "$limit" -le 0 ]; then
        echo "not ok - no time left" >"$OUT/$name.log"
        rc=124
    else
        timeout -k 5 "$limit" "$@" >"$OUT/$name.log" 2>&1 </dev/null
        rc=$?
    fi
    pass=$(grep -c '^ok ' "$OUT/$name.log")
    fail=$(grep -c '^not ok ' "$OUT/$name.log")
    if [ $rc -ne 0 ] && [ "$fail" -eq 0 ]; then fail=1; fi
    if [ $rc -eq 0 ] && [ $((pass + fail)) -eq 0 ]; then pass=1; fi
    passed=$((passed + pass)) failed=$((failed + fail))
    printf '%s\t%d\t%d\t%d\t%d\n' "$name" $rc "$pass" "$fail" $((SECONDS - begin)) >>"$OUT/parts.tsv"
    printf '%-24s %4d passed %3d failed %4d s%s\n' "$name" "$pass" "$fail" $((SECONDS - begin)) \
        "$([ $rc -eq 0 ] || echo "  exit $rc")"
    [ "$fail" -eq 0 ] || { grep -vE '^ok |^  (CC|NVCC|LINK|AR) ' "$OUT/$name.log" | tail -n 12 | cut -c1-200 | sed 's/^/    /'; }
    return $((fail > 0))
}

# Where a library of the toolkit is: in it, or in Python's packages of it (nvidia-nccl-cu13 and its like).
library_dir() { # library_dir HEADER
    [ ! -e "$CUDA/include/$1" ] || { echo "$CUDA"; return; }
    python3 - "$1" <<'PY'
import glob
import sys
for folder in sys.path:
    for header in sorted(glob.glob(f"{folder}/nvidia/*/include/{sys.argv[1]}")):
        print(header[: -len("/include/" + sys.argv[1])])
        sys.exit()
PY
}

machine() {
    nvidia-smi || return
    "$CUDA/bin/nvcc" --version | tail -n 2
    gcc --version | head -n 1
    echo "NCCL in ${NCCL:-nowhere}, cuBLASLt in ${CUBLAS:-nowhere}"
}

build_worker() {
    make BARE=1 -j"$(nproc)" $B/bin/titan-worker
}
build_cuda() {
    make BARE=1 -j"$(nproc)" cuda gpu-programs CUDA="$CUDA" NCCL="$NCCL" CUBLAS="$CUBLAS" CUDA_ARCH="$arch"
}

check_model() {
    TITAN_TEST_DEVICE=cuda $B/gpu/check_model
}

# One run of the debug model; the recipe's other keys may follow.
train() { # train NAME RANKS TYPE STEPS [--set ...]
    local name=$1 ranks=$2 type=$3 steps=$4
    shift 4
    rm -rf "${OUT:?}/$name"
    debug_run $B/bin/titan-worker cuda "$ranks" "$type" "$OUT/text" "$OUT/$name" "$steps" "$@"
}
same_losses() { # same_losses RTOL REFERENCE OTHER
    python3 tests/gpu/compare_losses.py --rtol "$1" "$2" "$3"
}
train_fp32() {
    train train-fp32 1 float32 20 && same_losses 1e-4 tests/gpu/debug_losses.json "$OUT/train-fp32/metrics.jsonl"
}
train_bf16() {
    train train-bf16 1 bfloat16 20 && same_losses 2e-2 tests/gpu/debug_losses.json "$OUT/train-bf16/metrics.jsonl"
}
# Twice the same run: every operation is deterministic.
train_again() {
    train train-again 1 bfloat16 20 && same_losses 0 "$OUT/train-bf16/metrics.jsonl" "$OUT/train-again/metrics.jsonl"
}
train_ranks() { # train_ranks N: against one rank
    train "train-$1" "$1" float32 20 && same_losses 1e-5 "$OUT/train-fp32/metrics.jsonl" "$OUT/train-$1/metrics.jsonl"
}
# One rank of each model that meshes are compared on, against the CPU. Experts change places where two are as good as
# each other, which rounding decides.
mesh_bound() { # mesh_bound MODEL
    case $1 in experts | latent) echo 1e-4 ;; *) echo 1e-5 ;; esac
}
train_model() { # train_model MODEL
    train "mesh-1-$1" 1 float32 10 $(set_keys $(model_keys "$1") "training.dataset_path=$OUT/documents") &&
        same_losses 1e-4 "tests/gpu/debug_losses_$1.json" "$OUT/mesh-1-$1/metrics.jsonl"
}
train_mesh() { # train_mesh NAME: against one rank of the same model
    local model ranks keys
    find_mesh "$1" || return
    train "mesh-$1" "$ranks" float32 10 $keys $(set_keys "training.dataset_path=$OUT/documents") &&
        same_losses "$(mesh_bound "$model")" "$OUT/mesh-1-$model/metrics.jsonl" "$OUT/mesh-$1/metrics.jsonl"
}
train_canonical() { # bit for bit across world sizes
    train canonical-1 1 float32 10 --set numerics.canonical=true &&
        train canonical-2 2 float32 10 --set numerics.canonical=true &&
        same_losses 0 "$OUT/canonical-1/metrics.jsonl" "$OUT/canonical-2/metrics.jsonl"
}

# SIGKILL of a rank in the middle of a run: the other must notice and end by itself.
train_killed() {
    local run victim left
    rm -rf "$OUT/train-killed"
    train train-killed 2 float32 100000 &
    run=$!
    for _ in $(seq 300); do
        kill -0 $run 2>/dev/null || break
        [ ! -e "$OUT/train-killed/metrics.jsonl" ] || [ "$(wc -l <"$OUT/train-killed/metrics.jsonl")" -lt 3 ] || break
        sleep 0.1
    done
    victim=$(ranks_of "$OUT/train-killed" | tail -n 1)
    [ -n "$victim" ] || { echo "not ok - no rank is running"; wait $run; return 1; }
    echo "# killing $victim"
    kill -KILL "$victim"
    for _ in $(seq 200); do
        left=$(ranks_of "$OUT/train-killed" | wc -l)
        [ "$left" -gt 0 ] || break
        sleep 0.1
    done
    if [ "$left" -gt 0 ]; then
        echo "not ok - $left processes still run 20 s after a rank was killed"
        ranks_of "$OUT/train-killed" | xargs -r kill -KILL
    else
        echo "ok - the run ended after a rank was killed"
    fi
    wait $run
    tail -n 5 "$OUT/train-killed/log"
}
# The processes of a run, parent first: those with its folder among their arguments.
ranks_of() {
    local p
    for p in /proc/[0-9]*; do
        if [ "$(readlink "$p/exe" 2>/dev/null)" = "$PWD/$B/bin/titan-worker" ] &&
            tr '\0' '\n' <"$p/cmdline" 2>/dev/null | grep -qxF "$1"; then
            basename "$p"
        fi
    done | sort -n
}

# Operations at the shapes of a 1B model's step (dim layers heads kv_heads ffn vocab batch seq) and of an 8B layer.
time_ops() {
    TITAN_PLUGIN_DIR=$B/lib/titan $B/gpu/bench_ops cuda 0 bf16 2048 16 32 8 8192 128256 1 4096 >"$OUT/ops-1b.json" &&
        TITAN_PLUGIN_DIR=$B/lib/titan $B/gpu/bench_ops cuda 0 bf16 4096 1 32 8 14336 8192 1 4096 >"$OUT/ops-8b.json" &&
        cat "$OUT/ops-1b.json" "$OUT/ops-8b.json"
}
# A step of the demo's model, large enough to see more than launches.
time_steps() {
    rm -rf "$OUT/steps"
    mkdir -p "$OUT/steps"
    $B/bin/titan-worker run recipes/demo.toml -n 1 --device cuda --dir "$OUT/steps" --set "training.dataset_path=$OUT/text" \
        --set training.steps=50 --set checkpoint.enable=false --set elastic.min_workers=1
}

export CUDA B
NCCL=$(library_dir nccl.h)
CUBLAS=$(library_dir cublasLt.h)
arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
[ "$arch" = 90 ] && arch=90a
arch=${arch:-90a}
. tests/gpu/debug_run.sh
. tests/gpu/meshes.sh
export NCCL CUBLAS arch meshes
export -f model_keys set_keys find_mesh mesh_bound train_model train_mesh
export -f machine build_worker build_cuda check_model train debug_run same_losses train_fp32 train_bf16 train_again \
    train_ranks train_canonical train_killed ranks_of time_ops time_steps

python3 tests/gpu/text.py "$OUT/text"
make_documents "$OUT/text" "$OUT/documents"
part machine 30 bash -c machine
part build-worker 200 bash -c build_worker
part build-cuda 240 bash -c build_cuda
part operations 60 $B/gpu/check_ops
part communicator-2 60 $B/gpu/check_comm 2
part communicator-4 90 $B/gpu/check_comm 4
part model 90 bash -c check_model
part train-fp32 60 bash -c train_fp32
part train-bf16 60 bash -c train_bf16
part train-again 60 bash -c train_again
part train-2-ranks 90 bash -c "train_ranks 2"
part train-4-ranks 90 bash -c "train_ranks 4"
for model in $mesh_models; do
    part "train-1-$model" 60 bash -c "train_model $model"
done
for mesh in $(cut -d ' ' -f 1 <<<"$meshes"); do
    part "mesh-$mesh" 90 bash -c "train_mesh $mesh"
done
part train-canonical 90 bash -c train_canonical
part train-killed 90 bash -c train_killed
part time-ops 60 bash -c time_ops
part time-steps 60 bash -c time_steps

python3 - "$OUT" "$passed" "$failed" <<'PY'
import glob
import json
import os
import statistics
import sys
out, passed, failed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
parts = {}
for line in open(f"{out}/parts.tsv"):
    name, code, ok, bad, seconds = line.rstrip("\n").split("\t")
    parts[name] = {"exit": int(code), "passed": int(ok), "failed": int(bad), "seconds": int(seconds)}
runs = {}
for path in sorted(glob.glob(f"{out}/*/metrics.jsonl")):
    steps = [json.loads(line) for line in open(path) if line.strip()]
    if len(steps) > 1:
        runs[os.path.basename(os.path.dirname(path))] = {
            "steps": len(steps), "world_size": steps[-1]["world_size"],
            "loss_first": steps[0]["loss"], "loss_last": steps[-1]["loss"],
            "step_ms_median": statistics.median(s["step_ms"] for s in steps[1:]),
            "tokens_per_second_median": statistics.median(s["tokens_per_second"] for s in steps[1:])}
figures = {"passed": passed, "failed": failed, "parts": parts, "runs": runs}
for name in ("comm", "ops-1b", "ops-8b"):
    try:
        figures[name] = json.load(open(f"{out}/{name}.json"))
    except (OSError, ValueError):
        figures[name] = None
json.dump(figures, open(f"{out}/summary.json", "w"), indent=1)
for name, run in runs.items():
    print(f"{name:24} {run['steps']} steps, loss {run['loss_first']:.4f} to {run['loss_last']:.4f}, "
          f"{run['step_ms_median']:.2f} ms a step, {run['tokens_per_second_median']:.0f} tokens/s")
PY
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
