#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What happens to the installed system; on both machines of run.py, as a unit. The first one is the coordinator's and tells
# the second one what to do through the folder /test. TAP lines go to /test/n1.log. After a power cut it goes on with the
# scenes of the stage that /test/stage names. ONLY='FUNCTION ...' (of run.py) plays these scenes and those they need.
export HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin
n=$(hostname) kind=$(cat /test/kind)

# --- the second machine: run what is asked for ------------------------------------------------------------------------
if [ "$n" != n1 ]; then
    cat /proc/sys/kernel/random/boot_id >/test/$n.boot
    while :; do
        for file in /test/$n.*.ask; do
            [ -e "$file" ] || continue
            base=${file%.ask}
            mv "$file" "$base.run"
            bash "$base.run" >"$base.out" 2>&1
            echo $? >"$base.rc.new"
            mv "$base.rc.new" "$base.rc"
        done
        sleep 0.3
    done
fi

# on n2 COMMAND...: its output; its exit status
asked=0
on() {
    local base
    asked=$((asked + 1))
    base=/test/$1.$BASHPID.$(date +%s%N).$asked
    shift
    printf '%s\n' "$*" >"$base.new"
    mv "$base.new" "$base.ask"
    wait_for 300 test -e "$base.rc" || return 99
    cat "$base.out"
    return "$(cat "$base.rc")"
}
both() {
    bash -c "$1" && on n2 "$1"
}
# wait_for SECONDS COMMAND...
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { echo "# waited in vain for: $*"; return 1; }
        sleep 0.3
    done
}
number=$(cat /test/number 2>/dev/null || echo 0)
result() { # STATUS NAME
    number=$((number + 1))
    echo $number >/test/number
    if [ "$1" -eq 77 ]; then
        echo "ok $number - $2 # SKIP $(cat /tmp/notes)"
        : >/tmp/notes
    elif [ "$1" -eq 0 ]; then
        echo "ok $number - $2"
    else
        echo "not ok $number - $2"
        [ ! -s /tmp/said ] || tail -n 30 /tmp/said | sed 's/^/# /'
        journalctl --no-pager -n 300 >"/test/journal-$number.txt" # beside n1.log
        on n2 'journalctl --no-pager -n 300' >"/test/journal-$number.n2.txt"
    fi
}
only=$(cat /test/only 2>/dev/null)
needed="boot_ok install_package configure broken_check submit_run"
# FUNCTION...: is one of them to be played?
wanted() {
    local word
    [ -n "$only" ] || return 0
    for word; do
        case " $needed $only " in *" $word "*) return 0 ;; esac
    done
    return 1
}
# scene NAME FUNCTION; its output is shown when it fails. "note" is shown always.
scene() {
    wanted "${@:2}" || return 0
    local begun=$SECONDS
    : >/tmp/said
    : >/tmp/notes
    "${@:2}" >/tmp/said 2>&1
    result $? "$1"
    [ ! -s /tmp/notes ] || sed 's/^/#   /' /tmp/notes
    echo "#   $((SECONDS - begun)) s"
}
note() { echo "$*" >>/tmp/notes; }
stage() {
    echo "$1" >/test/stage
    sync
}

field() { titanctl -o json status "$job" | sed -n "s/^ *\"$1\": *\"\\?\\([^\",]*\\).*/\\1/p" | head -n 1; }
step() { field step; }
workers() { titanctl -o json status "$job" | sed -n 's/^ *"world_size": *\([0-9]*\).*/\1/p' | head -n 1; }
state_is() { [ "$(field state)" = "$1" ]; }
workers_are() { [ "$(workers)" = "$1" ] && state_is RUNNING; }
step_above() { [ "$(step)" -gt "$1" ]; }
goes_on() { # it runs with both workers and trains 3 more steps
    wait_for 240 workers_are 2 || return 1
    local at
    at=$(step)
    wait_for 120 step_above $((at + 2))
}
pids() { pgrep -f 'titan-worker serve' | sort | tr '\n' ' '; }
no_worker() { [ "$(all_pids)" = " / " ]; }
all_pids() { echo "$(pids) / $(on n2 "pgrep -f 'titan-worker serve' | sort | tr '\n' ' '")"; }
as() { runuser -u "$1" -- titanctl "${@:2}"; }
nodes_ready() { [ "$(titanctl nodes | grep -cw ready)" = 2 ]; }
# Steps 1.. of the job's own metrics, each once: nothing was lost, nothing trained twice. (The coordinator's curve has no
# points of the time it was away.)
steps_whole() { # [FOLDER OF JOBS]
    sed -n 's/^{"step": *\([0-9]*\).*/\1/p' "${1:-/shared/titan}/$job/metrics.jsonl" >/tmp/steps
    awk '$1 != NR {print "step " $1 " at place " NR; bad = 1; exit} END {exit bad || NR == 0}' /tmp/steps
}

# --- scenes -----------------------------------------------------------------------------------------------------------

install_package() {
    both 'dpkg -i /test/titan.deb >/tmp/dpkg 2>&1; cat /tmp/dpkg; grep -q "systemctl enable --now" /tmp/dpkg && id titan' || return 1
    ! systemctl is-active titand titan-coordinator
}

