#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds, checks and times Titan on a machine that has a GPU and nothing but a CUDA toolkit (with NCCL), gcc, g++, make and
# Python: no packages, no network. tests/gpu/first.sh comes before it.
#
#   OUT=folder tests/gpu/run.sh      summary.json, bench.json and logs.tar.gz in OUT (build/gpu-results/run/out), written again after
#                                    every part; what the parts leave lies in build/gpu-results/run
#   PARTS=REGEX                      only the parts with a name it matches, e.g. 'build|mesh'; the others' builds and runs are kept
#   PARTS=unrun                      what has not run on a GPU since it was written or changed, and what that is compared with: in a call
#                                    of its own, the first one
#   LIMIT=540                        no part starts after so many seconds, and none runs past them
#   CUDA=, NCCL=, CUBLAS=, CUDNN=    folders, where they are not to be looked for
#   QUICK=1                          small shapes in checks and benchmarks
#
# A part that fails does not stop the next; one that cannot run here says why. Ends with 'N passed, N failed, N skipped'. Exit code 0:
# nothing failed; 1: something failed; 2: PARTS matches nothing; 77: nothing failed, and there is no GPU, so most was skipped.
set -uo pipefail
cd "$(dirname "$0")/../.."
script=run LIMIT=${LIMIT:-540}
# docs/gpu.md says what of each is new. A part that has run goes from this list.
unrun=''
if [ "${PARTS:-}" = unrun ]; then
    [ -n "$unrun" ] || { echo "each part has run since it was changed"; exit 0; }
    PARTS="^($(echo $unrun | tr ' ' '|'))\$"
fi
. tests/gpu/parts.sh

machine() {
    nvidia-smi || return
    "$CUDA/bin/nvcc" --version | tail -n 2
    gcc --version | head -n 1
    echo "NCCL in ${NCCL:-nowhere}, cuBLASLt in ${CUBLAS:-nowhere}, cuDNN in ${CUDNN:-nowhere}"
}
check_model() {
    TITAN_TEST_DEVICE=cuda $B/gpu/check_model
}
# Reads and writes beyond memory, then races in shared memory: on shapes that end in minutes under it. racecheck does not see
# what mbarriers order in cuDNN's kernels and in ours for Hopper, and reports races there: it leaves them out.
sanitize() { # sanitize TOOL COMMAND...
    local tool=$1
    shift
    "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 20 "$@"
}

