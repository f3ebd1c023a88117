#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs or merges what `make fuzz-build` has built (mk/fuzz.mk).
#   fuzz.sh run 'TARGET...' MINUTES     what is learned stays in build/fuzz/learned/TARGET; finds in build/fuzz/found
#   fuzz.sh merge 'TARGET...'           the little of it that covers all goes to tests/fuzz/corpus/TARGET
set -euo pipefail
cd "$(dirname "$0")/../.."
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1:${ASAN_OPTIONS:-} UBSAN_OPTIONS=print_stacktrace=1:${UBSAN_OPTIONS:-}
failed=0 passed=0
for t in $2; do
    program=build/fuzz/tests/fuzz/targets/$t learned=build/fuzz/learned/$t
    [ -x "$program" ] || { echo "there is no target '$t'; there are: $(cd tests/fuzz/targets && ls -- *.c | sed 's/\.c$//' | xargs)"; exit 2; }
    mkdir -p "$learned" build/fuzz/found "tests/fuzz/corpus/$t"
    dict=()
    [ -f "tests/fuzz/dict/$t" ] && dict=("-dict=tests/fuzz/dict/$t")
    case $1 in
    run)
        log=build/fuzz/$t.log
        if nice -n 10 "$program" "$learned" "tests/fuzz/corpus/$t" "${dict[@]}" -max_total_time=$(($3 * 60)) -rss_limit_mb=4096 \
            -timeout=20 -max_len=65536 -print_final_stats=1 "-artifact_prefix=build/fuzz/found/$t-" >"$log" 2>&1; then
            passed=$((passed + 1))
            echo "ok $t: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $3 minutes, $(grep -oE 'cov: [0-9]+' "$log" | tail -1), no finding"
        else
            echo "not ok $t (log $log): $(grep -m1 -E 'ERROR:|runtime error|not so|SUMMARY' "$log" || tail -1 "$log")"
            failed=$((failed + 1))
        fi
        ;;
    merge)
        fresh=$(mktemp -d)
        "$program" -merge=1 -max_len=8192 "$fresh" "tests/fuzz/corpus/$t" "$learned" >/dev/null 2>&1
        rm -f "tests/fuzz/corpus/$t"/*
        # The smallest first, until there is enough: 64 KiB a target.
        bytes=0
        while read -r size name; do
            bytes=$((bytes + size))
            [ $bytes -gt 65536 ] && break
            cp "$fresh/$name" "tests/fuzz/corpus/$t/"
        done < <(find "$fresh" -type f -printf '%s %f\n' | sort -n)
        rm -rf "$fresh"
        echo "$t: $(ls "tests/fuzz/corpus/$t" | wc -l) files, $(du -sb "tests/fuzz/corpus/$t" | cut -f1) bytes"
        ;;
    esac
done
[ "$1" = run ] && echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
