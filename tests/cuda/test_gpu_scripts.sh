#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/gpu/first.sh, run.sh and bench.sh where there is no GPU: they end, name what they skip and leave three files. Their parts on
# the stand-ins of this folder: test_gpu_parts.sh.
. "$(dirname "$0")/begin.sh"
needs "$EMULATED" "$CUDA/bin/nvcc:no CUDA toolkit"
if nvidia-smi -L >/dev/null 2>&1; then
    skip "this machine has a GPU: run tests/gpu/first.sh"
    exit 0
fi
files() { (cd "$1" && ls -A | sort | tr '\n' ' '); }

# --- where the toolkit is ---

mkdir -p "$own/odd/bin" "$own/odd/include" "$own/links" "$own/wrapped" "$own/site/nvidia/nccl/include"
touch "$own/odd/include/cuda_runtime_api.h" "$own/site/nvidia/nccl/include/titan_only_here.h"
printf '#!/bin/sh\necho "#$ TOP=%s/bin/.." >&2\n' "$own/odd" >"$own/odd/bin/nvcc"
cp "$own/odd/bin/nvcc" "$own/wrapped/nvcc"
chmod +x "$own/odd/bin/nvcc" "$own/wrapped/nvcc"
ln -s ../odd/bin/nvcc "$own/links/nvcc"
found() { # found PATH: the toolkit, with this in front of PATH
    env -u CUDA -u NCCL -u CUBLAS -u CUDNN PATH="$1:$PATH" bash -c '. tests/gpu/toolkit.sh; echo "$CUDA"'
}
check "the toolkit is found where nvcc is" [ "$(found "$own/odd/bin")" = "$own/odd" ]
check "behind a link" [ "$(found "$own/links")" = "$own/odd" ]
check "and where a wrapper says" [ "$(found "$own/wrapped")" = "$own/odd" ]
check "a library is found in a Python package" [ "$(PYTHONPATH=$own/site bash -c '. tests/gpu/toolkit.sh; find_library titan_only_here.h')" = "$own/site/nvidia/nccl" ]
check "make takes the toolkit where nvcc is" grep -qF "$own/odd/bin/nvcc -std" <(env -u CUDA -u MAKEFLAGS PATH="$own/links:$PATH" make -n "$own/x/obj/cuda/tests/gpu/spin.cu.o" BUILD="$own/x" 2>&1)

make --no-print-directory cuda BUILD="$own/none" CUDA=/nonexistent >"$own/none.out" 2>"$own/none.err"
check "without a toolkit 'make cuda' says what is missing" grep -q "no CUDA toolkit: /nonexistent/bin/nvcc is missing" "$own/none.err"

# --- without a GPU ---

OUT=$own/first B=$own/none tests/gpu/first.sh >"$own/first.log" 2>&1
code=$?
[ $code -eq 77 ] || sed 's/^/# /' "$own/first.log"
check "first.sh without a GPU: exit code 77 (got $code)" [ $code -eq 77 ]
check "leaves three files" [ "$(files "$own/first")" = "bench.json logs.tar.gz summary.json " ]
check "says of each line what it is, or why it was skipped" awk -F '\t' -v log_file="$own/first.log" '
    BEGIN { while ((getline line < log_file) > 0) text = text line "\n" }
    !/^#/ && index(text, $1 " " $2 " ") == 0 { print "# not on the screen: " $1 " " $2; bad = 1 } END { exit bad }' tests/gpu/expected.tsv
check "and nothing is ODD" grep -qE '^[1-9][0-9]* OK, 0 ODD, [1-9][0-9]* skipped$' "$own/first.log"
check "the reason is the GPU" grep -q 'skipped: no GPU: neither nvidia-smi nor /dev/nvidia0 is there' "$own/first.log"
OUT=$own/run B=$own/none tests/gpu/run.sh >"$own/run.log" 2>&1
code=$?
check "run.sh without a GPU: exit code 77 (got $code)" [ $code -eq 77 ]
check "leaves three files" [ "$(files "$own/run")" = "bench.json logs.tar.gz summary.json " ]
check "says of each part why it was skipped" [ "$(grep -c ' skipped: no GPU' "$own/run.log")" -eq "$(grep -c 'skipped' "$own/run.log" | awk '{ print $1 - 1 }')" ]
PARTS=unrun OUT=$own/run B=$own/none tests/gpu/run.sh >"$own/unrun.log" 2>&1
named=$(tr '\n' ' ' <tests/gpu/run.sh | grep -o "unrun='[^']*'" | tr -d "'" | sed 's/^unrun=//' | xargs -n 1)
check "PARTS=unrun is the parts of its list ($(wc -l <<<"$named"))" [ "$(sort <<<"$named")" = "$(awk '/ skipped: / { print $1 }' "$own/unrun.log" | sort)" ]
OUT=$own/bench B=$own/none tests/gpu/bench.sh >"$own/bench.log" 2>&1
code=$?
check "bench.sh without a GPU: exit code 77 (got $code)" [ $code -eq 77 ]
check "leaves three files" [ "$(files "$own/bench")" = "bench.json logs.tar.gz summary.json " ]
check "says of each line why it was skipped" [ "$(grep -c ' skipped: no GPU' "$own/bench.log")" -eq "$(grep -cv '^#' tests/gpu/expected_bench.tsv)" ]
PARTS=nothing tests/gpu/run.sh >/dev/null 2>&1
check "PARTS that match nothing: exit code 2" [ $? -eq 2 ]
echo "1..$n"
exit $bad
