#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make deb: a package that is in order, with everything at its place; it installs, runs and goes again. `make test-slow` runs it.
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

version=$(sed -n 's/.*TITAN_VERSION "\(.*\)"/\1/p' base/version.h)
if ! command -v dpkg-deb >/dev/null; then
    echo "1..0 # skip no dpkg-deb"
    exit 0
fi
check "make deb" make_ deb
deb=$BUILD/titan_${version}_$(dpkg --print-architecture).deb
check "package can be read" dpkg-deb -I "$deb"
for package in $(dpkg-deb -f "$deb" Depends | sed 's/([^)]*)//g; s/,/ /g'); do
    check "depends on something installed here: $package" dpkg-query -W "$package"
done
check "no dependency on this machine's patch level of libssl" grep -qE 'libssl3 \(>= 3\.[0-9]+\.0\)' <(dpkg-deb -f "$deb" Depends)
check "its maintainer has an address on a host" grep -qE '<[^@ ]+@[^@ ]+\.[a-z]+>$' <(dpkg-deb -f "$deb" Maintainer)
check "nothing it needs is left out" test "$(dpkg-deb -f "$deb" Depends | tr ',' '\n' | wc -l)" -ge 6
check "unpacks" dpkg-deb -x "$deb" "$tmp/b"
check "files belong to root" not grep -v ' root/root ' <(dpkg-deb -c "$deb")
check "titanctl runs" grep -qF "$version" <("$tmp/b/usr/bin/titanctl" version 2>&1)
check "titand runs" grep -qF "$version" <("$tmp/b/usr/bin/titand" --version 2>&1)
check "programs and plug-ins are hardened" /usr/bin/python3 tests/deploy/test_hardening.py "$tmp/b/usr"
check "sums are right" bash -c "cd '$tmp/b' && md5sum --quiet -c <(dpkg-deb --ctrl-tarfile '$PWD/$deb' | tar -xO ./md5sums)"
check "configuration files are known as such" bash -c \
    "[ ! -d '$tmp/b/etc' ] || diff <(cd '$tmp/b' && find etc -type f | sed 's|^|/|' | sort) <(dpkg-deb --ctrl-tarfile '$deb' | tar -xO ./conffiles)"
check "copyright and changelog" bash -c "grep -q common-licenses/Apache-2.0 '$tmp/b/usr/share/doc/titan/copyright' &&
    zcat '$tmp/b/usr/share/doc/titan/changelog.gz' | head -n 1 | grep -qF '($version)'"
cat >"$tmp/links" <<'END'
cd "$1/usr/share/doc/titan" && for file in *.md docs/*.md docs/log/*.md; do
    grep -oE '\]\([^)#]+' "$file" | sed 's/^](//' | grep -v '^[a-z]*:' | while read -r link; do
        [ -e "$(dirname "$file")/$link" ] || [ -L "$(dirname "$file")/$link" ] || { echo "$file: $link leads nowhere"; exit 1; }
    done || exit 1
done
END
check "links between documents lead somewhere" bash "$tmp/links" "$tmp/b"
if command -v lintian >/dev/null; then
    check "lintian has nothing to say" bash -c "out=\$(lintian --allow-root '$deb' 2>&1); echo \"\$out\"; [ -z \"\$out\" ]"
else
    n=$((n + 1))
    echo "ok $n - lintian has nothing to say # SKIP no lintian"
fi
for script in postinst prerm postrm; do
    check "$script is sound" bash -c "dpkg-deb --ctrl-tarfile '$deb' | tar -xO ./$script | sh -n"
done

# A real installation, in an overlay of this machine that is gone afterwards.
cat >"$tmp/install.sh" <<'END'
set -e
mount -t tmpfs none "$1/overlay"
mkdir "$1/overlay/"{upper,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/overlay/upper,workdir=$1/overlay/work" "$1/overlay/root"
[ "$3" = probe ] && exit
mount --bind /proc "$1/overlay/root/proc"
mount --bind /dev "$1/overlay/root/dev"
cp "$2" "$1/overlay/root/tmp/titan.deb"
chroot "$1/overlay/root" sh -ec '
    dpkg -i /tmp/titan.deb
    [ -z "$(command -v systemd-sysusers)" ] || id titan
    titand --version
    titanctl --help >/dev/null
    titan-worker run /usr/share/titan/recipes/tiny.toml --set training.dataset_path=/usr/share/doc/titan \
        --set training.steps=1 --dir /tmp/run
    mkdir -p /var/lib/titan-coordinator/jobs/1 && touch /var/lib/titan-coordinator/jobs/1/kept
    dpkg -P titan | tee /tmp/said
    test ! -e /usr/bin/titand -a ! -e /etc/titan -a ! -e /var/lib/titan
    test -e /var/lib/titan-coordinator/jobs/1/kept && grep -q "left for you.*/var/lib/titan-coordinator" /tmp/said'
END
mkdir "$tmp/overlay"
if [ "$(id -u)" = 0 ] && unshare -m bash "$tmp/install.sh" "$tmp" "$PWD/$deb" probe 2>/dev/null; then
    check "installs, runs and goes again" unshare -m bash "$tmp/install.sh" "$tmp" "$PWD/$deb" run
else
    n=$((n + 1))
    echo "ok $n - installs, runs and goes again # SKIP needs root and overlay mounts"
fi
echo "1..$n"
