# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the tests of this folder begin with: the tree, BUILD, where the toolkit is, and checks in TAP.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
BUILD=${BUILD:-build}
. tests/gpu/toolkit.sh
n=0 bad=0
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
