#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Training on the CUDA plug-in without a GPU: the CPU's losses, the program of the plan, what the host waits for, and what ends a run.
# `make test-slow` runs it.
. "$(dirname "$0")/begin.sh"
emulate
. tests/gpu/meshes.sh
train cpu 1 cpu || bad=1
for ranks in 1 2; do
    train cuda$ranks $ranks cuda || bad=1
    check "training on $ranks emulated GPU ranks gives the CPU's losses" same_losses 1e-5 cpu cuda$ranks
done
mtp=$(set_keys model.name=deepseek_v3 model.mtp_layers=2)
train cpu-mtp 1 cpu $mtp && train cuda-mtp 2 cuda $mtp
check "modules of multi-token prediction on 2 emulated GPU ranks give the CPU's losses" same_losses 1e-5 cpu-mtp cuda-mtp
stable=$(set_keys optimizer.name=StableAdamW optimizer.stable_adamw.threshold=0.5)
train cpu-stable 1 cpu $stable && train cuda-stable 2 cuda $stable
check "StableAdamW on 2 emulated GPU ranks gives the CPU's losses" same_losses 1e-5 cpu-stable cuda-stable
static=$(set_keys model.float8=true float8.recipe_name=scalify float8.enable_fsdp_float8_all_gather=true)
train cpu-static 1 cpu $static && train cuda-static 2 cuda $static
check "float8 with static scales on 2 emulated GPU ranks gives the CPU's losses" same_losses 1e-4 cpu-static cuda-static
# MXFP8: a sum of a few tokens is no multiple of a block. Older cards refuse it.
mx=$(set_keys model.converters=quantize.linear.mx model.n_layers=2 training.seq_len=50 training.local_batch_size=1 training.global_batch_size=2)
train cpu-mx 1 cpu $mx && TITAN_FAKE_MAJOR=10 train cuda-mx 1 cuda $mx
check "training in MXFP8 on an emulated Blackwell gives the CPU's losses" same_losses 1e-4 cpu-mx cuda-mx
train hopper-mx 1 cuda $mx >"$own/hopper-mx.out"
refused() {
    [ "$(grep -c "has no products in MXFP8, they need compute capability 10.0 (Blackwell)" "$own/hopper-mx/log")" -eq 1 ] && [ ! -s "$own/hopper-mx/metrics.jsonl" ] && return
    cat "$own/hopper-mx/log"
    return 1
}
check "MXFP8 on a GPU before Blackwell is refused with one line" refused
# A plan that is made without the device is the program that runs there.
TITAN_FAKE_NAME="NVIDIA H100 80GB HBM3" train named 2 cuda || bad=1
planned=$("$BUILD/bin/titan-worker" plan recipes/tiny.toml -n 2 --device h100 --costs none \
    $(set_keys training.seq_len=32 training.global_batch_size=4 training.mixed_precision_param=float32 checkpoint.enable=false) | sed -n 's/^program .* hash //p')
check "a run on a GPU executes the program that its plan printed (${planned:-none})" grep -q " program=${planned:-none} " "$own/named/log"

# What would block the host where the agent takes it for a hang, or a revoke for longer than it may.
saving=$(set_keys checkpoint.enable=true checkpoint.interval=2 model.n_layers=16 training.local_batch_size=1 training.global_batch_size=1)
at_most() { # at_most NAME COUNT NUMBER: of one rank, which has told it
    local got
    got=$(awk -v name="$2" '$1 == name { print $2 }' "$own/$1.counts")
    [ "${got:-none}" != none ] && [ "$got" -le "$3" ] || shown "$1"
}
TITAN_FAKE_COUNTS=$own/pinned.counts TITAN_FAKE_LAUNCH_US=200 train pinned 1 cuda $saving || bad=1
check "the host stays a little ahead of the device" at_most pinned most_queued 300
check "copies are in pieces" at_most pinned most_copied 67108864
check "the state and the tokens go through pinned memory" at_most pinned most_pageable 65536
check "nothing waits for all streams" at_most pinned device_syncs 0
check "a checkpoint is copied straight into pinned memory" [ "$(counted pinned registered_bytes)" -ge 10000 ]
TITAN_FAKE_NO_REGISTER=1 TITAN_FAKE_COUNTS=$own/unpinned.counts train unpinned 1 cuda $saving || bad=1
check "memory that cannot be pinned is none that the device copies into" at_most unpinned registered_bytes 0
check "and a checkpoint goes through pinned buffers" at_most unpinned most_pageable 65536
written() { (cd "$own/$1" && find . -name '*.safetensors' | sort | xargs sha256sum); }
check "both ways write the same checkpoints" [ -n "$(written pinned)" -a "$(written pinned)" = "$(written unpinned)" ]

TITAN_FAKE_USED_MB=4095 train full 1 cuda >"$own/full.out"
check "too little free memory is refused with the numbers" \
    grep -q "emulated GPU, 0.00 of 4.00 GiB free when it was opened: .* needs .* GiB of device memory" "$own/full.out"
mkdir "$own/broken"
TITAN_FAKE_BREAK=600 "$own/titan-worker" run recipes/tiny.toml --device cuda --dir "$own/broken" \
    --set training.dataset_path=base --set training.steps=3 --set checkpoint.enable=false >"$own/broken/log" 2>&1
code=$?
lines=$(grep -c "cudaErrorEmulated" "$own/broken/log")
[ "$code-$lines" = 75-1 ] || cat "$own/broken/log"
check "a device that breaks ends the worker with exit code 75 and one line (got $code, $lines)" [ "$code-$lines" = 75-1 ]
echo "1..$n"
exit $bad
