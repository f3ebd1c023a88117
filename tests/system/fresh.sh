#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# README's two commands on a fresh Debian 12 with nothing but make and git (debootstrap, a chroot): `make demo` and `make test` as root
# below /root, which is closed to others, and `make test` as a user with sudo.
#   BUILD=build tests/system/fresh.sh [user|demo|root]...      the last commit of this tree; as root; all three take half an hour on two cores
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "fresh.sh: debootstrap needs root" >&2; exit 1; }
if [ -z "${FRESH_MOUNTS:-}" ]; then # what is mounted below goes with this process
    FRESH_MOUNTS=1 exec unshare --mount --propagation private "$0" "$@"
fi
out=${BUILD:-build}/fresh root=${BUILD:-build}/fresh/root
mkdir -p "$out"
rm -rf --one-file-system "$root"
debootstrap --variant=minbase --include=make,git,sudo,ca-certificates bookworm "$root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" \
    >"$out/debootstrap.log" 2>&1 || { tail -n 20 "$out/debootstrap.log" >&2; exit 1; }
cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
mount --bind "$root" "$root" # a mount of its own, as namespaces want "/" to be
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
chroot "$root" useradd --create-home --shell /bin/bash user
echo 'user ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/user"
for home in /root /home/user; do
    git clone -q "$PWD" "$root$home/titan"
done
chroot "$root" chown -R user:user /home/user

failed=0
part() { # name user command
    local begin=$SECONDS rc=0
    chroot "$root" su - "$2" -c "ulimit -S -n 1024; cd titan && $3" >"$out/$1.log" 2>&1 </dev/null || rc=$?
    echo "$([ $rc = 0 ] && echo ok || echo FAIL) $1: $3 as $2, $((SECONDS - begin)) s, exit $rc, $(grep -E '^[0-9]+ passed|^  took' "$out/$1.log" | tail -n 1) ($out/$1.log)"
    [ $rc = 0 ] || { failed=1; grep -A 40 '^FAIL' "$out/$1.log" || tail -n 40 "$out/$1.log"; }
}
[ $# -gt 0 ] || set -- user demo root # the user first, so that packages come by sudo
for name; do
    case $name in
    demo) part demo root "make demo" ;;
    root | user) part "$name" "$name" "make test" ;;
    *) echo "fresh.sh: no part $name (user, demo, root)" >&2; exit 2 ;;
    esac
done
exit $failed
