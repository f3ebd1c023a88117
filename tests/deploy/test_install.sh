#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make install: everything at its place, paths put right, the programs run from there. make deb: test_package.sh.
set -uo pipefail
cd "$(dirname "$0")/../.."
: "${BUILD:=build}"
export BUILD
unset MAKEFLAGS MFLAGS MAKELEVEL
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n=0
check() { # check NAME COMMAND...
    local name=$1
    shift
    n=$((n + 1))
    if "$@" >"$tmp/out" 2>&1; then
        echo "ok $n - $name"
    else
        echo "not ok $n - $name"
        sed 's/^/# /' "$tmp/out" | tail -n 20
    fi
}
make_() { make --no-print-directory BUILD="$BUILD" ${SAN:+SAN="$SAN"} "$@"; }
not() { ! "$@"; }

check "make install with PREFIX" make_ install DESTDIR="$tmp/a" PREFIX=/opt/titan
for f in bin/titand bin/titan-spawnd bin/titan-worker bin/titanctl lib/titan/libtitan-cpu.so share/titan/recipes/demo.toml \
    share/titan/prometheus/titan.rules.yml share/titan/grafana/titan.json share/titan/proto/titan/v1/titan.proto share/man/man1/titanctl.1 share/bash-completion/completions/titanctl; do
    check "installed: $f" test -s "$tmp/a/opt/titan/$f"
done
version=$(sed -n 's/.*TITAN_VERSION "\(.*\)"/\1/p' base/version.h)
check "titand runs" grep -qF "$version" <("$tmp/a/opt/titan/bin/titand" --version 2>&1)
check "titanctl runs" grep -qF "$version" <("$tmp/a/opt/titan/bin/titanctl" version 2>&1)
check "the worker finds its plug-in beside it" "$tmp/a/opt/titan/bin/titan-worker" run recipes/tiny.toml \
    --set training.steps=1 --set training.global_batch_size=2 --set training.dataset_path="$PWD/docs" \
    --set checkpoint.enable=false --dir "$tmp/job"
if [ -f systemd/titand.service ]; then
    check "units have the prefix" grep -q '^ExecStart=/opt/titan/bin/titand' "$tmp/a/opt/titan/lib/systemd/system/titand.service"
    check "nothing points to /usr/bin" not grep -rq '/usr/bin/titan' "$tmp/a/opt/titan/lib"
    check "configuration" test -s "$tmp/a/opt/titan/etc/titan/titand.toml"
    echo "# mine" >"$tmp/a/opt/titan/etc/titan/titand.toml"
    check "second install" make_ install DESTDIR="$tmp/a" PREFIX=/opt/titan
    check "configuration is left alone" grep -qx "# mine" "$tmp/a/opt/titan/etc/titan/titand.toml"
fi
echo "1..$n"
