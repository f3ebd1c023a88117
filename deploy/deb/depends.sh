#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The packages of the libraries that the given programs need, as a Depends line: dpkg knows the owner of a library, readelf which ones
# are asked for. The version is the least one that has what is used: for libc the newest version among the symbols; else the
# newest that the package's list of symbols gives for them, or, where there is no such list, what its shlibs file says.
set -euo pipefail
info=/var/lib/dpkg/info
used=$(mktemp)
trap 'rm -f "$used"' EXIT
readelf -W --dyn-syms "$@" 2>/dev/null | awk '$7 == "UND" && $8 {sub("@@", "@", $8); print $8}' | sort -u >"$used"
libc=$(readelf -V "$@" 2>/dev/null | grep -oE 'GLIBC_2\.[0-9]+(\.[0-9]+)?' | sort -uV | tail -n 1)
echo -n "libc6 (>= ${libc#GLIBC_})"
known=$(/sbin/ldconfig -p)
# The newest of the versions in which a symbol that is used came, from a list of symbols (deb-symbols(5)).
newest_symbol() {
    awk 'FNR == NR {used[$1] = 1; next}
        /^ / {name = $1; sub("@Base$", "", name); if ($1 in used || name in used) print $2}' "$used" "$1" | sort -uV | tail -n 1
}
readelf -d "$@" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u | while read -r soname; do
    path=$(awk -v s="$soname" '$1 == s && !found {print $NF; found = 1}' <<<"$known")
    [ -n "$path" ] || { echo "depends: no $soname on this machine" >&2; exit 1; }
    # /lib is a link to /usr/lib; dpkg may know the file under either name.
    owner=$(dpkg-query -S "$path" 2>/dev/null || dpkg-query -S "/usr$path" 2>/dev/null || dpkg-query -S "${path#/usr}")
    echo "${owner%%:*}"
done | sort -u | sed '/^libc6$/d' | while read -r package; do
    files=("$info/$package":*.symbols "$info/$package.symbols")
    version=
    for file in "${files[@]}"; do
        [ ! -f "$file" ] || version=$(newest_symbol "$file")
    done
    files=("$info/$package":*.shlibs "$info/$package.shlibs")
    for file in "${files[@]}"; do
        [ -n "$version" ] || [ ! -f "$file" ] ||
            version=$(sed -n "/^udeb:/d; s/.* $package (>= \(.*\)).*/\1/p" "$file" | sort -uV | tail -n 1)
    done
    # "3.0.0~~" is what symbols files say for the first version with its pre-releases.
    version=$(sed 's/~*$//' <<<"$version")
    echo -n ", $package${version:+ (>= $version)}"
done
echo
