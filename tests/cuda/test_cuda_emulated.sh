#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The CUDA kernels, streams and the NCCL communicator without a GPU: kernels on the emulator, the CUDA runtime, cuBLASLt
# and NCCL by the stand-ins of this folder. Needs the toolkit's headers.
. "$(dirname "$0")/begin.sh"
dir=$BUILD/cuda-emulated
needs "$EMULATED" "$CUDA/include/cuda_runtime_api.h:no CUDA toolkit"
mkdir -p "$dir"
if ! make --no-print-directory -j2 "$dir/libtitan-cuda.so" gpu-programs BUILD="$BUILD" WERROR=1 >"$dir/build.log" 2>&1; then
    tail -n 30 "$dir/build.log"
    echo "not ok - the emulated plug-in builds"
    exit 1
fi
# Beside the plug-in, which is where the worker looks first.
cp "$BUILD"/gpu/check_* "$dir/"
[ ! -x "$BUILD/bin/titan-worker" ] || cp "$BUILD/bin/titan-worker" "$dir/"
export TITAN_CUDNN=/nonexistent/libcudnn.so.9 # tests/cuda/test_cudnn.sh has its stand-in
# As a Blackwell, which has every operation that Hopper has.
TITAN_FAKE_MAJOR=10 TITAN_EMULATE_ORDER=up timeout 300 "$dir/check_ops" >"$dir/up.log" || bad=1
cat "$dir/up.log"
TITAN_FAKE_MAJOR=10 TITAN_EMULATE_ORDER=down timeout 300 "$dir/check_ops" >"$dir/down.log" || bad=1
if cmp "$dir/up.log" "$dir/down.log"; then
    echo "ok - threads in the other order give the same results"
else
    echo "not ok - threads in the other order give the same results" && bad=1
fi
for ranks in 2 4; do
    TITAN_FAKE_ENDS=1 OUT=$dir timeout 300 "$dir/check_comm" $ranks || bad=1
done
# The model's loss, logits and gradients against PyTorch.
TITAN_TEST_DEVICE=cuda TITAN_TEST_ONLY=tiny_fp32 timeout 300 "$dir/check_model" || bad=1

# Training: the same losses as on the CPU, alone, on two ranks, and on some of the meshes that tests/gpu has.
. tests/gpu/meshes.sh
train() { # train FOLDER WORKERS DEVICE WORKER [--set ...]
    local name=$1 workers=$2 device=$3 worker=$4
    shift 4
    rm -rf "${dir:?}/$name" && mkdir -p "$dir/$name"
    TITAN_NCCL_SHARED_GPU=1 timeout 300 "$worker" run recipes/tiny.toml -n "$workers" --device "$device" \
        --dir "$dir/$name" --set training.dataset_path=base --set training.steps=3 --set training.seq_len=32 --set training.global_batch_size=4 \
        --set training.mixed_precision_param=float32 --set checkpoint.enable=false "$@" >"$dir/$name/log" 2>&1 ||
        { tail -n 5 "$dir/$name/log"; return 1; }
}
# Models as small as the meshes allow, four sequences a step: the emulator is slow.
small="--set training.dataset_path=$dir/documents $(set_keys training.seq_len=32 training.local_batch_size=1 \
    training.global_batch_size=4 model.n_layers=4 model.dim=32 model.n_heads=4 model.n_kv_heads=2 model.ffn_hidden=96)"
few="--set training.dataset_path=$dir/documents $(set_keys training.seq_len=32 training.local_batch_size=1 \
    training.global_batch_size=4 model.n_layers=2)"
