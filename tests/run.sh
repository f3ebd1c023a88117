#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs test programs and scripts, two at a time, and closes with 'N passed, N failed'. Each prints TAP; what exits
# non-zero without a "not ok" counts as one failure. A failing test's output is shown whole.
#   BUILD=build LIMIT=1200 tests/run.sh -- PROGRAM...       LIMIT: seconds for one of them
set -uo pipefail
while [ "${1:-}" != "--" ] && [ $# -gt 0 ]; do shift; done
shift || true
out=${BUILD:-build}/test-results
mkdir -p "$out"
exec 9>"$out/.lock"
flock -n 9 || { echo "tests already run in ${BUILD:-build}: wait for them, or give this run a folder of its own (BUILD=...)" >&2; exit 2; }
rm -f "$out"/*.log "$out"/*.count "$out"/*.cpu
export TITAN_ALLOW_ROOT=1 # tests often run as root
[ "$(ulimit -S -n)" -le 1024 ] || ulimit -S -n 1024 # as a login of Debian has
export CMOCKA_MESSAGE_OUTPUT=TAP BUILD=${BUILD:-build} PYTHON=${PYTHON:-/usr/bin/python3} LIMIT=${LIMIT:-1200}

one() {
    local t=$1 log rc start end
    log=$out/$(echo "${t#"$BUILD"/}" | tr / _).log
    start=$(date +%s%N)
    local TIMEFORMAT='%0U %0S' run=("$t") user system
    case $t in
    *.py) run=("$PYTHON" "$t") ;;
    *.sh) run=(bash "$t") ;;
    esac
    { time timeout "$LIMIT" "${run[@]}" >"$log" 2>&1 </dev/null; } 2>"$log.cpu"
    rc=$?
    read -r user system < <(tail -n 1 "$log.cpu")
    end=$(date +%s%N)
    local pass fail skip
    # cmocka marks a skipped test "not ok N # SKIP".
    skip=$(grep -ciE '^[[:space:]]*(not )?ok .*# *skip' "$log")
    pass=$(grep -iE '^[[:space:]]*ok ' "$log" | grep -civE '# *skip')
    fail=$(grep -iE '^[[:space:]]*not ok ' "$log" | grep -civE '# *skip')
    if [ $rc -ne 0 ] && [ "$fail" -eq 0 ]; then fail=1; fi
    if [ $rc -eq 0 ] && [ $((pass + fail + skip)) -eq 0 ]; then fail=1; echo "printed no TAP line" >>"$log"; fi
    echo "$pass $fail $skip" >"$log.count"
    if [ "$fail" -gt 0 ]; then
        { echo "FAIL $t (exit $rc)"; sed 's/^/    /' "$log" | tail -n 200; }
    else
        printf 'ok   %-55s %4d passed%s %6d ms, %d s of a processor\n' "${t#"$BUILD"/}" "$pass" "$([ "$skip" -gt 0 ] && echo ", $skip skipped ($(grep -ioE '# *skip.*' "$log" | head -1 | sed 's/^# *//'))")" $(((end - start) / 1000000)) "$((user + system))"
    fi
}
export -f one
export out
# Programs first, side by side, the longest before the others so that no core is left over. Then the scripts that start
# daemons, one at a time as they measure and wait. Beside them, with what they leave of the processors: those that only compute, of
# which those for GPUs build in one folder (but for one), and those that measure nothing and wait for most of their time.
programs=() long=() scripts=() compiling=() gpus=() computing=() waiting=() lanes=()
for t in "$@"; do
    case $t in
    tests/interop/test_grpcio.py) scripts+=("$t") ;;
    tests/cuda/test_cuda_build.sh) compiling+=("$t") ;;
    tests/cuda/*) gpus+=("$t") ;;
    tests/model/* | tests/equivalence/* | tests/weights/* | tests/fuzz/* | tests/interop/*) computing+=("$t") ;;
    tests/fault/test_checkpoint_folder.py | tests/fault/test_old_backup.py | tests/fault/test_share_hangs.py | tests/fault/test_jobs_dir.py | tests/fault/test_node_check.py | \
        tests/fault/test_node_short.py)
        waiting+=("$t") ;;
    *.sh | *.py) scripts+=("$t") ;;
    */elastic/test_resize | */plan/test_check | */plan/test_build | */golden/test_model | */sim/test_simulation) long+=("$t") ;;
    *) programs+=("$t") ;;
    esac
done
programs=("${long[@]}" "${programs[@]}")
[ ${#programs[@]} -gt 0 ] && printf '%s\0' "${programs[@]}" | xargs -0 -P "$(nproc)" -I{} bash -c 'one "$1"' _ {}
# In the session of the others: with sessions of their own (autogroup) Linux 6.18 lets kernel threads wait for seconds, and
# with them what is written to a disk.
lane() { # lane NICE TEST...
    [ $# -gt 1 ] || return 0
    nice -n "$1" bash -c 'shift; for t in "$@"; do one "$t"; done' _ "$@" &
    lanes+=($!)
}
end_of() { # PROCESS, and all that come from it
    local child
    kill -STOP "$1" 2>/dev/null
    for child in $(pgrep -P "$1"); do end_of "$child"; done
    kill "$1" 2>/dev/null
    kill -CONT "$1" 2>/dev/null
}
lane 19 "${gpus[@]}"
lane 19 "${compiling[@]}"
lane 19 "${computing[@]}"
lane 0 "${waiting[@]}" # daemons with deadlines: at nice 5 they got no processor for seconds
trap 'for process in "${lanes[@]}"; do end_of "$process"; done' EXIT
for t in "${scripts[@]}"; do one "$t"; done
wait
trap - EXIT
read -r pass fail skip < <(cat "$out"/*.count 2>/dev/null | awk '{p+=$1; f+=$2; s+=$3} END {print p+0, f+0, s+0}')
echo "$pass passed, $fail failed$([ "$skip" -gt 0 ] && echo ", $skip skipped")"
[ "$fail" -eq 0 ] && [ "$pass" -gt 0 ]
