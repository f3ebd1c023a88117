#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every option that --help lists stands in the program's manual page, and wrong usage exits with 2 and says what is right.
set -uo pipefail
cd "$(dirname "$0")/../.."
: "${BUILD:=build}"
bin=$BUILD/bin
report() { # report NAME STATUS DETAIL
    if [ "$2" -eq 0 ]; then echo "ok - $1"; else echo "not ok - $1: ${3:-}"; fi
}
missing() { # missing MANUAL PROGRAM [COMMAND]...: options of its help that the manual does not have
    local manual=$1 option
    shift
    for option in $("$@" --help | sed -n '/^options/,/^examples/s/^  \(-., \|    \)\(--[a-z-]*\).*/\2/p' | sort -u); do
        grep -qF -- "${option//-/\\-}" "$manual" || printf '%s ' "$option"
    done
}
all=
for command in run check measure plan eval generate tokenize convert serve; do
    all+=$(missing docs/man/titan-worker.1 "$bin/titan-worker" "$command")
done
report "titan-worker(1) has every option" "${#all}" "$all"
all=$(missing docs/man/titand.8 "$bin/titand")
report "titand(8) has every option" "${#all}" "$all"
all=$(missing docs/man/titan-spawnd.8 "$bin/titan-spawnd")
report "titan-spawnd(8) has every option" "${#all}" "$all"

wrong() { # wrong PATTERN PROGRAM WORD...
    local pattern=$1 out code
    shift
    out=$("$@" 2>&1 >/dev/null)
    code=$?
    [[ $code -eq 2 && $out == *"$pattern"* ]]
    report "${1##*/} ${*:2}" $? "exit $code, $out"
}
wrong "no command was given" "$bin/titan-worker"
wrong "did you mean plan?" "$bin/titan-worker" plann x.toml
wrong "did you mean --world?" "$bin/titan-worker" plan x.toml --wolrd 8
wrong "FILE is missing" "$bin/titan-worker" run
wrong "--workers many: not a whole number" "$bin/titan-worker" run x.toml -n many
wrong "unknown device 'abacus'" "$bin/titan-worker" plan x.toml --device abacus
wrong "No such file" "$bin/titan-worker" check missing.toml
wrong "serve needs" "$bin/titan-worker" serve --socket /x
wrong "OUT_DIR is missing" "$bin/titan-worker" convert x
wrong "--temperature hot" "$bin/titan-worker" generate x --temperature hot
wrong "no role given" "$bin/titand"
wrong "did you mean agent?" "$bin/titand" agnet
