#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# NCCL's windows and what its collectives may take, on the emulator: registered by both ranks, used, given back, also after a death;
# and refused. `make test-slow` runs it.
. "$(dirname "$0")/begin.sh"
emulate
. tests/gpu/meshes.sh
brief=$(set_keys model.n_layers=1 training.seq_len=16 training.global_batch_size=2 training.local_batch_size=1 lr_scheduler.warmup_steps=2)
# A rank is killed while the other one's segments run: what is launched runs to its end, the epoch is over at once. Its windows
# are given back: NCCL 2.28 would keep a step's memory that an abort finds registered.
mkdir "$own/killed"
TITAN_NCCL_SHARED_GPU=1 TITAN_FAKE_LAUNCH_US=500 TITAN_FAKE_COUNTS=$own/killed.counts "$own/titan-worker" run recipes/tiny.toml -n 2 --device cuda \
    --dir "$own/killed" $brief $(set_keys training.dataset_path=base training.steps=10000 checkpoint.enable=false \
        compile.graph_segments=true nccl.windows=true metrics.log_freq=1) >"$own/killed/log" 2>&1 &
run=$!
tail -n +1 -F --pid=$run "$own/killed/metrics.jsonl" 2>/dev/null | sed -n 3q # three steps
read -r -a ranks <"/proc/$run/task/$run/children"
kill -KILL "${ranks[1]}"
wait $run
code=$?
[ $code -ne 0 ] || tail -n 5 "$own/killed/log"
check "a rank is killed while segments run: the run is over (exit code $code)" [ $code -ne 0 ]
# What the other one sees first: that it is gone, or a collective that it has left.
check "for that reason" grep -qE 'epoch is over .*reason="[^"]*(rank [01] has ended or failed|peer vanished)' "$own/killed/log"

# Both ranks register what communicators of collectives there are, their sums run within it, and where it is refused the run goes on without.
for windows in off:false: on:true: memory:true:memory register:true:register none:true:none one:true:one; do
    IFS=: read -r name wanted without <<<"$windows"
    TITAN_FAKE_NO_WINDOWS=$without TITAN_FAKE_COUNTS=$own/$name.counts train "$name" 2 cuda \
        $brief $(set_keys nccl.windows="$wanted" nccl.max_ctas=8 nccl.cta_policy=efficiency) || bad=1
done
given_back() { # given_back NAME: all that were registered, and some were
    [ "$(counted "$1" windows)" -gt 0 ] && [ "$(counted "$1" windows)" -eq "$(counted "$1" windows_closed)" ] || shown "$1"
}
check "windows are registered and given back" given_back on
check "and used" [ "$(counted off windows)" -eq 0 -a "$(counted on within_windows)" -gt 0 ]
check "where one rank is refused a window the other one gives its own back" given_back one
check "uses none" [ "$(counted one within_windows)" -eq 0 ]
check "and says why" grep -q 'another rank was refused one' "$own/one/log"
check "windows are given back after a death, too" given_back killed
# What NCCL cannot go on after: the run's own line, no broken device's.
mkdir "$own/later"
TITAN_NCCL_SHARED_GPU=1 TITAN_FAKE_NO_WINDOWS=later "$own/titan-worker" run recipes/tiny.toml -n 2 --device cuda --dir "$own/later" \
    $brief $(set_keys training.dataset_path=base training.steps=3 checkpoint.enable=false nccl.windows=true) >"$own/later/log" 2>&1
code=$?
[ $code -eq 2 ] || tail -n 5 "$own/later/log"
check "a communicator that is lost at a window ends the run with exit code 2 (got $code)" [ $code -eq 2 ]
check "in one line" [ "$(grep -c 'NCCL registers no window: ' "$own/later/log")" -eq 1 ]
check "which says what to do" grep -q 'set nccl.windows = false' "$own/later/log"
for name in on memory register none one; do
    check "windows $name: the losses of a run without" same_losses 0 off $name
    check "and each rank says once what it lacks" [ "$(grep -c 'transfers go without windows' "$own/$name/log")" -eq "$([ $name = on ] && echo 0 || echo 2)" ]
done
# Two ranks of the communicators of gathers and of sums; 1 is NCCL_CTA_POLICY_EFFICIENCY.
check "collectives beside products take the thread blocks that they may" \
    [ "$(counted off comms_with_ctas)-$(counted off comms_with_policy)-$(sort -u "$own/off.counts" | grep -cE '^(most_ctas 8|policy 1)$')" = 4-4-2 ]
echo "1..$n"
exit $bad
