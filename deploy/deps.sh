#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Install the packages named on the command line where they are missing. Without root: say what to run, and fail.
set -euo pipefail
missing=()
for p in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)" = installed ] || missing+=("$p")
done
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
apt() { "$@" apt-get update -q && "$@" env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "${missing[@]}"; }
echo "packages: installing ${missing[*]}"
if [ "$(id -u)" = 0 ]; then
    apt >/dev/null
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    apt sudo >/dev/null
else
    echo "Some packages are missing and this is not root. Run:" >&2
    echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 1
fi
