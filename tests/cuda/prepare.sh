#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the scripts of this folder have in common, built before they run side by side and against time (`make cuda-tests`).
. "$(dirname "$0")/begin.sh"
emulate
build "$BUILD"/cuda-emulated/{probe,check_hopper}
[ ! -e "$CUDNN/include/cudnn.h" ] || build cudnn-programs
[ ! -x "$CUDA/bin/nvcc" ] || { build gpu-probe CUDA_ARCH=90 && compile || tail -n 30 "$compiled/build.log"; }
