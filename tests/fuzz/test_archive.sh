#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Archives of inputs (archive.sh): the same inputs give the same bytes, and what goes wrong leaves everything as it was.
set -uo pipefail
cd "$(dirname "$0")/../.."
unset MAKEFLAGS MFLAGS MAKELEVEL
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
number=0 failed=0
report() { # report NAME STATUS
    number=$((number + 1))
    if [ "$2" -eq 0 ]; then echo "ok $number - $1"; else echo "not ok $number - $1" && sed 's/^/# /' "$tmp/out" && failed=1; fi
}
archive() { tests/fuzz/archive.sh "$@" >"$tmp/out" 2>&1; }
refused() { # refused TEXT COMMAND...: fails, and says TEXT in one line
    local text=$1
    shift
    ! "$@" >"$tmp/out" 2>&1 && [ "$(wc -l <"$tmp/out")" -eq 1 ] && grep -qF -- "$text" "$tmp/out"
}
by_make() { # make without its own last line
    make --no-print-directory "$@" 2>&1 | grep -v '^make: \*\*\*'
    return "${PIPESTATUS[0]}"
}
small() { (trap '' XFSZ && ulimit -f 1 && tests/fuzz/archive.sh "$@"); } # where a file has at most 1 KiB
echo "1..8"

mkdir "$tmp/one" "$tmp/two"
head -c 5000 /dev/urandom >"$tmp/one/large"
echo text >"$tmp/one/-rf"
: >"$tmp/one/empty"
# Made in another order, with other times, owners and modes.
for name in empty -rf large; do cp "$tmp/one/$name" "$tmp/two/$name"; done
chmod 700 "$tmp/two/empty"
touch -d 2001-01-01 "$tmp/two/large"
archive pack "$tmp/one" "$tmp/one.tar.xz" && (umask 077 && archive pack "$tmp/two" "$tmp/two.tar.xz") && cmp "$tmp/one.tar.xz" "$tmp/two.tar.xz" >"$tmp/out"
report "the same inputs give the same bytes" $?
archive unpack "$tmp/one.tar.xz" "$tmp/unpacked" && diff -r "$tmp/one" "$tmp/unpacked" >"$tmp/out"
report "what is unpacked is what was packed" $?
echo more >"$tmp/more" && archive add "$tmp/two.tar.xz" "$tmp/more" "$tmp/one/large" && cp "$tmp/two.tar.xz" "$tmp/first" && archive add "$tmp/two.tar.xz" "$tmp/more" &&
    cmp "$tmp/two.tar.xz" "$tmp/first" >"$tmp/out" && archive unpack "$tmp/two.tar.xz" "$tmp/unpacked" && cp "$tmp/more" "$tmp/one" && diff -r "$tmp/one" "$tmp/unpacked" >"$tmp/out" &&
    archive add "$tmp/new.tar.xz" "$tmp/more" && archive unpack "$tmp/new.tar.xz" "$tmp/new" && cmp "$tmp/more" "$tmp/new/more" >"$tmp/out"
report "an input is added once, also to a new archive" $?
echo other >"$tmp/two/more"
refused "another input 'more'" tests/fuzz/archive.sh add "$tmp/two.tar.xz" "$tmp/two/more" &&
    refused "there is no file '$tmp/none'" tests/fuzz/archive.sh add "$tmp/two.tar.xz" "$tmp/none" && cmp "$tmp/two.tar.xz" "$tmp/first" >"$tmp/out"
report "a file that is not there, and another of the same name, are refused" $?
refused "there is no target 'nosuch'" by_make fuzz-add TARGET=nosuch FILE="$tmp/more" && refused "needs TARGET=x and FILE=path" by_make fuzz-add TARGET=toml &&
    refused "needs TARGET=x and FILE=path" by_make fuzz-add FILE="$tmp/more"
report "make fuzz-add says what it lacks" $?
head -c 3000 "$tmp/two.tar.xz" >"$tmp/torn.tar.xz"
refused "torn.tar.xz is damaged" tests/fuzz/archive.sh unpack "$tmp/torn.tar.xz" "$tmp/unpacked" && refused "there is no archive" tests/fuzz/archive.sh unpack "$tmp/none" "$tmp/unpacked" &&
    refused "torn.tar.xz is damaged" tests/fuzz/archive.sh add "$tmp/torn.tar.xz" "$tmp/more" && diff -r "$tmp/one" "$tmp/unpacked" >"$tmp/out"
report "a damaged archive leaves the folder as it was" $?
refused "cannot unpack" small unpack "$tmp/two.tar.xz" "$tmp/unpacked" && diff -r "$tmp/one" "$tmp/unpacked" >"$tmp/out" && [ ! -e "$tmp/unpacked.new" ]
report "so does a disk without room" $?
refused "cannot write" small pack "$tmp/one" "$tmp/two.tar.xz" && cmp "$tmp/two.tar.xz" "$tmp/first" >"$tmp/out" && [ ! -e "$tmp/two.tar.xz.new" ]
report "an archive that cannot be written stays as it was" $?
exit $failed
