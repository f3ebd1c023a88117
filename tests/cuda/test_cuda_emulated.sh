#!/usr/bin/env bash
# The CUDA kernels, streams and the NCCL communicator without a GPU: kernels on the emulator, the CUDA runtime, cuBLASLt
# and NCCL by the stand-ins of this folder. Needs the toolkit's headers.
set -uo pipefail
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
CUDA=${CUDA:-/usr/local/cuda}
dir=$BUILD/cuda-emulated
for need in "$CUDA/include/cuda_runtime_api.h:no CUDA toolkit in $CUDA" "$CUDA/include/nccl.h:no NCCL in $CUDA" \
    "$(command -v g++ || echo /missing):no C++ compiler"; do
    [ -e "${need%%:*}" ] || { echo "ok 1 # skip ${need#*:}"; exit 0; }
done
mkdir -p "$dir"
if ! make --no-print-directory -j2 "$dir/libtitan-cuda.so" gpu-programs BUILD="$BUILD" CUDA="$CUDA" >"$dir/build.log" 2>&1; then
    tail -n 30 "$dir/build.log"
    echo "not ok - the emulated plug-in builds"
    exit 1
fi
# Beside the plug-in, which is where the worker looks first.
cp "$BUILD"/gpu/check_* "$dir/"
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
exit $bad