# What the package's configuration files say without a change, as postinst's words have it; afterwards all of it is gone again.
as_shipped() {
    local job text=/srv/titan-text
    grep -q '^coordinator = "unix:/run/titan/agents.sock"' /etc/titan/titand.toml || return 1
    dpkg -V titan | grep /etc/titan && return 1
    mkdir -p $text && cp /usr/share/common-licenses/* $text || return 1
    titanctl admin check --fix && systemctl enable --now titan-coordinator titand || return 1
    one_ready() { [ "$(titanctl nodes | grep -cw ready)" = 1 ]; }
    wait_for 120 one_ready || { titanctl nodes; journalctl -u titan-coordinator -u titand | tail -n 30; return 1; }
    stat -c '%a %U %n' /run/titan/agents.sock | grep '^660 titan' || return 1
    local args=(/usr/share/titan/recipes/tiny.toml --set training.dataset_path=$text --set training.steps=20 --set elastic.max_workers=2
        --set training.global_batch_size=2 --set training.local_batch_size=1 --set checkpoint.interval=10 --set device.threads=1)
    titanctl submit "${args[@]}" 2>&1 | grep 'none as root' || return 1
    useradd dora && job=$(as dora submit "${args[@]}") || return 1
    timeout 300 titanctl wait "$job" || { titanctl status "$job"; titanctl events "$job" | tail; titanctl logs "$job" | tail -n 20; return 1; }
    [ "$(titanctl -o json status "$job" | sed -n 's/^ *"step": *\([0-9]*\).*/\1/p' | head -n 1)" = 20 ] || { titanctl status "$job"; return 1; }
    runuser -u dora -- ls -l "/var/lib/titan-jobs/$job/checkpoint/step-00000020" || return 1
    [ "$(stat -c %U "/var/lib/titan-jobs/$job/checkpoint/step-00000020")" = dora ] || return 1
    check_nodes && as dora rm "$job" && [ -z "$(ls /var/lib/titan-jobs)" ] || { titanctl admin check; ls -lR /var/lib/titan-jobs; return 1; }
    note "the agent came in by agents.sock, 20 steps of a user's own worker, admin check: $(titanctl admin check | grep -cw ok) ok"
    systemctl disable --now titand titan-coordinator.socket titan-coordinator titan-spawnd.socket titan-spawnd || return 1
    systemctl stop titan-workers.scope
    rm -rf /var/lib/titan/* /var/lib/titan-coordinator/* $text
}

# As docs/operations.md, "Several machines", has it. Times of detection are long: these machines stand still for a while when
# the host does something else.
configure() {
    local times="suspect_ms = 5000
confirm_ms = 3000
node_timeout_ms = 15000
reachable_ms = 20000
away_ms = 10000
hang_floor_ms = 10000"
    [ "$kind" = containers ] || times="suspect_ms = 20000
confirm_ms = 10000
node_timeout_ms = 60000
reachable_ms = 90000
away_ms = 40000
hang_floor_ms = 20000"
    mkdir -p /shared/text && zcat /usr/share/doc/titan/docs/*.md.gz >/shared/text/docs.txt 2>/dev/null
    cat /usr/share/doc/titan/docs/*.md >>/shared/text/docs.txt
    install -d -o titan -g titan /shared/titan
    titanctl pki init --address n1 --address 10.9.0.1 || return 1
    cat >/etc/titan/coordinator.toml <<END
[coordinator]
listen = ["0.0.0.0:7070"]
[storage]
jobs_dir = "/shared/titan"
[detection]
profile = "wan"
$times
END
    cat >/etc/titan/titand.toml <<END
[agent]
coordinator = "unix:/run/titan/titan.sock"
address = "10.9.0.1"
slots = 1
$([ "$kind" = containers ] || echo lease_ms = 60000)
[storage]
jobs_dir = "/shared/titan"
END
    cp /etc/titan/titand.toml /test/titand-n1.toml
    sed -e 's|^coordinator = .*|join = "/etc/titan/node.join"|' -e 's|^address = .*|address = "10.9.0.2"|' /etc/titan/titand.toml >/test/titand-n2.toml
    titanctl admin check --fix && cat /etc/systemd/system/titand.service.d/* || return 1
    systemctl enable --now titan-coordinator titand || return 1
    titanctl node join n2 >/test/n2.join || return 1
    [ "$(stat -c %a /test/n2.join)" = 600 ] || chmod 600 /test/n2.join
    on n2 'cp /test/titand-n2.toml /etc/titan/titand.toml && install -o titan -g titan -m 600 /test/n2.join /etc/titan/node.join && systemctl enable --now titand' || return 1
    rm /test/n2.join
    both_there() { [ "$(titanctl nodes | grep -cE '\<(n1|n2)\>')" = 2 ]; }
    wait_for 120 both_there
    titanctl nodes
    both_there || { journalctl -u titan-coordinator | tail; on n2 'journalctl -u titand | tail'; return 1; }
}
# The second node's unit was not allowed to write to the shared folder: said, and mended by --fix.
broken_check() {
    local code
    unfit() { titanctl nodes | grep -w n2 | grep -w unfit; }
    wait_for 60 unfit || return 1
    titanctl admin check
    code=$?
    titanctl admin check | grep WRONG
    [ $code = 7 ] && titanctl admin check | grep WRONG | grep -w n2 | grep /shared/titan || return 1
    note "$(titanctl admin check 2>&1 | grep 'WRONG.*/shared' | tr -s ' ' | head -n 1)"
    on n2 'titanctl admin check --fix && systemctl restart titand' || return 1
    wait_for 120 nodes_ready
}
# Over TLS only, and a token works once.
joined_by_certificate() {
    on n2 'ls -ln /var/lib/titan/tls; stat -c "%a %U %n" /var/lib/titan/tls/key.pem | grep "^600 titan"' || return 1
    stat -c '%a %U %n' /var/lib/titan-coordinator/tls/key.pem /var/lib/titan-pki/ca.key
    [ "$(stat -c '%a %U' /var/lib/titan-coordinator/tls/key.pem)" = "600 titan" ] || return 1
    [ "$(stat -c '%a %U' /var/lib/titan-pki/ca.key)" = "600 root" ] || return 1
    runuser -u titan -- cat /var/lib/titan-pki/ca.key && return 1
    runuser -u titan -- cat "/proc/$(systemctl show -P MainPID titan-coordinator)/environ" && return 1
    on n2 'titanctl --server 10.9.0.1:7070 list' && return 1
    on n2 'titanctl --server 10.9.0.1:7070 --tls-ca /var/lib/titan/tls/ca.pem nodes' && return 1
    titanctl node join n2 >/test/n2.join && titanctl pki show && titanctl nodes -o json | grep -i cert
    rm -f /test/n2.join
    return 0
}
state_modes() {
    both 'for dir in /var/lib/titan /var/lib/titan-coordinator /var/lib/titan-backup; do [ ! -e $dir ] || stat -c "%a %U %n" $dir; done >/tmp/modes; cat /tmp/modes
        ! grep -v "^700 titan " /tmp/modes && find /var/lib/titan /var/lib/titan-coordinator -name "*.key" -o -name "*key.pem" -o -name "*.db" | xargs ls -l >/tmp/secret
        cat /tmp/secret; ! grep -v "^-rw------- 1 titan titan " /tmp/secret'
}
# Who may do what, without being root.
users() {
    getent group titan-admin || return 1
    id alice || useradd -G titan-admin alice || return 1
    id bob || useradd bob || return 1
    as alice nodes && as alice drain n2 --reason looked-at && as alice undrain n2 || return 1
    wait_for 60 nodes_ready
    as bob list && as bob nodes || return 1
    as bob drain n2 && return 1
    titanctl audit | tail -n 5
    titanctl audit | grep -w bob | grep -i refused && titanctl audit | grep -w alice || return 1
    runuser -u bob -- ls /var/lib/titan-coordinator && return 1
    local own
    install -d -o bob -m 755 /home/bob && install -o bob /shared/text/docs.txt /home/bob/text.txt || return 1
    own=$(as bob submit /usr/share/titan/recipes/tiny.toml --set training.dataset_path=/home/bob/text.txt --set training.steps=1000000 \
        --set elastic.min_workers=3 --set elastic.max_workers=3) || return 1
    titanctl list
    titanctl list | grep -w bob || return 1
    id carol || useradd carol
    as carol cancel "$own" && return 1
    as bob cancel "$own" || return 1
    note "a member of titan-admin drains a node, another user lists and is refused to"
}
journal() {
    journalctl -u titan-coordinator -o json | grep -c '"TITAN_' && journalctl -u titand -o json | grep -c '"TITAN_' || return 1
    journalctl -u titan-coordinator -u titand | grep -F n2.join && return 1
    journalctl -p err -u titan-coordinator -u titand --no-pager | grep -v '^-- ' | tail -n 20
    [ "$(journalctl -q -p err -u titan-coordinator -u titand | wc -l)" = 0 ]
}

