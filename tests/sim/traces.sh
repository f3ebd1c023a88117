#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares two files of `make sim-trace`: traces.sh OLD NEW. Exit 1 and the first seeds that differ when they do.
set -euo pipefail
same=$(comm -12 <(sort "$1") <(sort "$2") | wc -l)
all=$(wc -l <"$2")
echo "$same of $all schedules have the same trace"
[ "$same" -eq "$all" ] && [ "$all" -gt 0 ] || {
    join -j 1 <(sort "$1") <(sort "$2") | awk '$3 != $6 {print "seed " $1 ": what was delivered differs"; next} $4 != $7 {print "seed " $1 ": what was stored differs"}' | head -5
    exit 1
}
