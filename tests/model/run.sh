#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks membership.pml and step.pml with spin: the protocol holds, and each rule that is left out is found. Closes with
# 'N passed, N failed'.
#   all N=3 IDS=3 CUTS=2   every order of events in a cluster and a history of that size
#   random SECONDS=60      random histories of larger clusters, for so long each
set -euo pipefail
cd "$(dirname "$0")"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp membership.pml step.pml "$dir"
cd "$dir"
passed=0 failed=0 model=membership

build() { # LEVEL CFLAGS -- DEFINES...
    local cflags=()
    while [ "$1" != -- ]; do cflags+=("$1"); shift; done
    shift
    spin "$@" -a "$model.pml" >/dev/null
    ${CC:-cc} -w -DSAFETY "${cflags[@]}" -o pan pan.c
}
report() { # NAME WANTED FOUND
    if [ "$2" = "$3" ]; then
        passed=$((passed + 1))
        echo "ok   $1: $(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1 states/p' out | head -1)"
    else
        failed=$((failed + 1))
        echo "FAIL $1: $3, expected $2"
        cat out
    fi
}
verdict() {
    if grep -q 'assertion violated' out; then echo violation
    elif grep -qE 'max search depth too small|out of memory' out || ! grep -q 'states, stored' out; then echo unfinished
    else echo none; fi
}
every() { # NAME WANTED DEFINES...
    local name=$1 wanted=$2
    shift 2
    # What is violated is found soon: there the compiler takes longest.
    build "$([ "$wanted" = violation ] && echo -O0 || echo -O2)" -DCOLLAPSE -- "$@"
    ./pan -m1000000 >out 2>&1 || true
    report "$name" "$wanted" "$(verdict)"
}
# What is not found in the time given is taken as not there.
random() { # NAME WANTED SECONDS SEEDS DEFINES...
    local name=$1 wanted=$2 seconds=$3 seeds=$4 found=none
    shift 4
    build -O2 -DBITSTATE -DT_RAND -- "$@"
    for seed in $seeds; do
        timeout "$seconds" ./pan -w28 -m100000 -RS"$seed" >out 2>&1 || true
        [ "$(verdict)" != violation ] || { found=violation; break; }
    done
    report "$name" "$wanted" "$found"
}

model=step
for rule in LAST AFTER COPY_AFTER ALL_SUMS; do
    every "a step with COMMIT, without $rule" violation "-D$rule=0"
done
for directed in 0 1; do
    for rule in SETTLED TOLD; do
        every "a step with DIRECTED=$directed, without $rule" violation -DDIRECTED=$directed "-D$rule=0"
    done
    every "steps of 4 ranks with DIRECTED=$directed" none -DDIRECTED=$directed -DN=4 -DSTEPS=3
done
model=membership

size=(-DN="${N:-3}" -DIDS="${IDS:-3}" -DCUTS="${CUTS:-2}")
later=(-DN=3 -DIDS=4 -DCUTS=2 -DCOARSE=1 -DLATER=1)
unheard=(-DN=4 -DIDS=4 -DCUTS=2 -DCOARSE=1 -DLATER=2)
larger=(-DN=4 -DIDS=4 -DCUTS=2 -DCOARSE=1)
for rule in QUORUM LEASE PAUSE MAJORITY FENCE VOID; do
    every "without $rule" violation "${size[@]}" "-D$rule=0"
done
for rule in TOLD DEPARTING; do
    every "without $rule, later" violation "${later[@]}" "-D$rule=0"
done
every "without REGISTRATION, 4 agents, unheard" violation "${unheard[@]}" -DREGISTRATION=0
every "${N:-3} agents, coarse, links break once" none -DN="${N:-3}" -DIDS="${IDS:-3}" -DCUTS=1 -DCOARSE=1
every "3 agents, later" none "${later[@]}"
if [ "${1:-quick}" != quick ]; then
    every "${N:-3} agents, coarse" none "${size[@]}" -DCOARSE=1
    every "${N:-3} agents, links break once" none -DN="${N:-3}" -DIDS="${IDS:-3}" -DCUTS=1
    random "4 agents, unheard, random" none "${SECONDS_EACH:-60}" "2 3 5" "${unheard[@]}"
    random "4 agents, random" none "${SECONDS_EACH:-60}" "2 3 5" "${larger[@]}"
    random "5 agents, random" none "${SECONDS_EACH:-60}" "2 3 5" -DN=5 -DIDS=4 -DCUTS=2 -DCOARSE=1
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