boot_ok() { systemctl --failed --no-legend; systemctl is-system-running --wait; on n2 'systemctl is-system-running --wait; uname -a'; }

submit_run() {
    job=$(titanctl submit /usr/share/titan/recipes/tiny.toml --set training.dataset_path=/shared/text --set training.steps=1000000 \
        --set elastic.min_workers=1 --set elastic.max_workers=2 --set training.global_batch_size=4 --set training.local_batch_size=1 \
        --set checkpoint.interval=50 --set checkpoint.keep_latest_k=2 --set device.threads=1 --set fault_tolerance.max_restarts=1000 \
        --set fault_tolerance.max_node_losses=1000 --set fault_tolerance.backoff_ms=100) || return 1
    echo "$job" >/test/job
    goes_on || { titanctl status "$job"; titanctl events "$job" | tail -n 20; titanctl logs "$job" | tail -n 20; return 1; }
    [ "$(pgrep -cf 'titan-worker serve')" = 1 ] && [ "$(on n2 "pgrep -cf '[t]itan-worker serve'")" = 1 ] || return 1
    [ -d "/shared/titan/$job/logs" ] || return 1
    note "a worker on each node, step $(step)"
}
own_cgroups() {
    local pid
    for pid in $(pids); do
        cat /proc/$pid/cgroup
        grep -q 'titand.service/titan-worker-' /proc/$pid/cgroup || return 1
    done
    on n2 'for pid in $(pgrep -f "titan-worker serve"); do cat /proc/$pid/cgroup; grep -q titand.service/titan-worker- /proc/$pid/cgroup || exit 1; done'
}
# What this machine itself does not allow is no fault of the package.
check_nodes() {
    titanctl admin check
    local code=$?
    titanctl admin check | grep WRONG >/tmp/wrong
    [ "$(ulimit -Hl)" = unlimited ] || { code=0; sed -i '/memlock/d' /tmp/wrong; }
    [ $code = 0 ] && [ ! -s /tmp/wrong ]
}
kill_worker() {
    local at
    at=$(step)
    on n2 'kill -9 $(pgrep -f "titan-worker serve" | head -n 1)' || return 1
    wait_for 60 events_have worker.exited || return 1
    goes_on && [ "$(step)" -ge "$at" ] && steps_whole && note "$(titanctl events "$job" | grep -c recovery.finished) recovery, every step once, up to $(wc -l </tmp/steps)"
}
events_have() { titanctl events "$job" | grep -q "$1"; }
# COMMAND...: the run keeps its epoch and its processes, and goes on
untouched() {
    local before after epoch
    goes_on || return 1
    before=$(all_pids) epoch=$(field epoch)
    "$@" || return 1
    wait_for 120 nodes_ready || return 1
    goes_on || return 1
    after=$(all_pids)
    echo "$*: epoch $epoch, then $(field epoch); $before; $after"
    [ "$epoch" = "$(field epoch)" ] && [ "$before" = "$after" ] && return 0
    titanctl events "$job" | tail -n 15
    return 1
}
restart_coordinator() { systemctl restart titan-coordinator; }
# A socket unit is not restarted below its running service.
restart_socket() { systemctl stop titan-coordinator.socket titan-coordinator.service && systemctl start titan-coordinator.socket titan-coordinator.service; }
restart_agents() { systemctl restart titand && on n2 'systemctl restart titand'; }
reload_all() { both 'systemctl reload $(systemctl list-units --plain --no-legend "titan*.service" | grep -w running | cut -d " " -f 1)'; }
restart_all() { untouched reload_all && untouched restart_coordinator && untouched restart_agents && untouched restart_socket; }
# For longer than the workers' lease on an agent and than a node may be silent.
stop_for_long() {
    systemctl stop titan-coordinator.socket titan-coordinator.service
    sleep 75
    systemctl start titan-coordinator.socket titan-coordinator.service
}
stop_agent() { on n2 'systemctl stop titand && sleep 2 && systemctl start titand'; }
upgrade() { # the same with a higher version, as a package built later has
    rm -rf /tmp/next
    dpkg-deb -R /test/titan.deb /tmp/next && sed -i 's/^Version: .*/&+1/' /tmp/next/DEBIAN/control &&
        dpkg-deb --root-owner-group -Znone -b /tmp/next /test/next.deb || return 1
    untouched both 'dpkg -i /test/next.deb && dpkg-query -W titan | grep -q "+1"'
}
started_again() { [ "$(systemctl show -p NRestarts --value titan-coordinator)" -gt "$1" ]; }
watchdog_coordinator() {
    local n
    n=$(systemctl show -p NRestarts --value titan-coordinator)
    kill -STOP "$(systemctl show -p MainPID --value titan-coordinator)"
    wait_for 120 started_again "$n" || return 1
    note "systemd started it again: $(journalctl -u titan-coordinator | grep -c 'Watchdog timeout') watchdog timeout"
}
watchdog_agent() {
    local before
    goes_on || return 1
    before=$(on n2 'pgrep -f "[t]itan-worker serve"')
    on n2 'n=$(systemctl show -p NRestarts --value titand); kill -STOP $(systemctl show -p MainPID --value titand); for i in $(seq 240); do
        [ $(systemctl show -p NRestarts --value titand) -gt $n ] && exit 0; sleep 0.5; done; exit 1' || return 1
    wait_for 120 nodes_ready && goes_on && steps_whole || return 1
    note "its worker $([ "$before" = "$(on n2 'pgrep -f "[t]itan-worker serve"')" ] && echo goes on || echo is another one)"
}
memory_ends() { # the unit's limit, lower and lower until a worker goes; the reason names it
    local limit least told=1
    on n2 '[ -e /sys/fs/cgroup/system.slice/titand.service/memory.stat ]' || { note "no memory controller of cgroup v2 here"; return 77; }
    goes_on || return 1
    # What cannot be reclaimed: shared memory counts, too. Far below it the agent would go with its worker.
    limit=$(on n2 'awk "/^(anon|shmem|kernel) / {sum += \$2} END {print sum}" /sys/fs/cgroup/system.slice/titand.service/memory.stat')
    least=$((limit / 2))
    while [ $told != 0 ] && [ "$limit" -gt $least ]; do
        limit=$((limit - 4194304))
        on n2 "systemctl set-property --runtime titand.service MemoryMax=$limit" || break
        wait_for 20 events_have 'out of memory' && told=0
    done
    on n2 'systemctl set-property --runtime titand.service MemoryMax=infinity'
    [ $told = 0 ] || { titanctl events "$job" | tail -n 8; on n2 'journalctl --no-pager -n 40'; return 1; }
    titanctl events "$job" | grep 'out of memory' | tail -n 1 >/tmp/oom
    note "$(sed 's/^[^ ]* *//' /tmp/oom)"
    grep -q 'of titand.service' /tmp/oom && goes_on
}
power_cut_node() {
    local boot at epoch
    goes_on || return 1
    at=$(step) boot=$(cat /test/n2.boot) epoch=$(field epoch)
    touch /test/power.n2
    rebooted() { [ "$(cat /test/n2.boot)" != "$boot" ]; }
    # With one worker, or with two again where the node was back before this looks.
    recovered() { [ "$(field epoch)" -gt "$epoch" ] && state_is RUNNING; }
    wait_for 120 recovered || return 1
    note "the worker of the other node went on at step $(step), of $at"
    wait_for 300 rebooted && wait_for 180 nodes_ready && goes_on && steps_whole
}
power_cut_coordinator() { # this machine; the rest is the stage after_cut
    goes_on
    step >/test/step_before
    field epoch >/test/epoch_before
    cat /proc/sys/kernel/random/boot_id >/test/boot_before
}
after_cut() {
    [ "$(cat /test/boot_before)" != "$(cat /proc/sys/kernel/random/boot_id)" ] || return 1
    wait_for 180 nodes_ready && goes_on || return 1
    journalctl -u titan-coordinator | grep 'the store was not closed'
    titanctl admin verify --rederive /var/lib/titan-coordinator || return 1
    [ "$(step)" -ge "$(cat /test/step_before)" ] && steps_whole || return 1
    note "step $(cat /test/step_before) before, $(step) now"
}
reboot_node() { # by systemctl reboot, with agent.drain_on_term: its worker leaves the run first, and nothing counts as lost
    local boot before
    restarts() { titanctl status "$job" | sed -n 's/^ *restarts *//p'; }
    on n2 'sed -i "s/^slots = 1/&\ndrain_on_term = true/" /etc/titan/titand.toml && systemctl restart titand' || return 1
    goes_on || return 1
    before=$(restarts) boot=$(cat /test/n2.boot)
    on n2 'systemd-run --on-active=1 systemctl reboot'
    again() { [ "$(cat /test/n2.boot)" != "$boot" ]; }
    wait_for 300 again && wait_for 180 nodes_ready && goes_on && steps_whole || return 1
    titanctl events "$job" | tail -n 30
    note "restarts $before, then $(restarts)"
    [ "$before" = "$(restarts)" ] || return 1
    on n2 'sed -i "/^drain_on_term/d" /etc/titan/titand.toml && systemctl restart titand'
}
# Another address on n2's interface, which hosts and titand.toml name then; the old one is gone before the agent ends, so the coordinator never
# hears of that end.
address_changed() {
    local at=$SECONDS before
    goes_on || return 1
    # The worker that stays has rank 0 then: the other one connects to it.
    kill -9 $(pids) && wait_for 60 events_have worker.exited && goes_on || return 1
    before=$(all_pids)
    both 'sed -i "s/^10.9.0.2 /10.9.0.22 /" /etc/hosts' || return 1
    on n2 'sed -i "s/^n=.*/n=22/" /usr/local/sbin/test-net && ip address flush dev eth0 && systemctl restart test-net &&
        sed -i "s/^address = .*/address = \"10.9.0.22\"/" /etc/titan/titand.toml && systemctl restart titand' || return 1
    at=$SECONDS
    moved() { titanctl -o json nodes | grep -q '"address": *"10.9.0.22"' && nodes_ready; }
    wait_for 60 moved || { titanctl nodes -o json; journalctl -u titan-coordinator | tail -n 20; return 1; }
    note "taken at its new address after $((SECONDS - at)) s"
    goes_on || { titanctl events "$job" | tail -n 20; return 1; }
    note "both workers train after $((SECONDS - at)) s, $([ "$before" = "$(all_pids)" ] && echo the same || echo not the same) processes"
    steps_whole && note "every step once, up to $(wc -l </tmp/steps)"
}
backup_by_timer() {
    mkdir -p /etc/systemd/system/titan-backup.timer.d
    printf '[Timer]\nOnCalendar=\nOnCalendar=*:*:0/15\nRandomizedDelaySec=0\nAccuracySec=1s\n' >/etc/systemd/system/titan-backup.timer.d/often.conf
    systemctl daemon-reload && systemctl start titan-backup.timer || return 1
    three() { [ "$(ls /var/lib/titan-backup/titan-*.db | wc -l)" -ge 2 ]; }
    wait_for 120 three
    systemctl stop titan-backup.timer
    stat -c '%a %U %n' /var/lib/titan-backup /var/lib/titan-backup/*
    while systemctl is-active -q titan-backup.service; do sleep 0.3; done
    journalctl -u titan-backup.service | tail -n 5
    three && titanctl admin verify --rederive "$(ls /var/lib/titan-backup/titan-*.db | tail -n 1)"
}
restore_backup() { # what came after it is learned from the nodes
    local at
    goes_on || return 1
    at=$(step)
    systemctl stop titan-coordinator.socket titan-coordinator.service || return 1
    titanctl admin restore "$(ls /var/lib/titan-backup/titan-*.db | tail -n 1)" --state-dir /var/lib/titan-coordinator || return 1
    systemctl start titan-coordinator.socket titan-coordinator.service || return 1
    wait_for 180 nodes_ready && goes_on || return 1
    titanctl events | grep -E 'epoch.restored|store.settled' | tail -n 3
    [ "$(step)" -ge "$at" ] && note "step $at before, $(step) now, epoch $(field epoch)"
}
run_to_its_end() {
    local next
    titanctl cancel "$job" || return 1
    next=$(titanctl submit /usr/share/titan/recipes/tiny.toml --set training.dataset_path=/shared/text --set training.steps=20 \
        --set elastic.max_workers=2 --set training.global_batch_size=4 --set training.local_batch_size=1 --set checkpoint.interval=10 --set device.threads=1) || return 1
    timeout 300 titanctl wait "$next" || { titanctl status "$next"; return 1; }
    ls "/shared/titan/$next/checkpoint"
    [ -d "/shared/titan/$next/checkpoint/step-00000020" ] && titanctl list
}
worker_over_memory() { # by titan-spawnd: before systemd 254 titand's unit hands no controllers on
    local next code
    grep -qw memory /sys/fs/cgroup/cgroup.controllers || { note "no memory controller of cgroup v2 here"; return 77; }
    id trainee || useradd -u 1500 -m trainee || return 1
    sed -i 's|^slots = 1|&\nspawnd = "/run/titan-spawnd/spawnd.sock"|' /etc/titan/titand.toml
    systemctl start titan-spawnd.socket titan-spawnd && systemctl restart titand && titanctl drain n2 || return 1
    one_ready() { [ "$(titanctl nodes | grep -cw ready)" = 1 ]; }
    wait_for 180 one_ready || return 1
    next=$(cd /shared && runuser -u trainee -- titanctl --server unix:/run/titan/titan.sock submit /usr/share/titan/recipes/tiny.toml \
        --set training.dataset_path=/shared/text --set elastic.max_workers=1 --set training.global_batch_size=1 --set training.local_batch_size=1 \
        --set device.threads=1 --set model.dim=512 --set model.ffn_hidden=2048 --set resources.memory=48MiB --set fault_tolerance.max_ooms=0) || return 1
    timeout 300 titanctl wait "$next"
    code=$?
    titanctl status "$next"
    titanctl status "$next" | sed -n 's/^ *reason *//p' >/tmp/oom
    note "$(cat /tmp/oom)"
    systemctl is-active titan-workers.scope titan-spawnd titand || return 1
    titanctl undrain n2
    sed -i '/^spawnd = /d' /etc/titan/titand.toml
    systemctl restart titand && systemctl stop titan-spawnd.service titan-spawnd.socket && systemctl stop titan-workers.scope && wait_for 180 nodes_ready || return 1
    [ $code = 1 ] && grep -q 'out of memory: limit 48.0 MiB (resources.memory)' /tmp/oom
}
unshared_node() { # without the mount the node has another folder of that name
    on n2 'dir=$(sed -n "s/^jobs_dir = \"\(.*\)\"/\1/p" /etc/titan/titand.toml); systemctl stop titand; umount "$(findmnt -no TARGET --target "$dir")" &&
        install -d -o titan -g titan "$dir" && sed -i "/^shared/d" /etc/fstab && systemctl daemon-reload && rm -f /etc/systemd/system/titand.service.d/titan-paths.conf && titanctl admin check --fix && systemctl start titand' || return 1
    unfit() { titanctl nodes | grep -w unfit; }
    wait_for 120 unfit || return 1
    titanctl nodes | grep -w unfit
    titanctl admin check
    [ $? = 7 ]
}
remove_package() {
    on n2 'dpkg -P titan >/tmp/purged; cat /tmp/purged; grep "left for you" /tmp/purged && [ ! -e /usr/bin/titand ] && [ ! -e /etc/systemd/system/titand.service.d ]'
}

