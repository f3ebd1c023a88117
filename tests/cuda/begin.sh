# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the tests of this folder begin with: the tree, BUILD, where the toolkit is, and checks in TAP.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
BUILD=${BUILD:-build}
. tests/gpu/toolkit.sh
unset TITAN_TEST_SET # the programs run all of their cases
n=0 bad=0
own=$(mktemp -d)
trap 'rm -rf "$own"' EXIT
export TITAN_HOPPER=0 # its kernels take long on the emulator; test_hopper.sh has them
check() { # check DESCRIPTION COMMAND...: ok when the command succeeds
    local what=$1
    shift
    n=$((n + 1))
    if "$@"; then echo "ok $n - $what"; else echo "not ok $n - $what"; bad=1; fi
}
skip() { echo "ok $((n += 1)) # skip $1"; }

EMULATED="the emulator's coroutines and the sanitizers do not mix"
needs() { # needs WHY-NO-SANITIZERS FILE:WHY...: nothing is tested under sanitizers, or without one of the files
    local need
    case $BUILD in *san-*) skip "$1"; exit 0 ;; esac
    shift
    for need in "$@" "$NCCL/include/nccl.h:no NCCL in $CUDA or a Python package" "$(command -v g++ || echo /missing):no C++ compiler"; do
        [ -e "${need%%:*}" ] || { skip "${need#*:}"; exit 0; }
    done
}

# Scripts run side by side: what they share is built by the first that wants it, what they write is in $own.
build() { # build TARGET...: the script ends where they cannot be built
    mkdir -p "$BUILD/cuda-emulated"
    flock "$BUILD/cuda-emulated/lock" make --no-print-directory -j2 "$@" BUILD="$BUILD" WERROR=1 >"$own/build.log" 2>&1 && return
    tail -n 30 "$own/build.log"
    echo "not ok - what the script needs is built: $*"
    exit 1
}
# The plug-in and the probe for Hopper in $compiled, with what the compiler says of each kernel beside its object.
compiled=$BUILD/cuda-test
compile() {
    mkdir -p "$compiled/keep"
    make --no-print-directory -j2 cuda gpu-probe "$compiled/gpu/check_ops" BUILD="$compiled" WERROR=1 CUDA_ARCH=90a NVCC=tests/cuda/nvcc_logged.sh \
        NVCCFLAGS="-O3 -Xptxas -v --keep --keep-dir $compiled/keep" >"$compiled/build.log" 2>&1
}
# The worker and the checks of tests/gpu in $own, beside the plug-in on the emulator: there they look first.
emulate() {
    needs "$EMULATED" "$CUDA/include/cuda_runtime_api.h:no CUDA toolkit" "$BUILD/bin/titan-worker:no worker in $BUILD/bin"
    build "$BUILD/cuda-emulated/libtitan-cuda.so" gpu-programs
    cp "$BUILD"/cuda-emulated/*.so* "$BUILD"/gpu/check_* "$BUILD/bin/titan-worker" "$own/"
    export TITAN_CUDNN=/nonexistent/libcudnn.so.9 # test_cudnn.sh has its stand-in
}

# Short runs, for the emulator is slow.
train() { # train NAME WORKERS DEVICE [--set ...]: in $own/NAME
    local name=$1 workers=$2 device=$3 worker=$own/titan-worker
    shift 3
    [ "$device" = cuda ] || worker=$BUILD/bin/titan-worker
    mkdir -p "$own/$name"
    TITAN_NCCL_SHARED_GPU=1 "$worker" run recipes/tiny.toml -n "$workers" --device "$device" \
        --dir "$own/$name" --set training.dataset_path=base --set training.steps=3 --set training.seq_len=32 --set training.global_batch_size=4 \
        --set training.mixed_precision_param=float32 --set checkpoint.enable=false "$@" >"$own/$name/log" 2>&1 ||
        { tail -n 5 "$own/$name/log"; return 1; }
}
same_losses() { # same_losses RTOL NAME NAME
    "${PYTHON:-python3}" tests/gpu/compare_losses.py --rtol "$1" "$own/$2/metrics.jsonl" "$own/$3/metrics.jsonl"
}
# What the stand-ins counted of a run with TITAN_FAKE_COUNTS=$own/NAME.counts, of all ranks.
counted() { # counted NAME COUNT
    awk -v name="$2" '$1 == name { n += $2 } END { print n + 0 }' "$own/$1.counts"
}
shown() { # shown NAME: they are told when a check of them fails
    sed 's/^/# /' "$own/$1.counts"
    return 1
}
