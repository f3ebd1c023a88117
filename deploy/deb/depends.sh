#!/usr/bin/env bash
# The packages whose libraries the given programs need, as a Depends line: dpkg knows who owns a library, readelf which
# ones are asked for and the newest libc version among the symbols.
set -euo pipefail
libc=$(readelf -V "$@" 2>/dev/null | grep -oE 'GLIBC_2\.[0-9]+(\.[0-9]+)?' | sort -uV | tail -n 1)
echo -n "libc6 (>= ${libc#GLIBC_})"
known=$(/sbin/ldconfig -p)
readelf -d "$@" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u | while read -r soname; do
    path=$(awk -v s="$soname" '$1 == s && !found {print $NF; found = 1}' <<<"$known")
    [ -n "$path" ] || { echo "depends: no $soname on this machine" >&2; exit 1; }
    # /lib is a link to /usr/lib; dpkg may know the file under either name.
    owner=$(dpkg-query -S "$path" 2>/dev/null || dpkg-query -S "/usr$path" 2>/dev/null || dpkg-query -S "${path#/usr}")
    echo "${owner%%:*}"
done | sort -u | sed '/^libc6$/d' | while read -r package; do
    # A soname is kept by its package: from the upstream version here on.
    version=$(dpkg-query -W -f '${Version}' "$package" | sed 's/^[0-9]*://; s/[-+~].*//')
    epoch=$(dpkg-query -W -f '${Version}' "$package" | sed -n 's/^\([0-9]*:\).*/\1/p')
    echo -n ", $package (>= $epoch$version)"
done
echo