# The rest is after_loss, on the other machine: all that it has of this one is what is to be kept, on the shared folder.
lose_coordinator() {
    goes_on || return 1
    install -d -m 700 /shared/kept && cd /shared/kept || return 1
    tar -C / -czf titan-head.tgz etc/titan/coordinator.toml var/lib/titan-pki var/lib/titan-coordinator/pki || return 1
    systemctl start titan-backup.service || return 1
    for suffix in "" .sig; do
        cp "$(ls /var/lib/titan-backup/titan-*.db$suffix | tail -n 1)" titan.db$suffix || return 1
    done
    goes_on || return 1
    step >/test/step_before
    titanctl list | awk 'NR > 1 {print $1}' | sort >/test/jobs_before
    cp /etc/hosts /test/
    cat /proc/sys/kernel/random/boot_id >/test/boot_before
}
# docs/operations.md, "The coordinator's machine is gone", line by line (tests/docs/test_scenes.py): another machine with this one's
# name and address, on which the package is and nothing else.
after_loss() {
    [ "$(cat /test/boot_before)" != "$(cat /proc/sys/kernel/random/boot_id)" ] && [ ! -e /etc/titan ] && [ ! -e /var/lib/titan-coordinator ] || return 1
    dpkg -i /test/titan.deb >/dev/null && cd /shared/kept || return 1
    tar -C / -xpzf titan-head.tgz &&
        titanctl admin restore titan.db --state-dir /var/lib/titan-coordinator &&
        titanctl pki coordinator --address n1 --address 10.9.0.1 &&
        titanctl admin check --fix &&
        systemctl enable --now titan-coordinator &&
        titanctl nodes || return 1
    n2_ready() { titanctl nodes | grep -w n2 | grep -w ready; }
    wait_for 60 n2_ready || { journalctl -u titan-coordinator | tail -n 20; on n2 'journalctl -u titand | tail -n 20'; return 1; }
    titanctl node forget n1 || return 1
    cp /test/titand-n1.toml /etc/titan/titand.toml && titanctl admin check --fix && systemctl enable --now titand || return 1
    wait_for 60 nodes_ready && goes_on || { titanctl nodes; titanctl status "$job"; titanctl events "$job" | tail -n 20; return 1; }
    titanctl list | awk 'NR > 1 {print $1}' | sort | comm -23 /test/jobs_before - >/tmp/missing
    [ -s /test/jobs_before ] && [ ! -s /tmp/missing ] || { cat /tmp/missing; return 1; }
    titanctl admin verify --rederive /var/lib/titan-coordinator && steps_whole || return 1
    [ "$(stat -c '%a %U' /var/lib/titan-pki/ca.key /var/lib/titan-coordinator/tls/key.pem /var/lib/titan-coordinator/pki/backup.key | tr '\n' ' ')" = \
        "600 root 600 titan 600 titan " ] || { ls -l /var/lib/titan-pki /var/lib/titan-coordinator/{tls,pki}; return 1; }
    note "step $(cat /test/step_before) before, $(step) now, every step once; $(wc -l </test/jobs_before) jobs"
}

