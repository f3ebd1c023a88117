#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The corpora of tests/fuzz/corpus, unpacked by `make tests`, through their targets (tests/fuzz/targets), without a fuzzer.
set -uo pipefail
cd "$(dirname "$0")/../.."
programs=("${BUILD:-build}"/tests/fuzz/replay/*)
[ -x "${programs[0]}" ] || { echo "1..1"; echo "not ok 1 - no programs in ${BUILD:-build}/tests/fuzz/replay (make tests)"; exit 1; }
echo "1..${#programs[@]}"
failed=0 number=0
for program in "${programs[@]}"; do
    number=$((number + 1))
    target=${program##*/}
    corpus=${BUILD:-build}/fuzz-corpus/$target
    [ -d "$corpus" ] || { echo "not ok $number - $target: no $corpus (make tests; a new target: make fuzz-add TARGET=$target FILE=path)"; failed=1; continue; }
    out=$(timeout 600 "$program" "$corpus" 2>&1)
    rc=$?
    if [ $rc -eq 0 ]; then
        echo "ok $number - $target: $(tail -1 <<<"$out") inputs"
    else
        echo "not ok $number - $target (exit $rc)"
        sed 's/^/# /' <<<"$out" | tail -20
        failed=1
    fi
done
exit $failed
