#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# First contact with a GPU: what is there, whether everything builds and is right, how queues, copies and NCCL behave, and the
# card's limits, on one screen. Each line: name, value, what was expected before (tests/gpu/expected.tsv), OK or ODD, or why it
# was skipped. In 150 s on 16 cores; tests/gpu/run.sh has the long checks.
#
#   OUT=folder tests/gpu/first.sh    summary.json, bench.json and logs.tar.gz in OUT (build/gpu-results/first/out), written again after
#                                    every part
#   PARTS=REGEX LIMIT=150 QUICK=1 CUDA= NCCL= CUBLAS= CUDNN=    as for run.sh
#
# Exit code 0: every line is OK; 1: a line is ODD; 2: PARTS matches nothing; 77: none is ODD, and there is no GPU, so most was skipped.
set -uo pipefail
cd "$(dirname "$0")/../.."
script=first LIMIT=${LIMIT:-150}
. tests/gpu/parts.sh

# figure NAME VALUE: a line of the screen. A value that is not known is no line.
figure() { [ -z "$2" ] || echo "figure $1 $2"; }
version_in() { # version_in HEADER MACRO
    [ ! -e "$1" ] || awk -v macro="$2" '$1 == "#define" && $2 == macro { print $3; exit }' "$1"
}
inventory() {
    local header
    figure nvcc "$("$CUDA/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
    figure nccl "$(version_in "$NCCL/include/nccl.h" NCCL_VERSION_CODE)"
    header=$CUDNN/include/cudnn_version.h
    if [ -e "$header" ]; then
        figure cudnn "$(version_in "$header" CUDNN_MAJOR).$(version_in "$header" CUDNN_MINOR).$(version_in "$header" CUDNN_PATCHLEVEL)"
    else
        figure cudnn none
    fi
    figure cpus "$(nproc)"
    figure ram_gib "$(awk '/^MemAvailable/ { printf "%.0f", $2 / 1048576 }' /proc/meminfo)"
    figure memlock "$(ulimit -l)"
    figure loopback "$(cat /sys/class/net/lo/operstate 2>/dev/null)"
    figure mps "$(command -v nvidia-cuda-mps-control >/dev/null && echo yes || echo no)"
    figure sanitizer "$([ -n "$sanitizer" ] && echo yes || echo no)"
    figure compiler "$(gcc -dumpfullversion)"
}
card() {
    local names=(gpu driver free_mib power_limit_w sm_mhz_max memory_mhz_max ecc_errors) values i
    IFS=, read -r -a values < <(nvidia-smi --query-gpu=name,driver_version,memory.free,power.limit,clocks.max.sm,clocks.max.memory,ecc.errors.uncorrected.volatile.total \
        --format=csv,noheader,nounits)
    [ ${#values[@]} -eq ${#names[@]} ] || { nvidia-smi; return 1; }
    for i in "${!names[@]}"; do figure "${names[i]}" "${values[i]# }"; done
    nvidia-smi -q || true
}
# The card's limits, on random numbers, with its power and clock meanwhile.
ceilings() {
    local dims="4096 1 32 8 14336 128256 1 8192"
    [ -z "${QUICK:-}" ] || dims="64 1 2 1 96 512 1 16"
    watch_card ceilings $B/gpu/bench_ops cuda 0 bf16 $dims ceilings >"$WORK/ceilings.json" || return
    python3 - "$WORK/ceilings.json" "$WORK/ceilings.csv" <<'PY'
import json
import sys
found = json.load(open(sys.argv[1]))["ceilings"]
for name, value in found.items():
    print(f"figure {name} {value:.5g}")
print(f"figure random_of_zeros {found['matmul_gflops'] / found['matmul_zeros_gflops']:.3f}")
rows = [[float(field) for field in line.split(",")] for line in open(sys.argv[2]) if line.count(",") == 3 and "[" not in line]
busy = [row for row in rows if row[2] > 300] or rows
if busy:
    print(f"figure watts_most {max(row[2] for row in busy):.0f}\nfigure sm_mhz_least {min(row[0] for row in busy):.0f}")
PY
}
export -f figure version_in inventory card ceilings

python3 tests/gpu/text.py "$WORK/text"
worker=bin/titan-worker plugin=lib/titan/libtitan-cuda.so samples=${QUICK:+reduced} quick=${QUICK:+quick}
part inventory 20 "" bash -c inventory
part card 20 gpu bash -c card
part build 90 "gpu toolkit" bash -c build_all
part operations 30 "gpu $plugin gpu/check_ops" $B/gpu/check_ops
part queues 25 "gpu $plugin gpu/probe" $B/gpu/probe $quick
part nccl 25 "gpu $plugin gpu/check_comm" $B/gpu/check_comm probe $quick
part samples 30 "gpu $plugin gpu/check_ops" $B/gpu/check_ops samples $samples
part train-fp32 20 "gpu $plugin $worker" bash -c train_fp32
part train-bf16 20 "gpu $plugin $worker" bash -c train_bf16
part ceilings 30 "gpu $plugin gpu/bench_ops" bash -c ceilings
part 8b-4-layers 60 "gpu $plugin $worker" bash -c train_8b_4_layers
mps_start
export mps
part nccl-mps 20 "gpu mps $plugin gpu/check_comm" bash -c "with_mps $B/gpu/check_comm probe-alive $quick"

[ $((passed + failed + skipped)) -gt 0 ] || { echo "tests/gpu/first.sh: PARTS='$PARTS' matches no part" >&2; exit 2; }
echo "# first contact: $(git log -1 --format='commit %h' 2>/dev/null || echo 'no commit'), $(date -u +%FT%TZ), $SECONDS s"
python3 tests/gpu/screen.py "$WORK" "$EXPECTED"
odd=$?
awk -F '\t' '$6 == "" { line = line ", " $1 " " $5 } END { print "# seconds: " substr(line, 3) }' "$WORK/parts.tsv"
python3 tests/gpu/results.py "$WORK" "$OUT"
[ $odd -eq 0 ] || exit 1
[ -z "$no_gpu" ] || exit 77