# docs/operations.md, "Workers as their users", line by line (tests/docs/test_scenes.py). /srv is the file server here.
with_users() {
    both 'mkdir -p /srv && mount --bind /shared /srv && for user in alice:2001 bob:2002; do
        userdel ${user%:*} 2>/dev/null; useradd -u ${user#*:} -d /nonexistent ${user%:*} || exit 1; done
        install -d -o titan -g titan -m 711 /srv/titan-jobs && sed -i -e "s|^jobs_dir = .*|jobs_dir = \"/srv/titan-jobs\"|" \
        -e "s|^\[agent\]|&\nspawnd = \"/run/titan-spawnd/spawnd.sock\"|" -e "/^jobs_as_users/d" -e "s|^\[coordinator\]|&\njobs_as_users = true|" /etc/titan/*.toml &&
        titanctl admin check --fix' || return 1
    both 'systemctl restart titand' && systemctl restart titan-coordinator || return 1
    wait_for 60 nodes_ready && check_nodes || { titanctl nodes; titanctl admin check; return 1; }
}
submit_as() { # USER STEPS ARGUMENT...: the new job's number
    as "$1" submit /usr/share/titan/recipes/tiny.toml --set training.dataset_path=/shared/text --set training.steps="$2" --set elastic.min_workers=1 \
        --set elastic.max_workers=2 --set training.global_batch_size=4 --set training.local_batch_size=1 --set checkpoint.interval=10 \
        --set checkpoint.keep_latest_k=2 --set device.threads=1 --set fault_tolerance.max_restarts=1000 --set fault_tolerance.backoff_ms=100 "${@:3}"
}
# USER: the workers are that user's, without a right that is not
workers_of() {
    both 'pid=$(pgrep -f "[t]itan-worker serve"); ps -o user=,pid=,args= -p $pid; grep -E "^(Uid|Gid|Groups|Cap(Inh|Prm|Eff|Amb)|NoNewPrivs|Seccomp):" /proc/$pid/status
        [ "$(ps -o user= -p $pid)" = '"$1"' ] && [ "$(grep -cE "^Cap(Inh|Prm|Eff|Amb):\s0{16}$" /proc/$pid/status)" = 4 ] &&
        grep -qE "^NoNewPrivs:\s1$" /proc/$pid/status && grep -qE "^Seccomp:\s2$" /proc/$pid/status && ! grep -qE "^(Groups|Gid):.*\b($(id -g titan)|0)\b" /proc/$pid/status'
}
checkpointed() { ls -d "/srv/titan-jobs/$job/checkpoint/"step-* && state_is "${1:-RUNNING}"; }
alice_and_bob() {
    local hers
    titanctl cancel --all
    wait_for 60 no_worker && with_users && job=$(submit_as alice 1000000) || return 1
    goes_on || { titanctl status "$job"; titanctl events "$job" | tail -n 20; journalctl -u titan-spawnd | tail; return 1; }
    workers_of alice && wait_for 60 checkpointed || return 1
    find "/srv/titan-jobs/$job" -printf '%u %g %m %P\n' >/tmp/files
    grep -v '^alice ' /tmp/files | grep -vE ' (recipe.toml|logs/ranks)$' && return 1
    runuser -u bob -- ls "/srv/titan-jobs/$job" && return 1
    as bob logs "$job" && return 1
    as bob cancel "$job" && return 1
    as alice cancel --checkpoint "$job" && wait_for 60 state_is CANCELLED || return 1
    runuser -u alice -- sh -c "cat /srv/titan-jobs/$job/checkpoint/step-*/* >/dev/null && cat /srv/titan-jobs/$job/logs/worker-*.log | head -n 1" || return 1
    hers=$job
    as bob resume "$hers" && return 1
    submit_as bob 20 --from "$hers" && return 1
    # Shared by its owner, with the next job in the folder.
    job=$(as alice resume "$hers" --set 'checkpoint.shared_with=["user:bob"]') && goes_on && workers_of alice || return 1
    as alice cancel --checkpoint "$job" && wait_for 60 state_is CANCELLED || return 1
    job=$(submit_as bob 1000000 --from "$job" --set training.steps=1000000) || return 1
    goes_on || { titanctl status "$job"; titanctl events "$job" | tail -n 20; as bob logs "$job" | tail -n 20; return 1; }
    workers_of bob && as bob cancel "$job" && wait_for 60 state_is CANCELLED || return 1
    submit_as root 20 2>&1 | grep -e '--for USER' || return 1
    # Bob's first, which began from hers, then hers from the last.
    as bob rm "$job" && for job in $(titanctl list --user alice | awk 'NR > 1 {print $1}' | sort -rn); do as alice rm "$job"; done
    [ ! -e "/srv/titan-jobs/$hers" ] || { ls -laR "/srv/titan-jobs/$hers"; getfacl -R "/srv/titan-jobs/$hers"; return 1; }
    note "workers, checkpoints and logs are their users', and gone with titanctl rm; shared_with lets bob begin from alice's"
}
# titan-spawnd and titand on both nodes, and what systemd does with its units; by all of it the workers stay.
restart_spawnd() { both 'systemctl restart titan-spawnd'; }
kill_spawnd() { both 'n=$(systemctl show -P NRestarts titan-spawnd); kill -9 $(systemctl show -P MainPID titan-spawnd); for i in $(seq 100); do
    [ $(systemctl show -P NRestarts titan-spawnd) -gt $n ] && exit 0; sleep 0.2; done; exit 1'; }
reload_units() { both 'systemctl daemon-reload'; }
spawnd_restarts() {
    titanctl cancel --all
    wait_for 60 no_worker && { [ -e /srv/titan-jobs ] || with_users; } && job=$(submit_as alice 1000000) || return 1
    # Ended while its agent is away: titan-spawnd tells the next agent how. Earlier scenes have killed workers on n2 as well.
    titanctl undrain n2
    goes_on && on n2 'systemctl stop titand && kill -SEGV $(pgrep -f "[t]itan-worker serve") && systemctl start titand' || return 1
    wait_for 60 events_have 'ended by signal 11' && goes_on ||
        { titanctl nodes; titanctl events "$job" | grep -v checkpoint | tail -n 20; on n2 'journalctl -u titan-spawnd -u titand | tail -n 20'; return 1; }
    untouched restart_spawnd && untouched kill_spawnd && untouched restart_agents && untouched reload_units || return 1
    on n2 'journalctl -u titan-spawnd | grep -c "worker adopted"' || return 1
    steps_whole /srv/titan-jobs && workers_of alice || return 1
    as alice cancel "$job" && wait_for 60 no_worker || return 1
    note "same processes over restart and SIGKILL of titan-spawnd, restart of titand, daemon-reload; $(titanctl events "$job" | grep 'ended by signal 11' | tail -n 1 | sed 's/^[^ ]* *//')"
}

play_after_cut() {
    scene "the power of the coordinator is cut: its store is sound, the run goes on" after_cut
    scene "a backup is put back: the run goes on where it is" restore_backup
    if wanted after_loss; then
        lose_coordinator
        stage after_loss
        touch /test/other.n1
        sleep 1000
    fi
    play_after_loss
}
play_after_loss() {
    scene "a run to its end, with its checkpoint on the shared folder" run_to_its_end
    scene "a worker over its [resources] memory ends, the reason names the limit" worker_over_memory
    scene "alice and bob: workers and files are their users'" alice_and_bob
    scene "titan-spawnd and titand are restarted and killed under alice's run: same epoch, same processes" spawnd_restarts
    scene "a node without the mount is unfit and says why" unshared_node
    scene "the package is purged and says what stays" remove_package
}
[ ! -e /test/job ] || job=$(cat /test/job)
case $(cat /test/stage 2>/dev/null) in
"")
    echo "# $(uname -r), systemd $(systemctl --version | awk 'NR == 1 {print $2}')"
    wait_for 600 test -e /test/n2.boot
    scene "both machines are up" boot_ok
    scene "the package installs and says what is next" install_package
    scene "one machine, configuration as shipped: a run trains to its end, admin check finds nothing wrong" as_shipped
    scene "two configuration files, a CA, a node that joins with a token: two nodes are there" configure
    scene "admin check names a unit that may not write to the shared folder, --fix lets it" broken_check
    scene "titanctl admin check finds nothing wrong" check_nodes
    scene "keys and state are the daemons' own, TCP takes no client without a certificate" joined_by_certificate
    scene "modes of state folders and of what is in them" state_modes
    scene "group titan-admin works without root, other users may look" users
    scene "a run over both nodes" submit_run
    scene "every worker has a cgroup of its own below the unit's" own_cgroups
    scene "the journal has fields, and no error" journal
    scene "a worker of the other node is killed: no step is lost, none trained twice" kill_worker
    scene "every unit is restarted under the run: same epoch, same processes" restart_all
    scene "an agent is stopped and started under the run: same epoch, same processes" untouched stop_agent
    scene "coordinator and socket are stopped for 75 s: same epoch, same processes" untouched stop_for_long
    scene "the package is upgraded under the run: same epoch, same processes" upgrade
    scene "the coordinator hangs: the watchdog has it started again, the run goes on" untouched watchdog_coordinator
    scene "an agent hangs: the watchdog has it started again, the run is whole again" watchdog_agent
    scene "memory of the unit ends: a worker goes, the reason names the unit's limit" memory_ends
    scene "the power of a node is cut: the others go on, it comes back" power_cut_node
    scene "a node is rebooted: the others go on, it comes back" reboot_node
    scene "a node's address changes under the run: it is taken at once, every step once" address_changed
    scene "backups by timer, sound" backup_by_timer
    if wanted after_cut; then
        power_cut_coordinator
        stage after_cut
        touch /test/power.n1
        sleep 1000
    fi
    play_after_cut
    ;;
after_cut)
    stage after_restore
    play_after_cut
    ;;
after_loss)
    stage after_all
    # As a site's DNS and configuration have it.
    ! grep -q "^10.9.0.22 " /test/hosts || sed -i "s/^10.9.0.2 /10.9.0.22 /" /etc/hosts
    scene "the coordinator's machine is gone: another one takes over by the page, the run goes on" after_loss
    play_after_loss
    ;;
esac
echo "1..$number"