# Twice the same run: every operation is deterministic.
train_again() {
    train train-again 1 bfloat16 20 && same_losses 0 "$WORK/train-bf16/metrics.jsonl" "$WORK/train-again/metrics.jsonl"
}
train_ranks() { # train_ranks N: against one rank
    with_mps train "train-$1" "$1" float32 20 && same_losses 1e-5 "$WORK/train-fp32/metrics.jsonl" "$WORK/train-$1/metrics.jsonl"
}
# One rank of each model that meshes are compared on, against the CPU. Experts change places where two are as good as
# each other, which rounding decides (an H100 against the CPU: 2.4e-4 with latent attention, 2e-8 without a change).
mesh_bound() { # mesh_bound MODEL
    case $1 in experts | latent | dropped) echo 1e-3 ;; *) echo 1e-5 ;; esac
}
train_model() { # train_model MODEL
    train "mesh-1-$1" 1 float32 10 $(set_keys $(model_keys "$1") "training.dataset_path=$WORK/documents") &&
        same_losses "$(mesh_bound "$1")" "tests/gpu/debug_losses_$1.json" "$WORK/mesh-1-$1/metrics.jsonl"
}
train_mesh() { # train_mesh NAME: against one rank of the same model
    local model ranks keys
    find_mesh "$1" || return
    with_mps train "mesh-$1" "$ranks" float32 10 $keys $(set_keys "training.dataset_path=$WORK/documents") &&
        same_losses "$(mesh_bound "$model")" "$WORK/mesh-1-$model/metrics.jsonl" "$WORK/mesh-$1/metrics.jsonl"
}
train_variant() { # train_variant NAME: against the run that its line names
    local model ranks type reference bound keys environment
    find_variant "$1" || return
    [ -z "$environment" ] || export $environment
    with_mps train "variant-$1" "$ranks" "$type" 10 $keys $(set_keys "training.dataset_path=$WORK/documents") &&
        same_losses "$bound" "$WORK/$reference/metrics.jsonl" "$WORK/variant-$1/metrics.jsonl"
}
# A run that stops at step 5 and is started again loads its checkpoint, and has the losses of one that did not stop.
train_resumed() {
    local keys="$(set_keys checkpoint.enable=true checkpoint.interval=5 checkpoint.keep_latest_k=0 numerics.canonical=true)"
    train resumed 1 bfloat16 10 $keys && cp "$WORK/resumed/metrics.jsonl" "$WORK/resumed.whole.jsonl" || return
    ls "$WORK/resumed/checkpoint"
    rm -rf "$WORK/resumed/checkpoint/step-00000010" "$WORK/resumed/metrics.jsonl"
    debug_run $B/bin/titan-worker cuda 1 bfloat16 "$WORK/text" "$WORK/resumed" 10 $keys || return
    grep -i checkpoint "$WORK/resumed/log"
    tail -n 5 "$WORK/resumed.whole.jsonl" >"$WORK/resumed.rest.jsonl"
    same_losses 0 "$WORK/resumed.rest.jsonl" "$WORK/resumed/metrics.jsonl"
}
train_canonical() { # bit for bit across world sizes
    train canonical-1 1 float32 10 --set numerics.canonical=true &&
        with_mps train canonical-2 2 float32 10 --set numerics.canonical=true &&
        same_losses 0 "$WORK/canonical-1/metrics.jsonl" "$WORK/canonical-2/metrics.jsonl"
}

# SIGKILL of a rank in the middle of a run: the other must notice and end by itself.
train_killed() {
    local run victim left killed over
    rm -rf "$WORK/train-killed"
    train train-killed 2 float32 100000 &
    run=$!
    for _ in $(seq 300); do
        kill -0 $run 2>/dev/null || break
        [ ! -e "$WORK/train-killed/metrics.jsonl" ] || [ "$(wc -l <"$WORK/train-killed/metrics.jsonl")" -lt 3 ] || break
        sleep 0.1
    done
    victim=$(ranks_of "$WORK/train-killed" | tail -n 1)
    [ -n "$victim" ] || { echo "not ok - no rank is running"; wait $run; return 1; }
    echo "# killing $victim"
    killed=$(date +%s%3N)
    kill -KILL "$victim"
    for _ in $(seq 200); do
        left=$(ranks_of "$WORK/train-killed" | wc -l)
        [ "$left" -gt 0 ] || break
        sleep 0.1
    done
    if [ "$left" -gt 0 ]; then
        echo "not ok - $left processes still run 20 s after a rank was killed"
        ranks_of "$WORK/train-killed" | xargs -r kill -KILL
    else
        echo "ok - the run ended after a rank was killed"
    fi
    wait $run
    over=$(sed -n 's/ info worker epoch is over .*//p' "$WORK/train-killed/log" | tail -n 1)
    [ -z "$over" ] || echo "figure kill_to_epoch_over_ms $(($(date -d "$over" +%s%3N) - killed))"
    tail -n 5 "$WORK/train-killed/log"
}
# The processes of a run, parent first: those with its folder among their arguments.
ranks_of() {
    local p
    for p in /proc/[0-9]*; do
        if [ "$(readlink "$p/exe" 2>/dev/null)" = "$(realpath -m "$B")/bin/titan-worker" ] &&
            tr '\0' '\n' <"$p/cmdline" 2>/dev/null | grep -qxF "$1"; then
            basename "$p"
        fi
    done | sort -n
}

