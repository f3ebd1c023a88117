#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The CUDA compiler; what it says of an object is kept beside the object, for a later run that compiles nothing.
set -o pipefail
object='' last=''
for word in "$@"; do
    [ "$last" != -o ] || object=$word
    last=$word
done
[ -n "$object" ] || exec "$CUDA/bin/nvcc" "$@"
"$CUDA/bin/nvcc" "$@" 2>&1 | tee "$object.log"