train_mesh() { # train_mesh NAME: the mesh on the emulator, one rank on the CPU
    local model ranks keys size=$small
    find_mesh "$1" || return
    case $model in experts | latent) size=$few ;; esac
    [ -e "$dir/cpu-$model/metrics.jsonl" ] ||
        train "cpu-$model" 1 cpu "$BUILD/bin/titan-worker" $size $(set_keys $(model_keys "$model")) || return
    train "mesh-$1" "$ranks" cuda "$dir/titan-worker" $size $keys &&
        "${PYTHON:-python3}" tests/gpu/compare_losses.py --rtol 1e-5 "$dir/cpu-$model/metrics.jsonl" \
            "$dir/mesh-$1/metrics.jsonl"
}
if [ -x "$dir/titan-worker" ] && [ -e "$BUILD/lib/titan/libtitan-cpu.so" ]; then
    train cpu 1 cpu "$BUILD/bin/titan-worker" || bad=1
    for ranks in 1 2; do
        train cuda$ranks $ranks cuda "$dir/titan-worker" || bad=1
        if "${PYTHON:-python3}" tests/gpu/compare_losses.py --rtol 1e-5 "$dir/cpu/metrics.jsonl" "$dir/cuda$ranks/metrics.jsonl"; then
            echo "ok - training on $ranks emulated GPU ranks gives the CPU's losses"
        else
            echo "not ok - training on $ranks emulated GPU ranks gives the CPU's losses" && bad=1
        fi
    done
    # MXFP8: a sum of a few tokens is no multiple of a block. Older cards refuse it.
    mx=$(set_keys model.converters=quantize.linear.mx model.n_layers=2 training.seq_len=50 training.local_batch_size=1 \
        training.global_batch_size=2)
    if train cpu-mx 1 cpu "$BUILD/bin/titan-worker" $mx && TITAN_FAKE_MAJOR=10 train cuda-mx 1 cuda "$dir/titan-worker" $mx &&
        "${PYTHON:-python3}" tests/gpu/compare_losses.py --rtol 1e-4 "$dir/cpu-mx/metrics.jsonl" "$dir/cuda-mx/metrics.jsonl"; then
        echo "ok - training in MXFP8 on an emulated Blackwell gives the CPU's losses"
    else
        echo "not ok - training in MXFP8 on an emulated Blackwell gives the CPU's losses" && bad=1
    fi
    train hopper-mx 1 cuda "$dir/titan-worker" $mx >"$dir/hopper-mx.out"
    if [ "$(grep -c "has no products in MXFP8, they need compute capability 10.0 (Blackwell)" "$dir/hopper-mx/log")" -eq 1 ] &&
        [ ! -s "$dir/hopper-mx/metrics.jsonl" ]; then
        echo "ok - MXFP8 on a GPU before Blackwell is refused with one line"
    else
        cat "$dir/hopper-mx/log"
        echo "not ok - MXFP8 on a GPU before Blackwell is refused with one line" && bad=1
    fi
    # A plan that is made without the device is the program that runs there.
    TITAN_FAKE_NAME="NVIDIA H100 80GB HBM3" train named 2 cuda "$dir/titan-worker" || bad=1
    planned=$("$BUILD/bin/titan-worker" plan recipes/tiny.toml -n 2 --device h100 --costs none \
        $(set_keys training.seq_len=32 training.global_batch_size=4 training.mixed_precision_param=float32 checkpoint.enable=false) | sed -n 's/^program .* hash //p')
    if [ -n "$planned" ] && grep -q " program=$planned " "$dir/named/log"; then
        echo "ok - a run on a GPU executes the program that its plan printed"
    else
        grep " program=" "$dir/named/log"
        echo "not ok - a run on a GPU executes the program that its plan printed, $planned" && bad=1
    fi
    # What would block the host where the agent takes it for a hang, or a revoke for longer than it may.
    rm -f "$dir/counts"
    TITAN_FAKE_COUNTS=$dir/counts TITAN_FAKE_LAUNCH_US=200 train counted 1 cuda "$dir/titan-worker" \
        $(set_keys checkpoint.enable=true checkpoint.interval=2 model.n_layers=16 training.local_batch_size=1 \
            training.global_batch_size=1) || bad=1
    sed 's/^/# /' "$dir/counts"
    at_most() { # at_most NAME NUMBER WHAT
        local got
        got=$(awk -v name="$1" '$1 == name { print $2 }' "$dir/counts")
        if [ "${got:-none}" != none ] && [ "$got" -le "$2" ]; then
            echo "ok - $3"
        else
            echo "not ok - $3: $1 is ${got:-none}, not at most $2" && bad=1
        fi
    }
    at_most most_queued 300 "the host stays a little ahead of the device"
    at_most most_copied 67108864 "copies are in pieces"
    at_most most_pageable 65536 "the state and the tokens go through pinned memory"
    at_most device_syncs 0 "nothing waits for all streams"
    if [ "$(awk '$1 == "registered_bytes" { print $2 }' "$dir/counts")" -ge 10000 ]; then
        echo "ok - a checkpoint is copied straight into pinned memory"
    else
        echo "not ok - a checkpoint is copied straight into pinned memory" && bad=1
    fi
    rm -f "$dir/counts"
    TITAN_FAKE_NO_REGISTER=1 TITAN_FAKE_COUNTS=$dir/counts train unpinned 1 cuda "$dir/titan-worker" \
        $(set_keys checkpoint.enable=true checkpoint.interval=2 model.n_layers=16 training.local_batch_size=1 \
            training.global_batch_size=1) || bad=1
    at_most registered_bytes 0 "memory that cannot be pinned is none that the device copies into"
    at_most most_pageable 65536 "and a checkpoint goes through pinned buffers"
    written() { (cd "$dir/$1" && find . -name '*.safetensors' | sort | xargs sha256sum); }
    if [ -n "$(written counted)" ] && [ "$(written counted)" = "$(written unpinned)" ]; then
        echo "ok - both ways write the same checkpoints"
    else
        echo "not ok - both ways write the same checkpoints" && bad=1
    fi
    # Ways of a product: the second of three is the fastest. Each product is timed once, by one rank of two, and both take
    # what that one has chosen; where a step is to repeat none is timed.
    rm -f "$dir"/ways-*.counts
    brief=$(set_keys model.n_layers=1 training.seq_len=16 training.global_batch_size=2 training.local_batch_size=1)
    for ways in first:1:true fastest:1:false shared:2:false; do
        IFS=: read -r name ranks deterministic <<<"$ways"
        TITAN_FAKE_ALGORITHMS=300,100,200 TITAN_FAKE_COUNTS=$dir/ways-$name.counts train "ways-$name" "$ranks" cuda \
            "$dir/titan-worker" $brief $(set_keys numerics.deterministic=$deterministic) || bad=1
    done
    ran() { awk -v name="$2" '$1 == name { n += $2 } END { print n + 0 }' "$dir/ways-$1.counts"; } # ran NAME COUNT: of all ranks
    timed=$(sed -n 's/.*products timed .*products=\([0-9]*\) timed=\1$/\1/p' "$dir/ways-fastest/log")
    if [ "$(ran first proposals)-$(ran first products_1)" = 0-0 ] && [ "$(ran first products_0)" -gt 0 ]; then
        echo "ok - a product takes cuBLASLt's first proposal where steps are to repeat, and none is timed"
    else
        echo "not ok - a product takes cuBLASLt's first proposal where steps are to repeat, and none is timed" && bad=1
    fi
    # Noted, four times timed; in steps the fastest alone.
    if [ "${timed:-0}" -gt 0 ] && [ "$(ran fastest proposals)" -eq "$timed" ] && [ "$(ran fastest products_0)" -eq $((5 * timed)) ] &&
        [ "$(ran fastest products_1)" -eq $(($(ran first products_0) + 4 * timed)) ]; then
        echo "ok - with numerics.deterministic = false each of $timed products is timed once, and steps take the fastest way"
    else
        echo "not ok - each of ${timed:-no} products is timed once, and steps take the fastest way" && sed 's/^/# /' "$dir/ways-fastest.counts" && bad=1
    fi
    timed=$(sed -n 's/.*products timed .*timed=//p' "$dir/ways-shared/log")
    # Each rank's steps are products_1; the warm-up before and what is noted are products_0, a few of each product.
    if [ "$(ran shared proposals)" -eq "${timed:--1}" ] && [ "$(ran shared products_0)" -le $((10 * timed)) ] &&
        [ "$(ran shared products_1)" -ge $((2 * 3 * timed)) ]; then
        echo "ok - one of two ranks times them, and both take what it has chosen"
    else
        echo "not ok - one of two ranks times them, and both take what it has chosen" && sed 's/^/# /' "$dir/ways-shared.counts" && bad=1
    fi
    if "${PYTHON:-python3}" tests/gpu/compare_losses.py --rtol 1e-5 "$dir/ways-first/metrics.jsonl" "$dir/ways-shared/metrics.jsonl"; then
        echo "ok - with the losses of the first way, but for rounding"
    else
        echo "not ok - with the losses of the first way, but for rounding" && bad=1
    fi
    # Segments: the bits of single launches in far fewer of them, no more of them ahead of the device; and single launches
    # where a graph cannot be captured, or made, which is said once.
    rm -f "$dir"/graphs-*.counts
    brief="$brief $(set_keys lr_scheduler.warmup_steps=2)"
    for graphs in off:false: on:true: uncaptured:true:end unmade:true:make; do
        IFS=: read -r name wanted without <<<"$graphs"
        TITAN_FAKE_NO_GRAPHS=$without TITAN_FAKE_COUNTS=$dir/graphs-$name.counts train "graphs-$name" 1 cuda \
            "$dir/titan-worker" $brief $(set_keys compile.graph_segments="$wanted") || bad=1
    done
    counted() { awk -v name="$2" '$1 == name { n += $2 } END { print n + 0 }' "$dir/graphs-$1.counts"; } # counted NAME COUNT
    sed 's/^/# /' "$dir/graphs-on.counts" | grep -E 'enqueued|graph|ahead'
    if [ "$(counted off graphs)" -eq 0 ] && [ "$(counted on graphs)" -gt 0 ] &&
        [ "$(counted on enqueued)" -lt $(($(counted off enqueued) * 3 / 4)) ] &&
        [ "$(counted on most_ahead)" -le $(($(counted off most_ahead) + 64)) ]; then
        echo "ok - segments take fewer launches, with no more ahead of the device"
    else
        echo "not ok - segments take fewer launches, with no more ahead of the device" && sed 's/^/# off: /' "$dir/graphs-off.counts" && bad=1
    fi
    for name in on uncaptured unmade; do
        if "${PYTHON:-python3}" tests/gpu/compare_losses.py --rtol 0 "$dir/graphs-off/metrics.jsonl" "$dir/graphs-$name/metrics.jsonl" &&
            [ "$(grep -c 'launched one by one' "$dir/graphs-$name/log")" -eq "$([ $name = on ] && echo 0 || echo 1)" ]; then
            echo "ok - segments $name: the losses of single launches, bit for bit"
        else
            grep 'one by one' "$dir/graphs-$name/log"
            echo "not ok - segments $name: the losses of single launches, bit for bit" && bad=1
        fi
    done
    # A traced step, and one with measured waits: the device takes the times, the host is called no more often.
    rm -f "$dir"/times-*.counts
    for times in off:false:1000 on:true:1; do
        IFS=: read -r name wanted every <<<"$times"
        TITAN_FAKE_COUNTS=$dir/times-$name.counts train "times-$name" 2 cuda "$dir/titan-worker" $brief \
            $(set_keys metrics.log_freq="$every" profiling.enable_profiling="$wanted" profiling.profile_freq=3 profiling.profiler_warmup=1 profiling.profiler_active=2) || bad=1
    done
    calls() { awk '$1 == "host_calls" { n += $2 } END { print n + 0 }' "$dir/times-$1.counts"; }
    if [ "$(calls on)" -eq "$(calls off)" ] && [ "$(calls off)" -gt 0 ] &&
        "${PYTHON:-python3}" tests/gpu/trace_gaps.py "$dir/times-on/profile_traces/iteration_3/rank1_trace.json"; then
        echo "ok - times of a traced step are taken by the device, in the order of its streams"
    else
        echo "not ok - times of a traced step are taken by the device: $(calls on) calls of the host, $(calls off) without" && bad=1
    fi
    # A rank is killed while the other one's segments run: what is launched runs to its end, the epoch is over at once. Its windows
    # are given back: NCCL 2.28 would keep a step's memory that an abort finds registered.
    rm -rf "$dir/graphs-killed" "$dir/windows-killed.counts" && mkdir -p "$dir/graphs-killed"
    TITAN_NCCL_SHARED_GPU=1 TITAN_FAKE_LAUNCH_US=500 TITAN_FAKE_COUNTS=$dir/windows-killed.counts timeout 300 "$dir/titan-worker" run recipes/tiny.toml -n 2 --device cuda \
        --dir "$dir/graphs-killed" $brief $(set_keys training.dataset_path=base training.steps=10000 checkpoint.enable=false \
            compile.graph_segments=true nccl.windows=true metrics.log_freq=1) >"$dir/graphs-killed/log" 2>&1 &
    run=$!
    for _ in $(seq 600); do
        [ "$(cat "$dir/graphs-killed/metrics.jsonl" 2>/dev/null | wc -l)" -lt 3 ] || break
        sleep 0.1
    done
    victim=$(pgrep -P "$(pgrep -P $run | head -n 1)" | tail -n 1)
    [ -z "$victim" ] || kill -KILL "$victim"
    begin=$(date +%s%N)
    wait $run
    code=$?
    took=$((($(date +%s%N) - begin) / 1000000))
    if [ -n "$victim" ] && [ $code -ne 0 ] && [ $code -ne 124 ] && [ $took -lt 20000 ]; then
        echo "ok - a rank is killed while segments run: the run is over"
        echo "# after $took ms: $(grep -o 'rank [01] has ended or failed' "$dir/graphs-killed/log" | head -n 1)"
    else
        tail -n 5 "$dir/graphs-killed/log"
        echo "not ok - a rank (${victim:-none}) is killed while segments run: the run is over after $took ms with $code" && bad=1
    fi
    # NCCL's windows and what its collectives may take: both ranks register what communicators of collectives there are, their
    # sums run within it, and where it is refused the run goes on without.
    rm -f "$dir"/windows-{off,on,memory,register,none,one}.counts
    for windows in off:false: on:true: memory:true:memory register:true:register none:true:none one:true:one; do
        IFS=: read -r name wanted without <<<"$windows"
        TITAN_FAKE_NO_WINDOWS=$without TITAN_FAKE_COUNTS=$dir/windows-$name.counts train "windows-$name" 2 cuda \
            "$dir/titan-worker" $brief $(set_keys nccl.windows="$wanted" nccl.max_ctas=8 nccl.cta_policy=efficiency) || bad=1
    done
    registered() { awk -v name="$2" '$1 == name { n += $2 } END { print n + 0 }' "$dir/windows-$1.counts"; } # registered NAME COUNT
    if [ "$(registered off windows)" -eq 0 ] && [ "$(registered on windows)" -gt 0 ] && [ "$(registered on within_windows)" -gt 0 ] &&
        [ "$(registered on windows)" -eq "$(registered on windows_closed)" ]; then
        echo "ok - windows are registered, used and given back"
    else
        sed 's/^/# /' "$dir/windows-on.counts"
        echo "not ok - windows are registered, used and given back" && bad=1
    fi
    if [ "$(registered one windows)" -gt 0 ] && [ "$(registered one windows)" -eq "$(registered one windows_closed)" ] &&
        [ "$(registered one within_windows)" -eq 0 ] && grep -q 'another rank was refused one' "$dir/windows-one/log"; then
        echo "ok - where one rank is refused a window the other one gives its own back and says why"
    else
        sed 's/^/# /' "$dir/windows-one.counts"
        echo "not ok - where one rank is refused a window the other one gives its own back and says why" && bad=1
    fi
    if [ "$(registered killed windows)" -gt 0 ] && [ "$(registered killed windows)" -eq "$(registered killed windows_closed)" ]; then
        echo "ok - windows are given back after a death, too"
    else
        sed 's/^/# /' "$dir/windows-killed.counts"
        echo "not ok - windows are given back after a death, too" && bad=1
    fi
    # What NCCL cannot go on after: the run's own line, no broken device's.
    rm -rf "$dir/windows-later" && mkdir -p "$dir/windows-later"
    TITAN_NCCL_SHARED_GPU=1 TITAN_FAKE_NO_WINDOWS=later timeout 60 "$dir/titan-worker" run recipes/tiny.toml -n 2 --device cuda --dir "$dir/windows-later" \
        $brief $(set_keys training.dataset_path=base training.steps=3 checkpoint.enable=false nccl.windows=true) >"$dir/windows-later/log" 2>&1
    code=$?
    if [ $code -eq 2 ] && [ "$(grep -c 'NCCL registers no window: ' "$dir/windows-later/log")" -eq 1 ] && grep -q 'set nccl.windows = false' "$dir/windows-later/log"; then
        echo "ok - a communicator that is lost at a window ends the run with exit code 2 and what to do"
    else
        tail -n 5 "$dir/windows-later/log"
        echo "not ok - a communicator that is lost at a window ends the run with exit code $code, not 2, and what to do" && bad=1
    fi
    for name in on memory register none one; do
        if "${PYTHON:-python3}" tests/gpu/compare_losses.py --rtol 0 "$dir/windows-off/metrics.jsonl" "$dir/windows-$name/metrics.jsonl" &&
            [ "$(grep -c 'transfers go without windows' "$dir/windows-$name/log")" -eq "$([ $name = on ] && echo 0 || echo 2)" ]; then
            echo "ok - windows $name: the losses of a run without, and each rank says once what it lacks"
        else
            tail -n 3 "$dir/windows-$name/log"
            echo "not ok - windows $name: the losses of a run without, and each rank says once what it lacks" && bad=1
        fi
    done
    # Two ranks of the communicators of gathers and of sums; 1 is NCCL_CTA_POLICY_EFFICIENCY.
    if [ "$(registered off comms_with_ctas)" -eq 4 ] && [ "$(registered off comms_with_policy)" -eq 4 ] &&
        [ "$(sort -u "$dir/windows-off.counts" | grep -cE '^(most_ctas 8|policy 1)$')" -eq 2 ]; then
        echo "ok - collectives beside products take the thread blocks that they may"
    else
        grep -E 'ctas|policy' "$dir/windows-off.counts"
        echo "not ok - collectives beside products take the thread blocks that they may" && bad=1
    fi
    TITAN_FAKE_USED_MB=4095 train full 1 cuda "$dir/titan-worker" >"$dir/full.out"
    if grep -q "emulated GPU, 0.00 of 4.00 GiB free when it was opened: .* needs .* GiB of device memory" "$dir/full.out"; then
        echo "ok - too little free memory is refused with the numbers"
    else
        cat "$dir/full.out"
        echo "not ok - too little free memory is refused with the numbers" && bad=1
    fi
    TITAN_FAKE_BREAK=600 timeout 60 "$dir/titan-worker" run recipes/tiny.toml --device cuda --dir "$dir/broken" \
        --set training.dataset_path=base --set training.steps=3 --set checkpoint.enable=false >"$dir/broken.out" 2>&1
    code=$?
    if [ $code -eq 75 ] && [ "$(grep -c "cudaErrorEmulated" "$dir/broken.out")" -eq 1 ]; then
        echo "ok - a device that breaks ends the worker with exit code 75 and one line"
    else
        cat "$dir/broken.out"
        echo "not ok - a device that breaks ends the worker with exit code $code, not 75, and one line" && bad=1
    fi
    "${PYTHON:-python3}" tests/gpu/text.py "$dir/text" && make_documents "$dir/text" "$dir/documents" || bad=1
    rm -rf "$dir"/cpu-*
    for mesh in tp-2 pp-2-1f1b pp-2-zbv cp-2-gather cp-2-masked ep-2 ep-2-latent; do
        if train_mesh $mesh; then
            echo "ok - training on $mesh, emulated, gives one CPU rank's losses"
        else
            echo "not ok - training on $mesh, emulated, gives one CPU rank's losses" && bad=1
        fi
    done
    # Experts that two ranks share, in canonical mode: the bits of one rank.
    canonical="--set training.dataset_path=$dir/documents $(set_keys training.seq_len=32 training.local_batch_size=1 \
        training.global_batch_size=6 model.n_layers=2 model.name=llama3_moe model.flavor=tiny numerics.canonical=true)"
    train canonical-1 1 cuda "$dir/titan-worker" $canonical || bad=1
    if train canonical-2 2 cuda "$dir/titan-worker" $canonical $(set_keys parallelism.expert_parallel_degree=2) &&
        "${PYTHON:-python3}" tests/gpu/compare_losses.py --rtol 0 "$dir/canonical-1/metrics.jsonl" \
            "$dir/canonical-2/metrics.jsonl"; then
        echo "ok - experts shared by two emulated GPU ranks in canonical mode: the bits of one"
    else
        echo "not ok - experts shared by two emulated GPU ranks in canonical mode: the bits of one" && bad=1
    fi
    # Rows that experts have no room for: the CPU drops the same ones.
    drop="$canonical $(set_keys moe.overflow=drop moe.capacity_factor=0.75)"
    dropped() { grep -o '"expert_tokens_dropped":[0-9]*' "$dir/$1/metrics.jsonl" | tr '\n' ' '; }
    if train drop-cpu 1 cpu "$BUILD/bin/titan-worker" $drop &&
        train drop-2 2 cuda "$dir/titan-worker" $drop $(set_keys parallelism.expert_parallel_degree=2) &&
        "${PYTHON:-python3}" tests/gpu/compare_losses.py --rtol 1e-5 "$dir/drop-cpu/metrics.jsonl" \
            "$dir/drop-2/metrics.jsonl" &&
        [ "$(dropped drop-cpu)" = "$(dropped drop-2)" ] && dropped drop-2 | grep -q ':[1-9]'; then
        echo "ok - experts on two emulated GPU ranks drop the rows that the CPU drops: $(dropped drop-2)"
    else
        echo "not ok - experts on two emulated GPU ranks drop the rows that the CPU drops: $(dropped drop-cpu), $(dropped drop-2)" && bad=1
    fi
    # The whole product: titand with workers that load the emulated plug-in from where the real one is.
    if [ -x "$BUILD/bin/titand" ]; then
        mkdir -p "$dir/product/bin" "$dir/product/lib/titan"
        cp "$BUILD"/bin/titan* "$dir/product/bin/"
        cp "$dir"/*.so* "$dir/product/lib/titan/"
        BUILD=$dir/product timeout 280 "${PYTHON:-python3}" tests/gpu/elastic.py | grep -v '^1\.\.' || bad=1
    fi
fi
exit $bad
