#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The units are clean for systemd-analyze, and as locked up as we say: exposure at most 2.2 for the agent (it opens GPUs and
# runs workers), 1.3 for the coordinator, 4.2 for titan-spawnd, which becomes other users.
set -uo pipefail
cd "$(dirname "$0")/../.."
if ! command -v systemd-analyze >/dev/null; then
    echo "1..0 # skip systemd-analyze is not installed"
    echo "ok 1 - units # skip systemd-analyze is not installed"
    exit 0
fi
# verify wants the programs to exist and the unit to be found by name.
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
n=0 failed=0
result() { # status name
    n=$((n + 1))
    if [ "$1" -eq 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; failed=1; fi
}
for unit in titand titan-spawnd titan-coordinator titan-backup; do
    # The program need not be installed here for the unit to be checked.
    sed -E 's#/usr/bin/titan(d|ctl|-spawnd)#/bin/true#' systemd/$unit.service >"$root/$unit.service"
done
cp systemd/titan-coordinator.socket systemd/titan-spawnd.socket systemd/titan-backup.timer "$root/"
for unit in titand titan-spawnd titan-coordinator titan-backup; do
    out=$(systemd-analyze verify --man=no "$root/$unit.service" 2>&1)
    rc=$?
    # Only what is said about our units counts, not about others of this machine.
    said=$(grep -F "$unit.service" <<<"$out" || true)
    [ -n "$said" ] && sed 's/^/# /' <<<"$said"
    [ $rc -eq 0 ] && [ -z "$said" ]
    result $? "systemd-analyze verify $unit.service"
done
for unit in titan-coordinator.socket titan-spawnd.socket titan-backup.timer; do
    out=$(systemd-analyze verify --man=no "$root/$unit" 2>&1)
    rc=$?
    said=$(grep -F "${unit%.*}" <<<"$out" || true)
    [ -n "$said" ] && sed 's/^/# /' <<<"$said"
    [ $rc -eq 0 ] && [ -z "$said" ]
    result $? "systemd-analyze verify $unit"
done
! grep -hE '^[# ]*ListenStream=.*:' systemd/titan-coordinator.socket
result $? "the socket unit holds no TCP address: what it holds cannot speak TLS"
exposure() { # unit, highest allowed in tenths
    local line score
    line=$(systemd-analyze security --offline=true --no-pager "systemd/$1.service" 2>&1 | grep 'Overall exposure level')
    score=$(grep -oE '[0-9]+\.[0-9]+' <<<"$line" | head -n 1)
    echo "# $1: ${score:-no score}, allowed $2"
    awk -v s="${score:-99}" -v m="$2" 'BEGIN { exit !(s <= m) }'
    result $? "exposure of $1.service at most $2"
}
exposure titand 2.2
exposure titan-spawnd 4.2
exposure titan-coordinator 1.3
exposure titan-backup 1.0
seconds() { sed -n "s/^$1=\([0-9]*\)s$/\1/p" systemd/titand.service; }
lease=$(sed -n 's/^#define LEASE_MS \([0-9]*\)000$/\1/p' daemon/agent/shell/agent_settings.c)
[ $(($(seconds WatchdogSec) + $(seconds TimeoutAbortSec))) -lt "$lease" ]
result $? "an agent that hangs is started again within its workers' lease of $lease s"
# After exit code 5 a pause so long that the limit of starts is never reached; after others none.
printf '#!/bin/sh\necho "slept $1"\n' >"$root/sleep" && chmod +x "$root/sleep"
pause() { # unit, exit code
    EXIT_STATUS=$2 PATH=$root:$PATH sh -c "$(sed -n "s/^ExecStopPost=-\/bin\/sh -c '\(.*\)'$/\1/p" "systemd/$1.service")"
}
for unit in titand titan-coordinator; do
    slept=$(pause $unit 5)
    limit() { sed -n "s/^$1=//p" systemd/$unit.service; }
    [ -z "$(pause $unit 0)$(pause $unit 1)$(pause $unit 74)" ] &&
        [ $(($(limit StartLimitIntervalSec) / ${slept#slept } + 1)) -lt "$(limit StartLimitBurst)" ]
    result $? "$unit.service is started again and again while a right is missing (${slept:-no pause})"
done
grep -q '^u titan ' systemd/titan.sysusers
result $? "sysusers makes the user of the units"
# "group:titan-admin" is an admin by default: it is there, and its members come in without being of the daemons' group.
grep -q '^g titan-admin ' systemd/titan.sysusers && grep -q '^SocketMode=0666$' systemd/titan-coordinator.socket
result $? "members of titan-admin may connect"
! grep -qE '^RemoveIPC=(yes|true|on|1)' systemd/*.service
result $? "no unit removes the pages of workers, which are the same user's, when both daemons are down"
! grep -q '^PrivateUsers=' systemd/titan-coordinator.service
result $? "the coordinator sees the users of its socket by their own numbers"
# As shipped, jobs run as their users: both files name one folder, both units may write there, and the launcher's socket comes
# with the agent.
jobs_dir=$(sed -n 's/^jobs_dir = "\(.*\)"$/\1/p' deploy/titand.toml)
[ -n "$jobs_dir" ] && grep -qxF "jobs_dir = \"$jobs_dir\"" deploy/coordinator.toml && grep -qx 'jobs_as_users = true' deploy/coordinator.toml &&
    grep -qxF "spawnd = \"$(sed -n 's/^ListenSequentialPacket=//p' systemd/titan-spawnd.socket)\"" deploy/titand.toml &&
    [ "$(grep -lE "^ReadWritePaths=.*-$jobs_dir( |$)" systemd/titand.service systemd/titan-coordinator.service | wc -l)" = 2 ] &&
    grep -qE '^Wants=.*titan-spawnd.socket' systemd/titand.service
result $? "the shipped configuration runs jobs as their users"
if [ "$(id -u)" != 0 ]; then
    echo "ok $((n += 1)) - sysusers and tmpfiles apply to an empty tree # skip needs root: they give folders to others"
elif command -v systemd-tmpfiles >/dev/null && command -v systemd-sysusers >/dev/null; then
    mkdir -p "$root/tree/etc" && systemd-sysusers --root="$root/tree" "$PWD/systemd/titan.sysusers" >/dev/null 2>&1 &&
        grep -q '^titan:' "$root/tree/etc/passwd" &&
        systemd-tmpfiles --root="$root/tree" --create "$PWD/systemd/titan.tmpfiles" >/dev/null 2>&1 &&
        [ -d "$root/tree/var/lib/titan-coordinator" ]
    result $? "sysusers and tmpfiles apply to an empty tree"
    [ "$(stat -c %a "$root/tree$jobs_dir")" = 711 ]
    result $? "users get to the shipped folder of jobs, and see no other's name in it"
fi
echo "1..$n"
exit $failed