# A step of the demo's model, large enough to see more than launches.
time_steps() {
    rm -rf "$WORK/steps"
    mkdir -p "$WORK/steps"
    watch_card steps $B/bin/titan-worker run recipes/demo.toml -n 1 --device cuda --dir "$WORK/steps" --set "training.dataset_path=$WORK/text" \
        --set training.steps=50 --set checkpoint.enable=false --set elastic.min_workers=1
}

# The experts' products at the sizes of DeepSeek V3 16B with 8 experts a rank, by Hopper's kernels and by the others.
time_grouped() {
    local hopper op
    for hopper in 1 0; do
        for op in grouped grouped_dgrad grouped_wgrad; do
            echo "# TITAN_HOPPER=$hopper $op"
            TITAN_HOPPER=$hopper $B/gpu/bench_ops cuda 0 bf16 4096 1 32 8 14336 128256 1 8192 $op || return
        done
    done
}

# A traced step of Llama 3.2 1B: what its operations take there, and how long the device has nothing to do between them.
time_trace() {
    local recipe=recipes/llama3_1b.toml size=training.global_batch_size=1
    [ -z "${QUICK:-}" ] || recipe=recipes/tiny.toml size="training.seq_len=16 training.local_batch_size=1 training.global_batch_size=1"
    rm -rf "$WORK/trace" && mkdir -p "$WORK/trace"
    $B/bin/titan-worker run "$recipe" -n 1 --device cuda --dir "$WORK/trace" $(set_keys "training.dataset_path=$WORK/text" training.steps=10 $size \
        numerics.deterministic=false checkpoint.enable=false elastic.min_workers=1 elastic.max_workers=1 profiling.enable_profiling=true profiling.profile_freq=10) || return
    python3 tests/gpu/trace_gaps.py "$WORK/trace/profile_traces/iteration_10/rank0_trace.json" "$WORK/trace/metrics.jsonl"
}

# AdamW of a layer of 8B and of its head, then casts to float8 and products in it.
time_changed() {
    local op
    for op in adamw float8; do
        echo "# $op"
        $B/gpu/bench_ops cuda 0 bf16 4096 1 32 8 14336 128256 1 8192 $op || return
    done
}

export -f machine check_model sanitize mesh_bound model_keys find_mesh find_variant train_model train_mesh train_variant train_resumed train_again train_ranks train_canonical train_killed ranks_of \
    time_steps time_grouped time_changed time_trace
export meshes variants

python3 tests/gpu/text.py "$WORK/text"
make_documents "$WORK/text" "$WORK/documents"
worker=bin/titan-worker plugin=lib/titan/libtitan-cuda.so samples=${QUICK:+reduced}
part machine 30 "gpu toolkit" bash -c machine
part build 300 "gpu toolkit" bash -c build_all
part operations-hopper 30 "gpu gpu/check_hopper" $B/gpu/check_hopper
part operations 60 "gpu $plugin gpu/check_ops" $B/gpu/check_ops
part operations-cores 60 "gpu $plugin gpu/check_ops" env TITAN_HOPPER=0 $B/gpu/check_ops
part samples 90 "gpu $plugin gpu/check_ops" $B/gpu/check_ops samples $samples
part time-grouped 60 "gpu $plugin gpu/bench_ops" bash -c "time_grouped"
part time-changed 40 "gpu $plugin gpu/bench_ops" bash -c "time_changed"
part sanitizer-memcheck 150 "gpu sanitizer $plugin gpu/check_ops" bash -c "sanitize memcheck $B/gpu/check_ops"
part sanitizer-racecheck 150 "gpu sanitizer $plugin gpu/check_ops" bash -c "TITAN_HOPPER=0 sanitize racecheck --kernel-name-exclude kns=cudnn $B/gpu/check_ops samples reduced"
part communicator-probe 25 "gpu $plugin gpu/check_comm" $B/gpu/check_comm probe
part communicator-2 60 "gpu $plugin gpu/check_comm" env OUT="$WORK" $B/gpu/check_comm 2
part model 90 "gpu $plugin gpu/check_model" bash -c check_model
part directions 20 "gpu $plugin gpu/check_directions" env TITAN_TEST_DEVICE=cuda $B/gpu/check_directions
part parts 20 "gpu $plugin gpu/check_parts" env TITAN_TEST_DEVICE=cuda $B/gpu/check_parts
part codecs 20 "gpu $plugin gpu/check_codecs" env TITAN_TEST_DEVICE=cuda $B/gpu/check_codecs
part train-fp32 60 "gpu $plugin $worker" bash -c train_fp32
part train-bf16 60 "gpu $plugin $worker" bash -c train_bf16
part train-again 60 "gpu $plugin $worker" bash -c train_again
for model in $mesh_models; do
    part "train-1-$model" 60 "gpu $plugin $worker" bash -c "train_model $model"
