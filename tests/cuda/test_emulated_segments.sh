#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ways of a product, segments of a step as CUDA graphs and times taken by the device, on the emulator: the stand-ins count.
# `make test-slow` runs it.
. "$(dirname "$0")/begin.sh"
emulate
. tests/gpu/meshes.sh
# Ways of a product: the second of three is the fastest. Each product is timed once, by one rank of two, and both take
# what that one has chosen; where a step is to repeat none is timed.
brief=$(set_keys model.n_layers=1 training.seq_len=16 training.global_batch_size=2 training.local_batch_size=1)
for ways in first:1:true fastest:1:false shared:2:false; do
    IFS=: read -r name ranks deterministic <<<"$ways"
    TITAN_FAKE_ALGORITHMS=300,100,200 TITAN_FAKE_COUNTS=$own/$name.counts train "$name" "$ranks" cuda $brief $(set_keys numerics.deterministic=$deterministic) || bad=1
done
check "a product takes cuBLASLt's first proposal where steps are to repeat, and none is timed" \
    [ "$(counted first proposals)-$(counted first products_1)" = 0-0 -a "$(counted first products_0)" -gt 0 ]
timed=$(sed -n 's/.*products timed .*products=\([0-9]*\) timed=\1$/\1/p' "$own/fastest/log")
timed_once() { # noted, four times timed; in steps the fastest alone
    [ "${timed:-0}" -gt 0 ] && [ "$(counted fastest proposals)" -eq "$timed" ] && [ "$(counted fastest products_0)" -eq $((5 * timed)) ] &&
        [ "$(counted fastest products_1)" -eq $(($(counted first products_0) + 4 * timed)) ] || shown fastest
}
check "with numerics.deterministic = false each of ${timed:-no} products is timed once, and steps take the fastest way" timed_once
timed=$(sed -n 's/.*products timed .*timed=//p' "$own/shared/log")
timed_by_one() { # each rank's steps are products_1; the warm-up before and what is noted are products_0, a few of each product
    [ "$(counted shared proposals)" -eq "${timed:--1}" ] && [ "$(counted shared products_0)" -le $((10 * timed)) ] &&
        [ "$(counted shared products_1)" -ge $((2 * 3 * timed)) ] || shown shared
}
check "one of two ranks times them, and both take what it has chosen" timed_by_one
check "with the losses of the first way, but for rounding" same_losses 1e-5 first shared

# Segments: the bits of single launches in far fewer of them, no more of them ahead of the device; and single launches
# where a graph cannot be captured, or made, which is said once.
brief="$brief $(set_keys lr_scheduler.warmup_steps=2)"
for graphs in off:false: on:true: uncaptured:true:end unmade:true:make; do
    IFS=: read -r name wanted without <<<"$graphs"
    TITAN_FAKE_NO_GRAPHS=$without TITAN_FAKE_COUNTS=$own/$name.counts train "$name" 1 cuda $brief $(set_keys compile.graph_segments="$wanted") || bad=1
done
fewer() {
    [ "$(counted off graphs)" -eq 0 ] && [ "$(counted on graphs)" -gt 0 ] &&
        [ "$(counted on enqueued)" -lt $(($(counted off enqueued) * 3 / 4)) ] &&
        [ "$(counted on most_ahead)" -le $(($(counted off most_ahead) + 64)) ] || { shown off; shown on; }
}
check "segments take fewer launches, with no more ahead of the device" fewer
for name in on uncaptured unmade; do
    check "segments $name: the losses of single launches, bit for bit" same_losses 0 off $name
    check "and it is said once if they are single ones" [ "$(grep -c 'launched one by one' "$own/$name/log")" -eq "$([ $name = on ] && echo 0 || echo 1)" ]
done

# A traced step, and one with measured waits: the device takes the times, the host is called no more often.
for times in untraced:false:1000 traced:true:1; do
    IFS=: read -r name wanted every <<<"$times"
    TITAN_FAKE_COUNTS=$own/$name.counts train "$name" 2 cuda $brief \
        $(set_keys metrics.log_freq="$every" profiling.enable_profiling="$wanted" profiling.profile_freq=3 profiling.profiler_warmup=1 profiling.profiler_active=2) || bad=1
done
calls=$(counted untraced host_calls)
check "times of a traced step are taken by the device ($calls calls of the host without)" [ "$calls" -gt 0 -a "$(counted traced host_calls)" -eq "$calls" ]
check "in the order of its streams" "${PYTHON:-python3}" tests/gpu/trace_gaps.py "$own/traced/profile_traces/iteration_3/rank1_trace.json"
echo "1..$n"
exit $bad
