#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The whole product in one folder, for a GPU machine that has no packages: programs and the libraries they need beside
# the C library, without the CPU plug-in. There, with the CUDA plug-in that run.sh builds, tests/gpu/elastic.py runs on it:
#
#   tests/gpu/bundle.sh FOLDER          here, after make
#   cp build/release-bare/lib/titan/libtitan-cuda.so FOLDER/lib/titan/
#   BUILD=FOLDER LD_LIBRARY_PATH=FOLDER/libs tests/gpu/elastic.py
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -eq 1 ] || { sed -n '3,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
BUILD=${BUILD:-build} to=$1
rm -rf "${to:?}/bin" "$to/lib" "$to/libs"
mkdir -p "$to/bin" "$to/lib/titan" "$to/libs"
cp "$BUILD"/bin/titand "$BUILD"/bin/titanctl "$BUILD"/bin/titan-worker "$to/bin/"
ldd "$to"/bin/* | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|resolv)\.so' | xargs -I{} cp -L {} "$to/libs/"
strip --strip-debug "$to"/bin/* "$to"/libs/*
du -sh "$to"
