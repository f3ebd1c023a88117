#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A machine on which CUDA cannot be used: one line says why and the worker ends with code 2. And a GPU without float8, on which a run
# computes without it. On the stand-ins of this folder. `make test-slow` runs it.
. "$(dirname "$0")/begin.sh"
emulate

start() { # start FOLDER [--set ...]: what it says is in FOLDER/log
    local folder=$own/$1
    shift
    rm -rf "$folder" && mkdir -p "$folder"
    "${worker:-$own/titan-worker}" run recipes/tiny.toml --device cuda --dir "$folder" --set training.dataset_path=base --set training.steps=3 \
        --set training.seq_len=32 --set training.local_batch_size=1 --set training.global_batch_size=1 --set checkpoint.enable=false "$@" >"$folder/log" 2>&1
}
refused() { # refused WHAT WORDS NAME=VALUE...: the environment in which a run is
    local what=$1 words=$2 code
    shift 2
    (export "$@" && start refused)
    code=$?
    sed "s/^/# exit code $code: /" "$own/refused/log"
    check "$what" [ "$code $(wc -l <"$own/refused/log") $(grep -cF "$words" "$own/refused/log")" = "2 1 1" ]
}
refused "a driver that is too old" "the NVIDIA driver is older than the CUDA runtime of this plug-in: update the driver" TITAN_FAKE_COUNT_ERROR=35
refused "no GPU" "no NVIDIA GPU is visible (is CUDA_VISIBLE_DEVICES set?)" TITAN_FAKE_COUNT_ERROR=100
refused "no GPU that is visible" "no NVIDIA GPU is visible (is CUDA_VISIBLE_DEVICES set?)" TITAN_FAKE_COUNT_ERROR=0
refused "another error of the driver" "emulated error" TITAN_FAKE_COUNT_ERROR=999
refused "a GPU that is too old" "emulated GPU has compute capability 7.0; 8.0 or later is needed (bf16)" TITAN_FAKE_MAJOR=7
refused "an NCCL that is too old" "NCCL 2.27.7 is older than" TITAN_FAKE_NCCL=22707

# With an older library than it was built with, a plug-in lacks a function: it is loaded, and says itself what is wrong.
mkdir -p "$own/lacking"
cat >"$own/lacking/plugin.c" <<'C'
#include "worker/device/device.h"
int lacking(void);
static const char *unusable(void) { return "the library is too old"; }
static titan_status never(const struct device_options *o, struct device **ret, struct titan_error *err)
{
    (void)o, (void)ret, (void)err;
    return (titan_status)lacking();
}
static const struct device_ops ops = {.open = never};
static const struct device_plugin plugin = {.abi = TITAN_DEVICE_ABI, .unusable = unusable, .ops = &ops};
const struct device_plugin *titan_device_plugin(void);
const struct device_plugin *titan_device_plugin(void) { return &plugin; }
C
gcc -shared -fPIC -Wl,-z,lazy -I. -o "$own/lacking/libtitan-cuda.so" "$own/lacking/plugin.c"
cp "$BUILD/bin/titan-worker" "$own/lacking/"
refused "a library that lacks a function" "the library is too old" worker="$own/lacking/titan-worker"

losses() { sed 's/.*"loss":\([^,]*\),.*/\1/' "$own/$1/metrics.jsonl"; }
float8="--set model.converters=float8"
export TITAN_FAKE_MAJOR=8
start plain && start eight $float8
[ $? -eq 0 ] || tail -n 5 "$own/eight/log"
check "float8 on a GPU without it: said once" [ "$(grep -c "this device has no products in float8, the linear layers compute without it" "$own/eight/log")" -eq 1 ]
check "and the losses are those without it" [ "$(losses plain | wc -l)" -eq 3 -a "$(losses plain)" = "$(losses eight)" ]
export TITAN_FAKE_MAJOR=9
start nine $float8
check "a GPU that has it says nothing, and has others" [ $? -eq 0 -a "$(grep -c "no products in float8" "$own/nine/log")" -eq 0 -a "$(losses nine)" != "$(losses eight)" ]
echo "1..$n"
exit $bad
