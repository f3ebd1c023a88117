#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# How fast Llama 3 8B trains on one H200, beside what the planner says before the run and beside PyTorch in the same call, on one
# screen as first.sh's (tests/gpu/expected_bench.tsv). In 300 s on 16 cores; a card with less than 120 GiB skips the whole model.
#
#   OUT=folder tests/gpu/bench.sh    summary.json, bench.json and logs.tar.gz in OUT (build/gpu-results/bench/out), written again
#                                    after every part
#   PARTS=REGEX LIMIT=300 QUICK=1 CUDA= NCCL= CUBLAS= CUDNN=    as for run.sh
#
# A part that fails does not stop the next. Exit code 0: every line is OK; 1: a line is ODD; 2: PARTS matches nothing; 77: none is ODD,
# and there is no GPU, so most was skipped.
set -uo pipefail
cd "$(dirname "$0")/../.."
script=bench LIMIT=${LIMIT:-300} EXPECTED=tests/gpu/expected_bench.tsv
. tests/gpu/parts.sh

recipe=recipes/llama3_8b_h200.toml size='' four=model.n_layers=4
whole=gib-120 room=45 # GiB that the whole model takes of a card, and that two checkpoints of four layers take of a folder
steps=8 batch=8 batch_steps=4 seconds=4 interval=60
batch_keys="activation_checkpoint.mode=selective activation_checkpoint.selective_ac_option=op:1" # fp32 gradients of all layers must fit
if [ -n "${QUICK:-}" ]; then
    recipe=recipes/tiny.toml four='' whole='' room=1 steps=3 batch=2 batch_steps=2 seconds=0.05 interval=2
    size="training.seq_len=16 training.local_batch_size=1 training.global_batch_size=1 model.n_layers=1 elastic.max_workers=1 numerics.deterministic=false"
fi
machine=h200
case $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null) in *H100*) machine=h100 ;; *B200*) machine=b200 ;; esac
export recipe size four room steps batch batch_steps batch_keys seconds interval machine

