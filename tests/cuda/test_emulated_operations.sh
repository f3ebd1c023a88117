#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every operation, the communicator and the model's gradients without a GPU: kernels on the emulator, the CUDA runtime, cuBLASLt
# and NCCL by the stand-ins of this folder. Needs the toolkit's headers. `make test-slow` runs it.
. "$(dirname "$0")/begin.sh"
emulate
# As a Blackwell, which has every operation that Hopper has.
TITAN_FAKE_MAJOR=10 TITAN_EMULATE_ORDER=up "$own/check_ops" >"$own/up.log" || bad=1
cat "$own/up.log"
TITAN_FAKE_MAJOR=10 TITAN_EMULATE_ORDER=down "$own/check_ops" >"$own/down.log" || bad=1
check "threads in the other order give the same results" cmp "$own/up.log" "$own/down.log"
for ranks in 2 4; do
    TITAN_FAKE_ENDS=1 OUT=$own "$own/check_comm" $ranks || bad=1
done
# The model's loss, logits and gradients against PyTorch.
TITAN_TEST_DEVICE=cuda TITAN_TEST_ONLY=tiny_fp32 "$own/check_model" >"$own/model.log" || bad=1
cat "$own/model.log"
check "one of its tests was run" grep -q '^ok' "$own/model.log"
# Updates of whole matrices against their references.
TITAN_TEST_DEVICE=cuda "$own/check_directions" >"$own/directions.log" || bad=1
cat "$own/directions.log"
# Parts of directions that replicas send each other.
TITAN_TEST_DEVICE=cuda "$own/check_parts" >"$own/parts.log" || bad=1
cat "$own/parts.log"
# Codecs of gradients against NumPy, and what they promise.
TITAN_TEST_DEVICE=cuda "$own/check_codecs" >"$own/codecs.log" || bad=1
cat "$own/codecs.log"
exit $bad
