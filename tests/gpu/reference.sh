#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Writes tests/gpu/debug_losses*.json: the losses of the debug model on the CPU device, which tests/golden holds against
# PyTorch: 20 steps of it as it is, 10 of each model that meshes are compared on. Needs a built worker and CPU plug-in
# (make).
set -euo pipefail
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
. tests/gpu/debug_run.sh
. tests/gpu/meshes.sh
reference() { # reference NAME DATA STEPS WHAT [--set ...]
    local name=$1 data=$2 steps=$3 what=$4
    shift 4
    debug_run "$BUILD/bin/titan-worker" cpu 1 float32 "$data" "$tmp/$name" "$steps" "$@"
    python3 - "$tmp/$name/metrics.jsonl" "$what, fp32, $steps steps" >"tests/gpu/$name.json" <<'PY'
import json
import sys
losses = [json.loads(line)["loss"] for line in open(sys.argv[1])]
print(json.dumps({"made_by": "tests/gpu/reference.sh", "recipe": sys.argv[2], "losses": losses}, indent=1))
PY
}
python3 tests/gpu/text.py "$tmp/text"
make_documents "$tmp/text" "$tmp/documents"
reference debug_losses "$tmp/text" 20 "recipes/debug.toml, text of tests/gpu/text.py"
for model in $mesh_models; do
    reference "debug_losses_$model" "$tmp/documents" 10 \
        "recipes/debug.toml $(model_keys "$model"), documents of tests/gpu/meshes.sh" $(set_keys $(model_keys "$model"))
done
