#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The root file system that the machines of `make system` start from: Debian 12 by debootstrap, what titan depends on, a
# unit that runs /test/scenes.sh. Kept below build/system; made again when this file changes.  image.sh FOLDER
set -euo pipefail
out=$1 root=$1/root
sum=$(sha256sum "$0" | cut -c1-16)
[ "$(cat "$out/image.sum" 2>/dev/null)" = "$sum" ] && [ -s "$out/base.ext4" ] && exit 0
[ "$(id -u)" = 0 ] || { echo "image.sh: debootstrap needs root" >&2; exit 1; }
packages=systemd,systemd-sysv,dbus,udev,kmod,iproute2,iputils-ping,procps,initramfs-tools,linux-image-amd64,zstd,sqlite3
packages+=,libuv1,libgrpc29,libprotobuf-c1,libsqlite3-0,libssl3,libgomp1,libdnnl2,libmicrohttpd12
if [ ! -e "$root/.complete" ]; then
    rm -rf "$root"
    mkdir -p "$out"
    debootstrap --variant=minbase --include="$packages" bookworm "$root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" \
        >"$out/debootstrap.log" 2>&1 || { tail -n 20 "$out/debootstrap.log" >&2; exit 1; }
    touch "$root/.complete"
fi
# A small root starts faster: of the kernel's modules those that the machine below has hardware for.
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/{locale,man,info}/*
find "$root"/lib/modules/*/kernel/{sound,drivers/gpu,drivers/media,drivers/usb,drivers/infiniband,drivers/scsi} -name '*.ko' -delete \
    2>/dev/null || true
find "$root"/lib/modules/*/kernel/drivers/net -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} +
printf 'virtio_pci\nvirtio_blk\next4\ncrc32c_generic\n' >"$root/etc/initramfs-tools/modules"
sed -i 's/^MODULES=.*/MODULES=list/' "$root/etc/initramfs-tools/initramfs.conf"
chroot "$root" sh -c 'depmod -a "$(ls /lib/modules)"; update-initramfs -u -k all' >/dev/null
cp -L "$root"/boot/vmlinuz-* "$out/vmlinuz"
cp -L "$root"/boot/initrd.img-* "$out/initrd"

# A folder of this run with the package and the scripts, and one that stands for the site's file server.
mkdir -p "$root/test" "$root/shared"
cat >"$root/etc/fstab" <<'END'
test   /test   9p trans=virtio,version=9p2000.L,msize=131072,cache=none 0 0
shared /shared 9p trans=virtio,version=9p2000.L,msize=131072,cache=mmap 0 0
END
rm -f "$root/etc/hostname"
printf '127.0.0.1 localhost\n10.9.0.1 n1\n10.9.0.2 n2\n' >"$root/etc/hosts"
cat >"$root/usr/local/sbin/test-net" <<'END'
#!/bin/sh
# The machine's name is n and its number.
n=$(hostname | tr -d n)
ip link set eth0 up && ip address replace "10.9.0.$n/24" dev eth0
END
chmod 755 "$root/usr/local/sbin/test-net"
cat >"$root/etc/systemd/system/test-net.service" <<'END'
[Unit]
DefaultDependencies=no
After=systemd-udev-settle.service
Wants=systemd-udev-settle.service network-online.target
Before=network-online.target network.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/test-net
[Install]
WantedBy=multi-user.target
END
cat >"$root/etc/systemd/system/test-scenes.service" <<'END'
[Unit]
RequiresMountsFor=/test /shared
After=multi-user.target test-net.service
[Service]
Type=simple
ExecStart=/bin/bash /test/scenes.sh
StandardOutput=append:/test/%H.log
StandardError=append:/test/%H.log
[Install]
WantedBy=graphical.target
END
mkdir -p "$root/etc/systemd/system/multi-user.target.wants" "$root/etc/systemd/system/graphical.target.wants"
ln -sf ../test-net.service "$root/etc/systemd/system/multi-user.target.wants/"
ln -sf ../test-scenes.service "$root/etc/systemd/system/graphical.target.wants/"
for unit in serial-getty@ttyS0.service getty@tty1.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
    e2scrub_all.timer e2scrub_reap.service fstrim.timer systemd-timesyncd.service systemd-pstore.service \
    systemd-networkd-wait-online.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
ln -sf /lib/systemd/system/graphical.target "$root/etc/systemd/system/default.target"
rm -f "$out/base.ext4"
mke2fs -q -t ext4 -d "$root" -E root_owner=0:0 "$out/base.ext4" 3G
echo "$sum" >"$out/image.sum"
