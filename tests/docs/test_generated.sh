#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# docs/metrics.md, docs/published.md, the operations in docs/gpu.md and docs/step.svg are what the planner says today, and its predictions are within their bounds.
set -uo pipefail
cd "$(dirname "$0")/../.."
: "${BUILD:=build}" "${PYTHON:=/usr/bin/python3}"
export BUILD
unset MAKEFLAGS MFLAGS MAKELEVEL
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
report() { # report NAME STATUS
    if [ "$2" -eq 0 ]; then echo "ok - $1"; else echo "not ok - $1"; sed 's/^/# /' "$tmp/out"; fi
}
{ make --no-print-directory "$BUILD/tests/metric-reference" >"$tmp/make" && "$BUILD/tests/metric-reference" >"$tmp/metrics.md" && diff "$tmp/metrics.md" docs/metrics.md; } >"$tmp/out" 2>&1
report "docs/metrics.md is current (make docs)" $?
"$PYTHON" tests/docs/published.py "$BUILD/bin/titan-worker" recipes --check docs/published.md >"$tmp/out" 2>&1
report "docs/published.md is current and within bounds" $?
"$PYTHON" tests/docs/gpu_operations.py "$BUILD/bin/titan-worker" --check >"$tmp/out" 2>&1
report "docs/gpu.md has the operations of the tree (make docs)" $?
{
    sed '/^| `EMBED` /d' docs/gpu.md >"$tmp/new.md" && sed '/^| `EMBED` /s/H200/H100/' docs/gpu.md >"$tmp/old.md"
    "$PYTHON" tests/docs/gpu_operations.py "$BUILD/bin/titan-worker" --check "$tmp/new.md" &&
        ! "$PYTHON" tests/docs/gpu_operations.py "$BUILD/bin/titan-worker" --check "$tmp/old.md"
} >"$tmp/out" 2>&1
report "an operation may wait for its row in docs/gpu.md, a row is current" $?
{ make --no-print-directory step-picture OUT="$tmp/step.svg" && cmp "$tmp/step.svg" docs/step.svg; } >"$tmp/out" 2>&1
report "docs/step.svg is current (make docs)" $?
{
    make --no-print-directory compdb && "$PYTHON" - "$BUILD/compile_commands.json" <<'END'
import json, sys
made = {c["file"]: c for c in json.load(open(sys.argv[1]))}
assert "-std=gnu17" in made["worker/train.c"]["command"].split(), made["worker/train.c"]
assert '-DTITAN_FDS=' in made["proto/rpc/services.c"]["command"] and "tests/unit/base/test_vec.c" in made
END
} >"$tmp/out" 2>&1
report "make compdb has programs and tests" $?
