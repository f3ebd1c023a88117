#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The protocol's models hold, of three agents and of a step, and each rule that is left out is found (TAP around run.sh).
cd "$(dirname "$0")" || exit 1
echo "1..1"
if ! command -v spin >/dev/null; then
    echo "ok 1 - membership # SKIP spin is not installed"
elif out=$(./run.sh quick 2>&1); then
    echo "ok 1 - membership: $(tail -n 1 <<<"$out")"
else
    echo "not ok 1 - membership"
    sed 's/^/# /' <<<"$out"
    exit 1
fi
