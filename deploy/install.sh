#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copies what is built to its places below DESTDIR; used by `make install` and `make deb`.
#   BUILD=build DESTDIR= PREFIX=/usr/local SYSCONFDIR=/usr/local/etc deploy/install.sh
# Units and example configurations are written for /usr and /etc; their paths become those of PREFIX and SYSCONFDIR. A
# configuration file that is there already is left alone.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${BUILD:=build}" "${PREFIX:=/usr/local}" "${SYSCONFDIR:=$PREFIX/etc}"
case $PREFIX$SYSCONFDIR in *[[:space:]\|\&\\]*)
    echo "install: PREFIX and SYSCONFDIR must not hold blanks, '|', '&' or '\\'" >&2
    exit 2
    ;;
esac
root=${DESTDIR:-}
shopt -s nullglob

# put MODE FOLDER FILE...
put() {
    local mode=$1 to=$root$2
    shift 2
    [ $# -eq 0 ] && return
    mkdir -p "$to"
    install -m "$mode" -t "$to" "$@"
}
# The same with paths put right.
put_paths() {
    local mode=$1 to=$root$2 file
    shift 2
    for file in "$@"; do
        mkdir -p "$to"
        sed -e "s|/usr/bin/titan|$PREFIX/bin/titan|g" -e "s|/usr/share/titan|$PREFIX/share/titan|g" \
            -e "s|/usr/lib/titan|$PREFIX/lib/titan|g" -e "s|/etc/titan|$SYSCONFDIR/titan|g" "$file" >"$to/$(basename "$file")"
        chmod "$mode" "$to/$(basename "$file")"
    done
}

put 755 "$PREFIX/bin" "$BUILD"/bin/{titand,titan-spawnd,titan-worker,titanctl}
put 644 "$PREFIX/lib/titan" "$BUILD"/lib/titan/*.so
put_paths 644 "$PREFIX/lib/systemd/system" systemd/*.{service,socket,target,slice,timer,path}
for kind in sysusers tmpfiles; do
    if [ -f systemd/titan.$kind ]; then
        put_paths 644 "$PREFIX/lib/$kind.d" systemd/titan.$kind
        mv "$root$PREFIX/lib/$kind.d/titan."{$kind,conf}
    fi
done
for file in deploy/titand.toml deploy/coordinator.toml; do
    [ -f $file ] || continue
    put_paths 644 "$PREFIX/share/doc/titan/examples" $file
    [ -e "$root$SYSCONFDIR/titan/$(basename $file)" ] || put_paths 644 "$SYSCONFDIR/titan" $file
done
for section in 1 5 8; do
    put 644 "$PREFIX/share/man/man$section" docs/man/*."$section"
done
put 644 "$PREFIX/share/bash-completion/completions" ctl/titanctl.bash
mv "$root$PREFIX/share/bash-completion/completions/titanctl"{.bash,}
put 644 "$PREFIX/share/zsh/vendor-completions" ctl/titanctl.zsh
mv "$root$PREFIX/share/zsh/vendor-completions/"{titanctl.zsh,_titanctl}
put 644 "$PREFIX/share/fish/vendor_completions.d" ctl/titanctl.fish
put 644 "$PREFIX/share/titan/recipes" recipes/*.toml
put 644 "$PREFIX/share/titan/prometheus" deploy/prometheus/*.yml
put 644 "$PREFIX/share/titan/grafana" deploy/grafana/*.json
put 644 "$PREFIX/share/titan/proto/titan/v1" "$BUILD"/gen/proto/titan/v1/*.proto
# As in the tree, so that links from one to the other hold.
put 644 "$PREFIX/share/doc/titan" [R]EADME.md [L]ICENSE [C]HANGELOG.md [C]ONTRIBUTING.md [S]ECURITY.md
put 644 "$PREFIX/share/doc/titan/docs" docs/*.md docs/*.svg docs/*.png
put 644 "$PREFIX/share/doc/titan/docs/log" docs/log/*.md
ln -sfn ../../titan/proto "$root$PREFIX/share/doc/titan/proto"
