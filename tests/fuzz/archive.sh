#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A fuzz target's inputs are one archive, tests/fuzz/corpus/TARGET.tar.xz. The same inputs give the same bytes.
#   archive.sh unpack ARCHIVE FOLDER       FOLDER is whole or as it was
#   archive.sh pack FOLDER ARCHIVE         the files of FOLDER; the archive is whole or as it was
#   archive.sh add ARCHIVE FILE...         each under its own name; the archive may be a new one
set -euo pipefail
export LC_ALL=C
leftovers=()
trap 'rm -rf -- "${leftovers[@]}"' EXIT
fail() { # WHAT [OUTPUT]
    echo "$1${2:+: ${2%%$'\n'*}}" >&2
    exit 1
}

unpack() {
    local archive=$1 folder=$2 said
    [ -f "$archive" ] || fail "there is no archive $archive"
    said=$(xz -t -- "$archive" 2>&1) || fail "$archive is damaged (git checkout $archive brings it back)" "$said"
    rm -rf -- "$folder.new" "$folder.old"
    leftovers+=("$folder.new")
    said=$( (mkdir -p -- "$folder.new" && tar -xJf "$archive" -C "$folder.new" --no-same-owner) 2>&1) || fail "cannot unpack $archive into $folder" "$said"
    # Renamed, never emptied: an interrupted removal would leave a part of the folder behind, newer than its archive.
    [ ! -e "$folder" ] || mv -T -- "$folder" "$folder.old"
    mv -T -- "$folder.new" "$folder"
    rm -rf -- "$folder.old"
}

pack() {
    local folder=$1 archive=$2 said
    [ -n "$(find "$folder" -mindepth 1 -maxdepth 1 -name '[!.]*' -print -quit)" ] || fail "there are no inputs in $folder"
    leftovers+=("$archive.new")
    # A dictionary of 4 MiB holds any of the archives; that of -9 takes 674 MiB of memory.
    said=$({
        (cd -- "$folder" && printf '%s\0' * |
            tar -c --format=ustar --mode=644 --owner=0 --group=0 --numeric-owner --mtime=@0 --no-recursion --null -T -) |
            xz -T1 --lzma2=preset=9e,dict=4MiB >"$archive.new" && mv -- "$archive.new" "$archive"
    } 2>&1) || fail "cannot write $archive" "$said"
}

add() {
    local archive=$1 file name work
    shift
    work=$(mktemp -d)
    leftovers+=("$work")
    mkdir -- "$work/inputs"
    [ ! -e "$archive" ] || unpack "$archive" "$work/inputs"
    for file; do
        name=${file##*/}
        [ -f "$file" ] || fail "there is no file '$file'"
        [ "${name#.}" = "$name" ] || fail "'$file' is hidden: inputs have no dot at the beginning of their names"
        [ ! -e "$work/inputs/$name" ] || cmp -s -- "$file" "$work/inputs/$name" || fail "$archive has another input '$name': give '$file' another name"
        cp -- "$file" "$work/inputs/$name"
    done
    pack "$work/inputs" "$archive"
    echo "$archive: $(find "$work/inputs" -type f | wc -l) inputs, $(stat -c %s -- "$archive") bytes"
}

case ${1:-} in
unpack | pack | add) [ $# -lt 3 ] || { "$@"; exit; } ;;
esac
fail "archive.sh unpack ARCHIVE FOLDER | pack FOLDER ARCHIVE | add ARCHIVE FILE..."
