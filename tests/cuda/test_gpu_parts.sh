#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Parts of tests/gpu/first.sh, run.sh and bench.sh on the stand-ins of this folder, with a card's tool that answers: their figures are
# no GPU's, their paths are. `make test-slow` runs it.
. "$(dirname "$0")/begin.sh"
needs "$EMULATED" "$CUDA/bin/nvcc:no CUDA toolkit"
if nvidia-smi -L >/dev/null 2>&1; then
    skip "this machine has a GPU: run tests/gpu/first.sh"
    exit 0
fi
files() { (cd "$1" && ls -A | sort | tr '\n' ' '); }
build "$BUILD/cuda-emulated/libtitan-cuda.so" "$BUILD/cuda-emulated/probe" "$BUILD/bin/titan-worker" gpu-programs
build gpu-probe CUDA_ARCH=90
"$BUILD/gpu/probe" >"$own/probe.out" 2>"$own/probe.err"
check "the probe without a driver: exit code 2 and one line" [ "$?-$(wc -l <"$own/probe.err")" = 2-1 ]
stand=$own/stand
export PATIENCE=100 LIMIT=100000 # limits are for a GPU
mkdir -p "$stand/gpu" "$stand/bin" "$stand/lib/titan" "$own/tools"
cp "$BUILD/bin/titan-worker" "$stand/bin/"
cp "$BUILD"/gpu/{check_ops,check_comm,bench_ops} "$BUILD/cuda-emulated/probe" "$stand/gpu/"
cp "$BUILD"/cuda-emulated/lib{titan-cuda.so,cuda.so.1} "$stand/lib/titan/"
ln -s ../lib/titan/libcuda.so.1 "$stand/gpu/"
cat >"$own/tools/nvidia-smi" <<'SH'
#!/bin/sh
case $* in
*compute_cap*) echo 9.0 ;;
*memory.total*) echo 81559 ;;
*driver_version*) echo "NVIDIA H200, 580.1, 140000, 700.00, 1980, 3201, 0" ;;
*-lms*) while echo "1500, 3201, 650.5, 60"; do sleep 0.05; done ;; # timing: the tool tells so often
*) echo "an answer" ;;
esac
SH
printf '#!/bin/sh\ncat >/dev/null\necho "no MPS on this card" >&2\nexit 1\n' >"$own/tools/nvidia-cuda-mps-control"
chmod +x "$own"/tools/*
PATH=$own/tools:$PATH OUT=$own/emulated B=$stand QUICK=1 PARTS='inventory|card|queues|nccl|samples|ceilings' tests/gpu/first.sh >"$own/emulated.log" 2>&1
code=$?
sed 's/^/# /' "$own/emulated.log"
shows() { # shows NAME PATTERN: the screen's line of that figure
    grep -E "^$1 " "$own/emulated.log" | grep -qE "$2"
}
check "on the stand-ins: exit code 1, as some figures are no GPU's (got $code)" [ $code -eq 1 ]
check "the card's answers are OK" shows "card gpu" "NVIDIA H200 .* OK$"
check "a figure out of its bounds is ODD" shows "ceilings copy_gbytes_per_s" "[0-9] GB/s .*ODD$"
check "the sampled checks pass" shows "samples failed" " 0 .*OK$"
check "messages cross, a death is noticed, no update follows it" shows "nccl failed" " 0 .*OK$"
check "the update was skipped" shows "nccl update_skipped" " 1 .*OK$"
check "each figure of the queues is there" [ "$(grep -c '^queues .*no figure' "$own/emulated.log")" -eq 0 ]
check "a part's lack is named" shows "nccl-mps crossing_ms" "skipped: no MPS: no MPS on this card$"
check "what PARTS leaves out is named" shows "operations failed" "skipped: not chosen by PARTS$"
check "the three files again" [ "$(files "$own/emulated")" = "bench.json logs.tar.gz summary.json " ]
"${PYTHON:-python3}" - "$own/emulated" <<'PY'
import json
import sys
import tarfile
summary, bench = (json.load(open(f"{sys.argv[1]}/{name}.json")) for name in ("summary", "bench"))
assert summary["parts"]["queues"]["exit"] == 0 and any(f["name"] == "depth" and f["value"] for f in summary["figures"]), summary
assert bench["ceilings"]["clock"] == "events, median" and bench["ceilings"]["cache_bytes"] == 65536, bench
assert bench["card"]["ceilings"] == {"sm_mhz": 1500.0, "memory_mhz": 3201.0, "watts": 650.5, "celsius": 60.0}, bench["card"]
assert {"queues.log", "nccl.log", "parts.tsv"} <= set(tarfile.open(f"{sys.argv[1]}/logs.tar.gz").getnames())
PY
check "which hold the figures, the card's state and the logs" [ $? -eq 0 ]
printf '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift 2; done\nexec "$@"\n' >"$own/tools/compute-sanitizer"
chmod +x "$own/tools/compute-sanitizer"
PATH=$own/tools:$PATH OUT=$own/long B=$stand QUICK=1 PARTS='^(machine|samples|sanitizer-racecheck|communicator-2|model|mps|time-trace)$' tests/gpu/run.sh >"$own/long.log" 2>&1
code=$?
sed 's/^/# /' "$own/long.log"
check "run.sh on the stand-ins: a part that lacks its program fails, exit code 1 (got $code)" [ $code -eq 1 ]
check "that part alone" [ "$(grep -E ' passed +[1-9][0-9]* failed' "$own/long.log" | awk '{ print $1 }')" = model ]
check "its reason is named" grep -q "not ok - $stand/gpu/check_model is not built" "$own/long.log"
check "the others pass" [ "$(grep -cE '^(machine|samples|sanitizer-racecheck|communicator-2|time-trace) .* passed   0 failed' "$own/long.log")" -eq 5 ]
check "what needs MPS says that it does not start" grep -qE '^mps +skipped: no MPS: no MPS on this card$' "$own/long.log"
check "three files" [ "$(files "$own/long")" = "bench.json logs.tar.gz summary.json " ]
# A card called H200, small models, and a Python without packages.
printf '#!/bin/sh\nexec %s -S "$@"\n' "$(command -v "${PYTHON:-/usr/bin/python3}")" >"$own/tools/python3"
chmod +x "$own/tools/python3"
export TITAN_CUDNN=/nonexistent/libcudnn.so.9 TITAN_FAKE_NAME="NVIDIA H200"
PATH=$own/tools:$PATH OUT=$own/quick B=$stand QUICK=1 PARTS='^(card|8b|costs|checkpoint|peers)$' tests/gpu/bench.sh >"$own/emulated.log" 2>&1
code=$?
sed 's/^/# /' "$own/emulated.log"
check "bench.sh on the stand-ins: exit code 1, as its figures are no GPU's (got $code)" [ $code -eq 1 ]
for part in 8b costs checkpoint; do
    check "its part $part passes" shows "$part failed" " 0 .*OK$"
done
check "each figure of a run, of its plan and of measured costs is there" [ "$(grep -cE '^(8b|costs) .*no figure' "$own/emulated.log")" -eq 0 ]
check "the planner has a measured cost for every operation" shows "costs not_measured" " 0 .*OK$"
check "a checkpoint was written, and what it held up is counted" [ "$(grep -cE '^checkpoint (written_s|first_stall_ms|second_stall_ms) .*no figure' "$own/emulated.log")" -eq 0 ]
check "PyTorch is missed by name" shows "peers matmul_gflops" "skipped: no PyTorch in python3$"
check "three files" [ "$(files "$own/quick")" = "bench.json logs.tar.gz summary.json " ]
PATH=$own/tools:$PATH OUT=$own/small B=$stand PARTS='^8b$' tests/gpu/bench.sh >"$own/emulated.log" 2>&1
check "a card that is too small skips the whole model" shows "8b step_ms" "skipped: the card has 79 GiB, not 120$"
unset TITAN_FAKE_NAME
mkdir -p "$own/steps"
for step in 1 2 3 4 5 6 7; do
    took=100
    [ $step -ne 4 ] || took=350
    echo "{\"step\":$step,\"step_ms\":$took,\"time_ms\":5000,\"loss\":2,\"mfu\":0.5,\"tokens_per_second\":10,\"memory_bytes\":1073741824}"
done >"$own/steps/metrics.jsonl"
echo "info worker checkpoint written rank=0 step=3 bytes=2000000000 waited_ms=240.00 written_ms=1500.0 path=x" >"$own/steps/log"
check "the steps behind a snapshot are set against those before it" [ "$(tests/gpu/bench_figures.py checkpoint "$own/steps" 1000 3 |
    grep -E 'stall|written|gb|start_s' | tr '\n' ' ')" = "figure start_s 4 figure first_stall_ms 250 figure second_stall_ms 0 figure checkpoint_gb 2 figure written_s 1.5 " ]
"$stand/gpu/bench_ops" cuda 0 bf16 64 1 2 1 96 512 1 16 >"$own/bench.json" && "${PYTHON:-python3}" - "$own/bench.json" <<'PY'
import json
import sys
found = json.load(open(sys.argv[1]))
assert len(found["ops"]) == 54 and all(op["ms"] > 0 and op["floor_ms"] >= 0 for op in found["ops"]), found
assert sum(op["floor_ms"] for op in found["ops"]) > 0, found
assert [op["op"] for op in found["fused"]] == ["add_rmsnorm", "add_rmsnorm_dgrad", "loss"], found
PY
check "the benchmark has a floor beside each operation" [ $? -eq 0 ]
"$stand/gpu/bench_ops" cuda 0 bf16 64 1 2 1 96 512 1 16 float8 >"$own/float8.json" && "${PYTHON:-python3}" - "$own/float8.json" <<'PY'
import json
import sys
found = json.load(open(sys.argv[1]))["ops"]
assert [op["shape"] for op in found][:3] == ["16x192x64", "16x64x192", "192x64x16"] and len(found) == 7, found
assert all(op["ms"] > 0 and ("gflops" in op) == (i < 3) and ("gbytes_per_s" in op) == (i >= 3) for i, op in enumerate(found)), found
PY
check "and times products in float8 and their casts by name" [ $? -eq 0 ]
"$stand/gpu/bench_ops" cuda 0 bf16 64 1 2 1 96 512 1 16 int8 >"$own/int8.json" && "${PYTHON:-python3}" - "$own/int8.json" <<'PY'
import json
import sys
found = json.load(open(sys.argv[1]))["ops"]
assert [op["shape"] for op in found] == ["16x192x64", "16x64x192", "16x192x64", "16x64x192", "192x64x16", "16x192x64", "16x192x64"], found
assert all(op["ms"] > 0 and ("gbytes_per_s" if op["op"] in ("int8 keep", "int8 kept") else "gflops") in op for op in found), found
PY
check "and products in int8 beside those in the compute type, and a kept input's codes" [ $? -eq 0 ]
echo "1..$n"
exit $bad
