#!/usr/bin/env bash
# The CUDA kernels, streams and the NCCL communicator without a GPU: kernels on the emulator, the CUDA runtime, cuBLASLt
# and NCCL by the stand-ins of this folder. Needs the toolkit's headers.
set -uo pipefail
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
CUDA=${CUDA:-/usr/local/cuda}
dir=$BUILD/cuda-emulated
case $BUILD in *san-*) echo "ok 1 # skip the emulator's coroutines and the sanitizers do not mix"; exit 0 ;; esac
for need in "$CUDA/include/cuda_runtime_api.h:no CUDA toolkit in $CUDA" "$CUDA/include/nccl.h:no NCCL in $CUDA" \
    "$(command -v g++ || echo /missing):no C++ compiler"; do
    [ -e "${need%%:*}" ] || { echo "ok 1 # skip ${need#*:}"; exit 0; }
done
mkdir -p "$dir"
if ! make --no-print-directory -j2 "$dir/libtitan-cuda.so" gpu-programs BUILD="$BUILD" CUDA="$CUDA" WERROR=1 >"$dir/build.log" 2>&1; then
    tail -n 30 "$dir/build.log"
    echo "not ok - the emulated plug-in builds"
    exit 1
fi
# Beside the plug-in, which is where the worker looks first.
cp "$BUILD"/gpu/check_* "$dir/"
[ ! -x "$BUILD/bin/titan-worker" ] || cp "$BUILD/bin/titan-worker" "$dir/"
bad=0
TITAN_EMULATE_ORDER=up timeout 120 "$dir/check_ops" >"$dir/up.log" || bad=1
cat "$dir/up.log"
TITAN_EMULATE_ORDER=down timeout 120 "$dir/check_ops" >"$dir/down.log" || bad=1
if cmp "$dir/up.log" "$dir/down.log"; then
    echo "ok - threads in the other order give the same results"
else
    echo "not ok - threads in the other order give the same results" && bad=1
fi
for ranks in 2 4; do
    OUT=$dir timeout 120 "$dir/check_comm" $ranks || bad=1
done
# The model's loss, logits and gradients against PyTorch.
TITAN_TEST_DEVICE=cuda TITAN_TEST_ONLY=tiny_fp32 timeout 120 "$dir/check_model" || bad=1

# Training: the same losses as on the CPU, alone and on two ranks.
train() { # train FOLDER WORKERS DEVICE WORKER
    rm -rf "$dir/$1" && mkdir -p "$dir/$1"
    TITAN_NCCL_SHARED_GPU=1 timeout 120 "$4" run recipes/tiny.toml -n "$2" --device "$3" --dir "$dir/$1" \
        --set training.dataset_path=base --set training.steps=3 --set training.mixed_precision_param=float32 \
        --set checkpoint.enable=false >"$dir/$1/log" 2>&1 || { tail -n 5 "$dir/$1/log"; return 1; }
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
fi
exit $bad
