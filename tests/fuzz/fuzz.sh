#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs or merges what `make fuzz-build` has built (mk/fuzz.mk).
#   fuzz.sh run 'TARGET...' MINUTES     what is learned stays in build/fuzz/learned/TARGET; finds in build/fuzz/found
#   fuzz.sh merge 'TARGET...'           the little of it that covers all becomes tests/fuzz/corpus/TARGET.tar.xz
set -euo pipefail
cd "$(dirname "$0")/../.."
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1:${ASAN_OPTIONS:-} UBSAN_OPTIONS=print_stacktrace=1:${UBSAN_OPTIONS:-}
merge() { # INTO FROM: adds to a folder what another one has and it does not cover
    "$program" -merge=1 -max_len=8192 "$1" "$2" >"$log" 2>&1 || { echo "not ok $t: the merge failed (log $log): $(tail -1 "$log")"; exit 1; }
}
[ "$1" = run ] || trap 'rm -rf build/fuzz/merge' EXIT
failed=0 passed=0
for t in $2; do
    program=build/fuzz/tests/fuzz/targets/$t learned=build/fuzz/learned/$t corpus=build/fuzz/fuzz-corpus/$t
    mkdir -p "$learned" build/fuzz/found "$corpus"
    dict=()
    [ -f "tests/fuzz/dict/$t" ] && dict=("-dict=tests/fuzz/dict/$t")
    case $1 in
    run)
        log=build/fuzz/$t.log
        if nice -n 10 "$program" "$learned" "$corpus" "${dict[@]}" -max_total_time=$(($3 * 60)) -rss_limit_mb=4096 \
            -timeout=20 -max_len=65536 -print_final_stats=1 "-artifact_prefix=build/fuzz/found/$t-" >"$log" 2>&1; then
            passed=$((passed + 1))
            echo "ok $t: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $3 minutes, $(grep -oE 'cov: [0-9]+' "$log" | tail -1), no finding"
        else
            echo "not ok $t (log $log): $(grep -m1 -E 'ERROR:|runtime error|not so|SUMMARY' "$log" || tail -1 "$log")"
            failed=$((failed + 1))
        fi
        ;;
    merge)
        fresh=build/fuzz/merge/$t log=build/fuzz/$t-merge.log
        rm -rf "$fresh"
        mkdir -p "$fresh/least" "$fresh/kept"
        cp -r "$corpus" "$fresh/all"
        merge "$fresh/all" "$learned"
        # To find the least anew drops others each time: an archive would be another one for nothing.
        new=$(($(find "$fresh/all" -type f | wc -l) - $(find "$corpus" -type f | wc -l)))
        [ $new -gt 0 ] || { echo "$t: nothing new"; continue; }
        merge "$fresh/least" "$fresh/all"
        # The smallest first, until there is enough: 64 KiB a target. Eight digits of a hash name an input: whole ones would be
        # two fifths of the archive.
        files=0 bytes=0
        while read -r size name; do
            [ $((bytes + size)) -le 65536 ] || break
            files=$((files + 1)) bytes=$((bytes + size))
            cp "$fresh/least/$name" "$fresh/kept/${name:0:8}"
        done < <(find "$fresh/least" -type f -printf '%s %f\n' | sort -n)
        tests/fuzz/archive.sh pack "$fresh/kept" "tests/fuzz/corpus/$t.tar.xz"
        echo "$t: $new new inputs, $files files, $bytes bytes, an archive of $(stat -c %s "tests/fuzz/corpus/$t.tar.xz")"
        ;;
    esac
done
[ "$1" = run ] && echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
