#!/usr/bin/env bash
# The packages whose libraries the given programs need, as a Depends line: dpkg knows who owns a library, readelf which
# ones are asked for and the newest libc version among the symbols.
set -euo pipefail
libc=$(readelf -V "$@" 2>/dev/null | grep -oE 'GLIBC_2\.[0-9]+(\.[0-9]+)?' | sort -uV | tail -n 1)
echo -n "libc6 (>= ${libc#GLIBC_})"
readelf -d "$@" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u | while read -r soname; do
    path=$(/sbin/ldconfig -p | awk -v s="$soname" '$1 == s && /x86-64|AArch64|libc6/ {print $NF; exit}')
    [ -n "$path" ] || { echo "depends: no $soname on this machine" >&2; exit 1; }
    # /lib is a link to /usr/lib; dpkg may know the file under either name.
    { dpkg-query -S "$path" 2>/dev/null || dpkg-query -S "$(readlink -f "$path")" 2>/dev/null ||
        dpkg-query -S "${path#/usr}" 2>/dev/null || dpkg-query -S "/usr$path" 2>/dev/null; } | sed 's/:.*//' | head -n 1
done | sort -u | grep -vx libc6 | while read -r package; do
    # A soname is kept by its package: from the upstream version here on.
    version=$(dpkg-query -W -f '${Version}' "$package" | sed 's/^[0-9]*://; s/[-+~].*//')
    epoch=$(dpkg-query -W -f '${Version}' "$package" | sed -n 's/^\([0-9]*:\).*/\1/p')
    echo -n ", $package (>= $epoch$version)"
done
echo
