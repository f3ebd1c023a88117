#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The CUDA plug-in compiles, links and loads where there is a toolkit; where there is no driver, that is one clear line.
# For one architecture, in a folder of its own: the other tests must not find the plug-in. `make test-slow` runs it.
. "$(dirname "$0")/begin.sh"
needs "the CUDA compiler's host code is not built with sanitizers" "$CUDA/bin/nvcc:no CUDA toolkit"

compile
built=$?
dir=$compiled
[ $built -eq 0 ] || tail -n 30 "$dir/build.log"
check "the plug-in and the probe compile and link, warnings as errors" [ $built -eq 0 ]
[ $built -eq 0 ] || exit 1
# Each kernel of these names, for both types, both loads and stores 16 bytes at a time where its rows allow it, and those
# that mostly read load so. A kernel that is compiled for other rows apart (false, Lb0E) is not looked at.
wide='add|add_bias|scale|softcap|softcap_dgrad|rope|rmsnorm|add_rmsnorm|rmsnorm_dgrad|swiglu|swiglu_dgrad|clamped_swiglu|clamped_swiglu_dgrad|add_bias_grouped|loss|loss_finish|embed|blocks|blocks_across|codes_across|row_values'
read='rmsnorm_dgain|bias_wgrad|bias_wgrad_grouped|loss_stats|embed_wgrad|all_largest|column_largest|codes|line_codes'
awk -v names="[0-9]($wide|$read)I[^0-9]*[0-9]*(bf16|f)" -v reads="[0-9]($read)I" '
    /\.entry/ { kernel = $0 ~ names && $0 !~ /Lb0E/ ? $0 : ""; n += kernel != "" } kernel ~ reads { stores[kernel] = 1 }
    kernel && /ld\.global.*\.v4/ { loads[kernel] = 1 } kernel && /st\.global.*\.v4/ { stores[kernel] = 1 }
    END { for (k in loads) both += k in stores; print both + 0, "of", n; exit !(n == 70 && both == n) }' \
    "$dir"/keep/{bias,elementwise,embed,rmsnorm,rope,swiglu,loss,float8,mxfp8}*.ptx >"$own/wide"
wide=$?
check "kernels that move memory take 16 bytes at a time ($(cat "$own/wide"))" [ $wide -eq 0 ]
"${PYTHON:-python3}" tests/cuda/kernel_code.py "$dir"/keep/{bias,elementwise,embed,rmsnorm,rope,swiglu,loss,optim,float8,mxfp8,permute}*.cubin >"$own/kernel_code"
code=$?
grep BAD "$own/kernel_code" | sed 's/^/# /'
check "and have no more instructions than they had, in the machine code ($(tail -n 1 "$own/kernel_code"))" [ $code -eq 0 ]
cat "$dir"/obj/cuda/worker/device/cuda/*.cu.o.log >"$own/said"
check "no kernel spills registers, but hopper_gradient some addresses" awk '/Compiling entry function/ { most = /15hopper_gradientI/ ? 40 : 0 }
    /bytes spill/ { bad = bad || $5 > most || $9 > most; n++ } END { exit bad || !n }' "$own/said"
check "no products of tensor cores wait for each other where they need not" sh -c "! grep -E 'C75[0-9]{2}' '$own/said'"
"${PYTHON:-python3}" tests/cuda/machine_code.py "$dir"/keep/{attention,matmul_grouped}_hopper*.cubin >"$own/machine_code"
code=$?
[ $code -eq 0 ] || cat "$own/machine_code"
check "attention and grouped products on Hopper have as many products of tensor cores as their tiles need, and no sums in memory" [ $code -eq 0 ]

"$dir/gpu/check_ops" >"$own/ops.log" 2>"$own/ops.err"
rc=$?
if [ $rc -eq 2 ]; then
    sed 's/^/# /' "$own/ops.err"
    check "without a driver the plug-in loads and says so" grep -q "NVIDIA" "$own/ops.err"
    check "in one line" [ "$(wc -l <"$own/ops.err")" -eq 1 ]
else
    check "every operation agrees with the reference on this GPU" [ $rc -eq 0 ]
fi

if [ $rc -ne 2 ]; then
    skip "this machine has a GPU"
elif [ ! -x "$BUILD/bin/titan-worker" ]; then
    skip "no worker in $BUILD/bin"
else
    TITAN_PLUGIN_DIR=$dir/lib/titan "$BUILD/bin/titan-worker" run recipes/tiny.toml --device cuda --dir "$own/run" --set training.dataset_path=base \
        >"$own/worker.out" 2>"$own/worker.err" </dev/null
    code=$?
    sed 's/^/# /' "$own/worker.err"
    check "a run with device = \"cuda\" ends with exit code 2 (got $code)" [ $code -eq 2 ]
    check "and one line that names the driver" sh -c "[ \$(wc -l <'$own/worker.err') -eq 1 ] && grep -q NVIDIA '$own/worker.err'"
fi

# A plug-in that wants an NCCL which is nowhere.
if [ -x "$BUILD/bin/titan-worker" ]; then
    mkdir -p "$own/no-nccl"
    LC_ALL=C sed 's/libnccl\.so\.2/libnone.so.2/g' "$dir/lib/titan/libtitan-cuda.so" >"$own/no-nccl/libtitan-cuda.so"
    TITAN_PLUGIN_DIR=$own/no-nccl "$BUILD/bin/titan-worker" run recipes/tiny.toml --device cuda --dir "$own/run" --set training.dataset_path=base \
        >"$own/nccl.out" 2>"$own/nccl.err" </dev/null
    code=$?
    sed 's/^/# /' "$own/nccl.err"
    check "without NCCL a run ends with exit code 2 (got $code)" [ $code -eq 2 ]
    check "and one line that names the library" sh -c "[ \$(wc -l <'$own/nccl.err') -eq 1 ] && grep -q 'libnone.so.2: cannot open' '$own/nccl.err'"
fi
echo "1..$n"
exit $bad
