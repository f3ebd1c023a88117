#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Failpoints are in the programs built for tests, and in no program that is installed.
set -u
build=${BUILD:-build}
n=0
check() {
    n=$((n + 1))
    if eval "$2"; then echo "ok $n - $1"; else echo "not ok $n - $1"; fi
}
has() { nm "$1" | grep -q ' T failpoint_set$' && grep -q TITAN_FAILPOINTS "$1"; }
clean() { ! nm "$1" | grep -q failpoint_set && ! grep -q TITAN_FAILPOINTS "$1"; }
echo 1..6
check "fp/bin/titand has them" "has $build/fp/bin/titand"
check "fp/bin/titan-worker has them" "has $build/fp/bin/titan-worker"
for program in titand titan-worker titanctl; do
    check "bin/$program has none" "clean $build/bin/$program"
done
check "the CPU plug-in has none" "clean $build/lib/titan/libtitan-cpu.so"