done
for variant in $(awk '$3 == 1 { print $1 }' <<<"$variants"); do
    part "variant-$variant" 60 "gpu $plugin $worker" bash -c "train_variant $variant"
done
part resumed 60 "gpu $plugin $worker" bash -c train_resumed
part train-killed 90 "gpu $plugin $worker" bash -c train_killed
part communicator-4 90 "gpu $plugin gpu/check_comm" env OUT="$WORK" $B/gpu/check_comm 4
mps_start
export mps
part mps 5 mps echo "the parts with several ranks that follow run under MPS"
# Two ranks before four.
part train-2-ranks 90 "gpu $plugin $worker" bash -c "train_ranks 2"
part train-canonical 90 "gpu $plugin $worker" bash -c train_canonical
for ranks in 2 4; do
    # With so many hardware queues each, four clients are too many for MPS ("out of memory" on an H200): they take turns.
    [ "$ranks" -lt 4 ] || [ -z "$mps" ] || mps_stop
    for mesh in $(awk -v ranks=$ranks '$3 == ranks { print $1 }' <<<"$meshes"); do
        part "mesh-$mesh" 90 "gpu $plugin $worker" bash -c "train_mesh $mesh"
    done
    for variant in $(awk -v ranks=$ranks '$3 == ranks { print $1 }' <<<"$variants"); do
        part "variant-$variant" 90 "gpu $plugin $worker" bash -c "train_variant $variant"
    done
done
part train-4-ranks 90 "gpu $plugin $worker" bash -c "train_ranks 4"
[ -z "$mps" ] || mps_stop # what is timed has the GPU to itself
# A layer of 8B with its head, then a 1B model's step.
part time-ops-8b 120 "gpu $plugin gpu/bench_ops" bash -c "time_ops ops-8b 4096 1 32 8 14336 128256 1 8192"
part time-ops-1b 120 "gpu $plugin gpu/bench_ops" bash -c "time_ops ops-1b 2048 16 32 8 8192 128256 1 8192"
part time-steps 60 "gpu $plugin $worker" bash -c time_steps
part time-trace 40 "gpu $plugin $worker" bash -c time_trace
part time-8b-4-layers 180 "gpu $plugin $worker" bash -c "watch_card 8b-4-layers train_8b_4_layers"

python3 tests/gpu/results.py "$WORK" "$OUT"
python3 - "$OUT/summary.json" <<'PY'
import json
import sys
for name, run in json.load(open(sys.argv[1]))["runs"].items():
    print(f"{name:24} {run['steps']} steps, loss {run['loss_first']:.4f} to {run['loss_last']:.4f}, "
          f"{run['step_ms_median']:.2f} ms a step, {run['tokens_per_second_median']:.0f} tokens/s")
PY
echo "$passed passed, $failed failed, $skipped skipped"
[ $((passed + failed + skipped)) -gt 0 ] || { echo "tests/gpu/run.sh: PARTS='$PARTS' matches no part" >&2; exit 2; }
[ "$failed" -eq 0 ] || exit 1
[ -z "$no_gpu" ] || exit 77