card() {
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sed -n '1s/, .*//; 1s/^/figure gpu /p'
    nvidia-smi || true
}
plan_keys() { # plan_keys [KEY=VALUE...]
    set_keys "training.dataset_path=$WORK/longer" checkpoint.enable=false $size "$@"
}
plan() { # plan FILE COSTS KEYS
    "$B/bin/titan-worker" plan "$recipe" -n 1 --device "$machine" --costs "$2" --json $3 >"$1"
}
# A run of the whole model, planned first. It ends a little before its part does, so that what it had is counted.
train_8b() { # train_8b NAME STEPS [KEY=VALUE...]
    local name=$1 steps=$2 folder=$WORK/$1 keys began rc=0
    shift 2
    keys=$(plan_keys "training.steps=$steps" "$@")
    rm -rf "${folder:?}" && mkdir -p "$folder"
    plan "$WORK/plan-$name.json" none "$keys" && python3 tests/gpu/bench_figures.py plan "$WORK/plan-$name.json" || rc=$?
    began=$(date +%s%3N)
    timeout $((part_limit > 8 ? part_limit - 4 : part_limit)) "$B/bin/titan-worker" run "$recipe" -n 1 --device cuda --dir "$folder" $keys \
        >"$folder/log" 2>&1 || rc=$?
    cat "$folder/log"
    python3 tests/gpu/bench_figures.py run "$folder" "$began" "$WORK/plan-$name.json" || rc=$?
    return $rc
}
# What its operations take here, and the plan that follows from it beside the run of part 8b.
costs() {
    local keys
    keys=$(plan_keys "training.steps=$steps")
    rm -f "$WORK/costs.tsv"
    "$B/bin/titan-worker" measure "$recipe" -n 1 --device cuda --seconds "$seconds" --out "$WORK/costs.tsv" $keys || return
    plan "$WORK/plan-costs.json" "$WORK/costs.tsv" "$keys" || return
    "$B/bin/titan-worker" plan "$recipe" -n 1 --device "$machine" --costs "$WORK/costs.tsv" --operations $keys
    python3 tests/gpu/bench_figures.py costs "$WORK/plan-costs.json" "$WORK/8b"
}
# Two checkpoints in the background, of four layers: the whole model's do not fit into the memory of the host beside its copy.
checkpoint() {
    local place='' at began rc=0
    for at in /dev/shm "${TMPDIR:-/tmp}" "$WORK"; do
        [ -n "$place" ] || [ "$(df --output=avail -B1G "$at" 2>/dev/null | awk 'END { print $1 + 0 }')" -lt "$room" ] || place=$at
    done
    [ -n "$place" ] || { echo "no folder has $room GiB free"; return 1; }
    place=$(mktemp -d "$place/titan-bench.XXXXXX") || return
    trap "rm -rf '$place'" EXIT
    echo "# checkpoints in $(df --output=target,fstype "$place" | tail -n 1)"
    began=$(date +%s%3N)
    timeout $((part_limit > 8 ? part_limit - 4 : part_limit)) "$B/bin/titan-worker" run "$recipe" -n 1 --device cuda --dir "$place" \
        $(plan_keys $four "training.steps=$((2 * interval + 1))" checkpoint.enable=true "checkpoint.interval=$interval" checkpoint.keep_latest_k=1) >"$place/log" 2>&1 || rc=$?
    rm -rf "${WORK:?}/checkpoint" && mkdir -p "$WORK/checkpoint"
    cp "$place/log" "$place/metrics.jsonl" "$WORK/checkpoint/" || rc=1
    cat "$WORK/checkpoint/log"
    python3 tests/gpu/bench_figures.py checkpoint "$WORK/checkpoint" "$began" "$interval" || rc=$?
    return $rc
}
operations() {
    time_ops ops-8b 4096 1 32 8 14336 128256 1 8192 && python3 tests/gpu/bench_figures.py ops "$WORK/ops-8b.json"
}
peers() {
    TORCHINDUCTOR_CACHE_DIR="$WORK/inductor" python3 tests/gpu/peer.py ${QUICK:+--quick} --seconds $((part_limit - 5)) --ours "$WORK/8b-4-layers/metrics.jsonl"
}
export -f card plan_keys plan train_8b costs checkpoint operations peers

python3 tests/gpu/text.py "$WORK/text"
python3 tests/gpu/text.py "$WORK/longer" $((1 << 20))
worker=bin/titan-worker plugin=lib/titan/libtitan-cuda.so
part card 10 gpu bash -c card
part build 90 "gpu toolkit" bash -c build_all
part 8b 60 "gpu $whole $plugin $worker" bash -c "watch_card 8b train_8b 8b $steps"
part 8b-batch8 60 "gpu $whole $plugin $worker" bash -c "watch_card 8b-batch8 train_8b 8b-batch8 $batch_steps training.global_batch_size=$batch $batch_keys"
part 8b-float8 45 "gpu $whole $plugin $worker" bash -c "watch_card 8b-float8 train_8b 8b-float8 $steps model.float8=true"
part costs 50 "gpu $whole $plugin $worker" bash -c costs
part checkpoint 60 "gpu $plugin $worker" bash -c checkpoint
part ops-8b 30 "gpu $plugin gpu/bench_ops" bash -c operations
part 8b-4-layers 40 "gpu $plugin $worker" bash -c "watch_card 8b-4-layers train_8b_4_layers"
part peers 95 "gpu torch" bash -c "watch_card peers peers"

[ $((passed + failed + skipped)) -gt 0 ] || { echo "tests/gpu/bench.sh: PARTS='$PARTS' matches no part" >&2; exit 2; }
echo "# Llama 3 8B: $(git log -1 --format='commit %h' 2>/dev/null || echo 'no commit'), $(date -u +%FT%TZ), $SECONDS s"
python3 tests/gpu/screen.py "$WORK" "$EXPECTED"
odd=$?
awk -F '\t' '$6 == "" { line = line ", " $1 " " $5 } END { print "# seconds: " substr(line, 3) }' "$WORK/parts.tsv"
python3 tests/gpu/results.py "$WORK" "$OUT"
[ $odd -eq 0 ] || exit 1
[ -z "$no_gpu" ] || exit 77
