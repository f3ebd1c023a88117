#!/bin/bash
# What happens to the installed system; on both machines of run.py, as a unit. The first one is the coordinator's and tells
# the second one what to do through the folder /test. TAP lines go to the console. After a power cut it goes on with the
# scene that /test/stage names.
export HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TITAN_SERVER=unix:/run/titan/titan.sock
n=$(hostname)

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
    if [ "$1" -eq 0 ]; then
        echo "ok $number - $2"
    else
        echo "not ok $number - $2"
        [ ! -s /tmp/said ] || tail -n 30 /tmp/said | sed 's/^/# /'
    fi
}
# scene NAME FUNCTION; its output is shown when it fails. "note" is shown always.
scene() {
    local begun=$SECONDS
    : >/tmp/said
    : >/tmp/notes
    "$2" >/tmp/said 2>&1
    result $? "$1"
    sed 's/^/#   /' /tmp/notes
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
goes_on() { # it runs with 4 workers and trains 3 more steps
    wait_for 240 workers_are 4 || return 1
    local at
    at=$(step)
    wait_for 120 step_above $((at + 2))
}
pids() { pgrep -f 'titan-worker serve' | sort | tr '\n' ' '; }
all_pids() { echo "$(pids) / $(on n2 "pgrep -f 'titan-worker serve' | sort | tr '\n' ' '")"; }
nodes_ready() { [ "$(titanctl nodes | grep -cw ready)" = 2 ]; }
# Steps 1.. of the curve, each once: nothing was lost, nothing trained twice.
steps_whole() {
    titanctl -o json metrics "$job" | sed -n 's/.*"step": *\([0-9]*\).*/\1/p' >/tmp/steps
    awk '$1 != NR {print "step " $1 " at place " NR; bad = 1; exit} END {exit bad || NR == 0}' /tmp/steps
}

# --- scenes -----------------------------------------------------------------------------------------------------------

install_package() {
    both 'dpkg -i /test/titan.deb >/tmp/dpkg 2>&1; cat /tmp/dpkg; grep -q "systemctl enable --now" /tmp/dpkg && id titan' || return 1
    ! systemctl is-active titand titan-coordinator
}

configure() {
    mkdir -p /shared/text && zcat /usr/share/doc/titan/docs/*.md.gz >/shared/text/docs.txt 2>/dev/null
    cat /usr/share/doc/titan/docs/*.md >>/shared/text/docs.txt
    cat >/etc/titan/coordinator.toml <<END
[coordinator]
listen = ["10.9.0.1:7070"]
insecure = true
[storage]
jobs_dir = "/shared/titan"
[detection]
profile = "wan"
END
    for node in 1 2; do
        cat >/test/titand-n$node.toml <<END
[agent]
coordinator = "$([ $node = 1 ] && echo unix:/run/titan/titan.sock || echo 10.9.0.1:7070)"
address = "10.9.0.$node"
slots = 2
[storage]
jobs_dir = "/shared/titan"
END
    done
    both 'cp /test/titand-$(hostname).toml /etc/titan/titand.toml && titanctl admin check --fix && cat /etc/systemd/system/titand.service.d/*' || return 1
    systemctl enable --now titan-coordinator titand && on n2 'systemctl enable --now titand' || return 1
    wait_for 120 nodes_ready
    titanctl nodes
    nodes_ready
}

boot_ok() { systemctl --failed --no-legend; systemctl is-system-running --wait; on n2 'systemctl is-system-running --wait; uname -a'; ping -c 1 10.9.0.2; }

case $(cat /test/stage 2>/dev/null) in
"")
    echo "# $(uname -r), systemd $(systemctl --version | awk 'NR == 1 {print $2}'), up after $(cut -d. -f1 /proc/uptime) s"
    scene "both machines are up" boot_ok
    scene "the package installs and says what is next" install_package
    ;;
esac
echo "1..$number"
