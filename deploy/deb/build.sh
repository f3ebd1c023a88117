#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds BUILD/titan_VERSION_ARCH.deb from the built tree.  deploy/deb/build.sh VERSION ARCH
# DEB_MAINTAINER="NAME <ADDRESS>": who answers for the package; .invalid is for a build that is not passed on.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${BUILD:=build}" "${DEB_MAINTAINER:=Titan maintainers <maintainers@titan.invalid>}"
version=$1 arch=$2
stage=$(mktemp -d "$BUILD/deb.XXXXXX")
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"

DESTDIR=$stage PREFIX=/usr SYSCONFDIR=/etc deploy/install.sh
find "$stage/usr/bin" "$stage/usr/lib/titan" -type f -exec strip --strip-unneeded {} +
find "$stage/usr/share/man" -type f -exec gzip -9n {} + 2>/dev/null || true
doc=$stage/usr/share/doc/titan
mkdir -p "$doc"
ln -sf ../../common-licenses/Apache-2.0 "$doc/LICENSE" # Debian has it
install -m 644 deploy/deb/copyright "$doc/copyright"
sed "s|@VERSION@|$version|; s|@MAINTAINER@|$DEB_MAINTAINER|" deploy/deb/changelog | gzip -9n >"$doc/changelog.gz"
chmod 644 "$doc/changelog.gz"
install -D -m 644 deploy/deb/lintian-overrides "$stage/usr/share/lintian/overrides/titan"
# The CUDA plug-in, where it was built, uses libraries that are not Debian's: it stays out of the dependencies and says
# itself what it misses.
depends=$(deploy/deb/depends.sh "$stage"/usr/bin/* "$stage"/usr/lib/titan/libtitan-cpu.so)

mkdir "$stage/DEBIAN"
cat >"$stage/DEBIAN/control" <<END
Package: titan
Version: $version
Architecture: $arch
Maintainer: $DEB_MAINTAINER
Section: science
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$stage" | cut -f1)
Depends: $depends
Recommends: systemd, libcurl4
Suggests: libraft2
Description: elastic pre-training of large language models
 Queues, places and supervises training runs of Llama-class models on a set of
 machines, and trains them. A run loses and gains workers without stopping.
 .
 This package holds titand (node agent and coordinator), titan-spawnd (starts
 workers as users), titan-worker and titanctl.
END
if [ -d "$stage/etc" ]; then
    (cd "$stage" && find etc -type f | sed 's|^|/|' | sort) >"$stage/DEBIAN/conffiles"
fi
install -m 755 deploy/deb/{postinst,prerm,postrm} "$stage/DEBIAN"
(cd "$stage" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$stage/DEBIAN/md5sums"

dpkg-deb --root-owner-group -Zxz --build "$stage" "$BUILD/titan_${version}_$arch.deb" >/dev/null
echo "$BUILD/titan_${version}_$arch.deb"
